"""The block map: codes of blocks, their looks, the grid they are laid in, and the words about one.

Only a View enters, never the engine.
"""
