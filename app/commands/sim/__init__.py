"""`vtop sim`: its arguments, rules, tables and files.

The simulation itself is the engine's; nothing here decides.
"""
