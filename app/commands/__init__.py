"""One file per command of the command line.

Nothing that draws on a screen: what a command shows live is in `vtop.app.main`.
"""
