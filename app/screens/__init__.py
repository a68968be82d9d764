"""Screens and dialogs, what stands on them beside the widgets, and the app as they know it (`shell`).

The App itself does not enter, nor what a key does: `main` and `handlers` import the screens.
"""
