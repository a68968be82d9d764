"""Hand-made Frames: a few lines make an engine state without an engine."""

from __future__ import annotations

from vtop.engine import events as ev
from vtop.engine.state.fold import EngineState


def make_meta(num_blocks: int = 64, block_size: int = 16, **changes: object) -> ev.Meta:
    config = {
        "scheduling_policy": "fcfs",
        "batching": "chunked",
        "admission": "reserve-full-prompt",
        "victim": "latest",
        "preemption_mode": "recompute",
    }
    fields: dict[str, object] = {
        "schema": ev.SCHEMA_VERSION,
        "version": "0",
        "model": "tiny",
        "device": "cpu",
        "dtype": "float32",
        "backend": "torch",
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_model_len": 1024,
        "token_budget": 512,
        "max_num_seqs": 64,
        "config": config,
        "unix_time": 0.0,
        "engine_time": 0.0,
    }
    return ev.Meta(**(fields | changes))  # type: ignore[arg-type]


class Frames:
    """Makes Frames in order and folds them; `state` is what they add up to, `made` are all of them."""

    def __init__(self, num_blocks: int = 64, block_size: int = 16, **meta: object) -> None:
        self.meta = make_meta(num_blocks, block_size, **meta)
        self.state = EngineState(self.meta)
        self.made: list[ev.Frame] = []
        self.time = 0.0
        self.numbers = 0

    def frame(self, *events: ev.AnyEvent, ran: bool = True, seconds: float = 0.01) -> ev.Frame:
        self.time += seconds
        step = self.state.step + ran
        made = ev.Frame(serial=self.state.serial + 1, step=step, time=self.time, ran=ran, events=list(events))
        self.state.apply(made)
        self.made.append(made)
        return made

    def arrived(self, id: str, prompt_tokens: int = 32, limit: int = 96, **more: object) -> ev.Arrived:
        self.numbers += 1
        fields: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": limit - prompt_tokens}
        return ev.Arrived(
            id=id,
            number=self.numbers - 1,
            key=(self.time, float(self.numbers - 1)),
            arrival=self.time,
            prompt_tokens=prompt_tokens,
            limit=limit,
            **(fields | more),  # type: ignore[arg-type]
        )

    def admitted(self, id: str, need: int = 2, resumed: bool = False) -> ev.Admitted:
        return ev.Admitted(
            id=id, serial=self.state.serial, resumed=resumed, need=need, free=self.state.free, cached=self.state.cached
        )

    def free_blocks(self, number: int) -> list[int]:
        found = (self.state.ref_count == 0).nonzero()[0][:number]
        return [int(b) for b in found]

    def run(self, id: str, prompt_tokens: int = 32, blocks: int = 2, **more: object) -> None:
        """A request arrives, is admitted and prefilled."""
        self.frame(self.arrived(id, prompt_tokens, **more), ran=False)  # type: ignore[arg-type]
        self.frame(
            self.admitted(id, blocks),
            ev.BlocksTaken(id=id, blocks=self.free_blocks(blocks)),
            ev.Scheduled(ids=[id], tokens=[prompt_tokens], budget=512, limit=ev.Limit.NONE),
        )

    def decode(self, *ids: str, text: str = " word") -> None:
        """One token for each."""
        self.frame(
            ev.Scheduled(ids=list(ids), tokens=[1] * len(ids), budget=512, limit=ev.Limit.NONE),
            ev.Tokens(ids=list(ids), tokens=[7] * len(ids), texts=[text] * len(ids)),
            ev.StepTimes(schedule=0.0002, prepare=0.0004, model=0.0123, sample=0.0003, commit=0.0005),
        )

    def preempt(self, id: str, for_id: str) -> ev.Frame:
        view = self.state.requests[id]
        blocks = view.sequences[0].blocks[::-1]
        used = self.state.used
        return self.frame(
            ev.BlocksFreed(id=id, blocks=list(blocks)),
            ev.Preempted(
                id=id,
                for_id=for_id,
                cause=ev.PreemptCause.NO_FREE_BLOCK,
                mode="recompute",
                rule="latest",
                key=view.key,
                for_key=self.state.requests[for_id].key,
                blocks_freed=len(blocks),
                tokens_lost=22,
                used_before=used,
                used_after=used - len(blocks),
                pool=self.state.num_blocks,
                count=view.preemptions + 1,
            ),
        )

    def swap_out(self, id: str, for_id: str, host: list[int]) -> ev.Frame:
        """A running request with one sequence goes to these host blocks."""
        view = self.state.requests[id]
        blocks, used = view.sequences[0].blocks, self.state.used
        return self.frame(
            ev.SwappedOut(
                id=id,
                for_id=for_id,
                cause=ev.PreemptCause.NO_FREE_BLOCK,
                rule="latest",
                key=view.key,
                for_key=self.state.requests[for_id].key,
                tables=[host],
                pairs=list(zip(blocks, host, strict=True)),
                used_before=used,
                used_after=used - len(blocks),
                pool=self.state.num_blocks,
                count=view.preemptions + 1,
            )
        )

    def swap_in(self, id: str, blocks: list[int]) -> ev.Frame:
        """A swapped request with one sequence comes back to these blocks."""
        view = self.state.requests[id]
        pairs = list(zip(view.sequences[0].host_blocks, blocks, strict=True))
        free, cached = self.state.free, self.state.cached
        return self.frame(
            ev.SwappedIn(id=id, key=view.key, tables=[blocks], pairs=pairs, need=len(blocks), free=free, cached=cached)
        )

    def finish(self, id: str, reason: str = "length") -> ev.Frame:
        view = self.state.requests[id]
        blocks = view.sequences[0].blocks[::-1]
        freed = [ev.BlocksFreed(id=id, blocks=list(blocks))] if blocks else []
        return self.frame(*freed, ev.Finished(id=id, reason=reason, output_tokens=view.output_tokens))

    def cache(self, id: str, number: int) -> ev.Frame:
        """The first blocks of a request are full and written, and can be hit from now on."""
        return self.frame(ev.Cached(id=id, blocks=self.state.requests[id].sequences[0].blocks[:number]))

    def share(self, id: str, other: str, number: int, **more: object) -> ev.Frame:
        """A request arrives and is admitted with the first blocks of another, which can be hit."""
        self.frame(self.arrived(id, **more), ran=False)  # type: ignore[arg-type]
        blocks = self.state.requests[other].sequences[0].blocks[:number]
        hit = number * self.state.block_size
        tokens = self.state.requests[id].prompt_tokens
        return self.frame(
            self.admitted(id, 0),
            ev.PrefixLookup(id=id, tokens=tokens, hit=hit, blocks=number, resumed=False),
            ev.BlocksTaken(id=id, blocks=list(blocks)),
        )

    def wait(self, id: str, reason: ev.WaitReason) -> ev.Frame:
        return self.frame(ev.Waits(id=id, reason=reason))
