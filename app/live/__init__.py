"""Between engine and screen: the feed of Frames, their fold in time for the next picture, what is sent and played.

No widget enters, nor Textual.
"""
