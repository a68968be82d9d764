"""Recorded decisions of real engines, played against our schedulers and compared step by step.

What exists for that comparison alone lives here; the schedulers know nothing of it.
"""
