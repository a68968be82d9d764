"""Paged attention in plain torch: the backend that runs wherever torch does.

No compiler enters.
"""
