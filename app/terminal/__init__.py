"""The terminal itself: its modes and how they are restored, what it can show, themes, text made safe for it.

Nothing of the engine enters.
"""
