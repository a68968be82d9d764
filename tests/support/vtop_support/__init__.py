"""Helpers of the tests: a stub model, an engine that audits itself at every step, small random models."""
