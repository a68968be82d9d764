"""Widgets: each shows a View and draws only what changed.

Neither an engine nor a command enters: they know events and the state folded from them, and say what was clicked.
"""
