"""The order of requests as a pure function, used by the engine's queues and by the fold of Frames alike."""

from __future__ import annotations

from collections.abc import Mapping

Key = tuple[float, ...]
"""What a policy says of one request. Smaller goes first; the last number is unique, so no two keys are equal."""

NO_FAIR = -1  # in `fair_at`: the policy has no part that follows group counters


def order_key(key: Key, group: str, fair_at: int, counters: Mapping[str, float]) -> Key:
    """The key with the counter of the request's group at its place.

    Counters change for all requests of a group at once, so they are not stored in each key but looked up here.
    """
    if fair_at == NO_FAIR:
        return key
    return (*key[:fair_at], counters.get(group, 0.0), *key[fair_at:])
