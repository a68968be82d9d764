"""Paged attention in Triton, for NVIDIA GPUs.

Imported only where Triton is; numba never enters.
"""
