"""A copy of the state that stands still while the original goes on."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace

from vtop.engine.state import EngineState, RequestView


def frozen_copy(state: EngineState) -> EngineState:
    """What `state` shows now. Finished requests never change, so they are shared."""
    still = copy.copy(state)
    still.ref_count = state.ref_count.copy()
    still.owner = state.owner.copy()
    views = {request_id: _copy_request(view) for request_id, view in state.requests.items()}
    still.requests = views
    still.waiting = {request_id: views[request_id] for request_id in state.waiting}
    still.running = {request_id: views[request_id] for request_id in state.running}
    still.finished = deque(state.finished, maxlen=state.finished.maxlen)
    still.refused = deque(state.refused, maxlen=state.refused.maxlen)
    still.totals = replace(state.totals, finished=state.totals.finished.copy())
    still.last_step = replace(state.last_step)
    return still


def _copy_request(view: RequestView) -> RequestView:
    sequences = [
        replace(
            seq, blocks=list(seq.blocks), output_tokens=list(seq.output_tokens), text_parts=list(seq.text_parts)
        )
        for seq in view.sequences
    ]
    return replace(view, sequences=sequences)
