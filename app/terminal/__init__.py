"""The terminal itself: its modes and how they are restored, what it can show, themes, text made safe for it.

No other room of the app enters, and of the engine only errors and where a user's files are.
"""
