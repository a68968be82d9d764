"""From token ids to text: detokenising as they come, stop strings, and what is held back until it is certain.

Nothing here decides who runs.
"""
