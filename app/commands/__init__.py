"""One file per command of the command line, and how a run without a screen ends.

Nothing that draws on a screen: what a command shows live is in `vtop.app.main`.
"""
