"""The terminal program: command line, Textual app, and what they draw."""
