"""The same scheduler in virtual time: a cost model in place of a model, calibration, and measures of a run.

No second scheduler and no torch.
"""
