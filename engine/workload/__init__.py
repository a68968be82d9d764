"""What to feed an engine or a simulation: arrivals, lengths, prefixes, and the player that adds them on time.

No reader of files (`traces`) and no measure (`sim`).
"""
