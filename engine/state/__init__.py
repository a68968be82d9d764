"""The fold of Frames: what a screen, a recording or a measure knows of the engine, rebuilt from events alone.

Nothing of the engine itself enters: no scheduler, no pool, no request object.
"""
