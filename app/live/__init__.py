"""Between engine and screen: the feed of Frames, their fold in time for the next picture, injected load.

No widget enters.
"""
