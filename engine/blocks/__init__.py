"""Blocks of KV cache: the device pool and its free list, block tables, the prefix index, the host pool.

No queue, no policy and no tensor enters: blocks are numbers here.
"""
