"""Screens of the app, one per file."""
