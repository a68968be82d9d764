"""The scheduler: one step decided, from whom is admitted to who is preempted, and committed when its tokens are known.

No torch and no clock of its own: it takes the time and the tokens, and tells what it decided as events.
"""
