"""Widgets of the overview, one per file."""
