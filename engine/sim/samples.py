"""Steps of a recording as samples for a cost model: what each computed, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vtop.engine import events as ev
from vtop.engine.events.faults import FAULTS, MOST_SAMPLES, inconsistent
from vtop.engine.events.journal import Recording
from vtop.engine.sim.cost_model import StepLoad


class Kind(StrEnum):
    """What a step computed."""

    DECODE = "decode only"
    PREFILL = "prefill only"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step; seconds of the whole of it without swaps, and of the swaps."""

    load: StepLoad
    seconds: float
    swap_seconds: float

    @property
    def kind(self) -> Kind:
        if self.load.decodes == self.load.tokens:
            return Kind.DECODE
        return Kind.MIXED if self.load.decodes else Kind.PREFILL


def step_samples(recording: Recording) -> list[StepSample]:
    """The steps that computed something, in order; failed ones are left out. Raises BadValue, InconsistentFrame."""
    tracker = _Tracker()
    return [sample for frame in recording.frames() if (sample := tracker.apply(frame)) is not None]


class _Tracker:
    """How much of every sequence is computed: less than EngineState knows, and enough for a StepLoad."""

    def __init__(self) -> None:
        self._prompts: dict[str, int] = {}
        self._computed: dict[tuple[str, int], int] = {}
        self._samples: dict[str, int] = {}

    def apply(self, frame: ev.Frame) -> StepSample | None:
        load, times, failed = StepLoad(), None, False
        for event in frame.events:
            try:
                match event:
                    case ev.Arrived():
                        if not 0 < event.samples <= MOST_SAMPLES:
                            raise ValueError(f"{event.samples} samples")
                        self._prompts[event.id] = event.prompt_tokens
                        self._samples[event.id] = event.samples
                    case ev.PrefixLookup():
                        self._computed[event.id, event.seq] = event.hit
                    case ev.BlocksFreed():
                        self._computed.pop((event.id, event.seq), None)
                    case ev.Forked():
                        parent = self._computed.get((event.id, event.parent), 0)
                        shared = parent if event.prompt_tokens is None else event.prompt_tokens
                        self._computed[event.id, event.child] = shared
                    case ev.SwappedOut() | ev.SwappedIn():
                        load.swapped += len(event.pairs)
                    case ev.SwapOutFailed():
                        for seq in range(self._samples.get(event.id, 1)):
                            self._computed.pop((event.id, seq), None)
                    case ev.CopiedOnWrite():
                        load.copied += 1
                    case ev.Scheduled():
                        self._schedule(event, load)
                    case ev.StepTimes():
                        times = event
                    case ev.StepFailed():
                        failed = True
                    case ev.Finished():
                        self._forget(event.id)
            except FAULTS as error:
                raise inconsistent(frame, event, error) from error
        if times is None or failed or not load.tokens:
            return None
        whole = times.schedule + times.prepare + times.model + times.sample + times.commit
        if frame.began is not None:
            whole = frame.time - frame.began - times.swap
        return StepSample(load, whole, times.swap) if whole > 0 else None

    def _schedule(self, event: ev.Scheduled, load: StepLoad) -> None:
        for request_id, seq, count in zip(event.ids, event.seqs or [0] * len(event.ids), event.tokens, strict=True):
            start = self._computed.get((request_id, seq), 0)
            self._computed[request_id, seq] = start + count
            load.tokens += count
            if count == 1 and start + 1 >= self._prompts.get(request_id, 0):  # what StepLoad.of calls a decode
                load.decodes += 1
                load.context += start + 1
            else:
                load.area += count * (start + count / 2)
                load.prefill_context += start + count

    def _forget(self, request_id: str) -> None:
        self._prompts.pop(request_id, None)
        for seq in range(self._samples.pop(request_id, 1)):
            self._computed.pop((request_id, seq), None)
