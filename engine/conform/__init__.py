"""Recorded decisions of real engines, played against our schedulers and compared step by step.

What exists for that comparison alone lives here, faults of the originals too; `presets` and `sched` know nothing of it.
"""
