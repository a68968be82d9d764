"""Paged attention and linear layers in numba, for CPUs.

Imported only where numba is; Triton never enters.
"""
