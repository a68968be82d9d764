"""Schedulers that decide as vLLM's did: small classes over the queues, pools and events of `scheduler_core.py`."""
