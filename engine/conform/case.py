"""One recorded case run under its preset: the same requests through our own scheduler, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vtop.engine import events as ev
from vtop.engine.audit import AuditError, audit
from vtop.engine.config import EngineConfig
from vtop.engine.conform.beams import Beams
from vtop.engine.conform.faithful_v1 import FaithfulV1
from vtop.engine.conform.setup import CaseError, CaseSetup
from vtop.engine.executor import SampledToken, StepOutput, StepPlan
from vtop.engine.request import FinishReason, Request, SamplingParams, Sequence, new_request
from vtop.engine.state.fold import EngineState

IGNORED = {FinishReason.REFUSED.value, FinishReason.CAPACITY.value}


@dataclass(slots=True)
class Observed:
    """What a step did, in the words of `expect`."""

    values: dict[str, Any]
    ids: dict[str, Any] = field(default_factory=dict)


class CaseRun:
    """The engine of one case: no executor, tokens come from the case."""

    def __init__(self, setup: CaseSetup) -> None:
        self.setup = setup
        self.config = setup.engine_config()
        self.stops = setup.make_stops()
        self._beams: dict[str, Beams] = {}
        self.scheduler = setup.make_scheduler(self.config, self.stops)
        self.blocks = self.scheduler.blocks
        self.state = EngineState(_meta(self.config, self.blocks.pool.total, self.blocks.host.total))
        self.requests: dict[str, Request] = {}
        self._alive: dict[str, Request] = {}
        self._now = -1.0
        self._frames = 0
        self._in_flight: tuple[StepPlan, Mapping[str, Any]] | None = None

    def step(self, do: Mapping[str, Any]) -> Observed:
        """Do what is asked, decide one step, then give its tokens. Raises PresetStopped where the original would."""
        self._now = float(do.get("clock", self._now + 1))
        for name in do.get("add", ()):
            self._add(name)
        for name in do.get("abort", ()):
            request = self._alive.get(name)
            if request is not None:
                self.scheduler.finish(request, FinishReason.ABORT)
        aborted = [name for name in do.get("abort", ()) if name in self._alive]
        self._between(do)
        self._publish()
        plan = self.scheduler.schedule(self._now)
        seen = self._observe(plan, self._publish(), aborted)
        self._commit(plan, do.get("emit", {}))
        ended = {e.id: _ending(e) for e in self._publish() if isinstance(e, ev.Finished)}
        seen.values["finished"] |= ended
        seen.values["free_after"] = self.blocks.pool.available
        self._audit()
        return seen

    def _add(self, name: str) -> None:
        spec = self.setup.requests[name]
        number = self.setup.number_of(name)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=spec.get("max_tokens"),
            min_tokens=spec.get("min_tokens", 0),
            stop_token_ids=tuple(spec.get("stop_tokens", ())),
            ignore_eos=bool(spec.get("ignore_eos", False)),
        )
        prompt = self.setup.prompt_of(name)
        limit = self.setup.max_model_len + 1
        request = new_request(
            name,
            number,
            prompt,
            params,
            arrival=float(spec.get("arrival", self._now)),
            limit=limit,
            seed=0,
            priority=spec.get("priority", 0),
        )
        for index in range(1, self.setup.width_of(name)):
            request.sequences.append(Sequence(request, index, list(prompt), len(prompt)))
        self.requests[name] = self._alive[name] = request
        self.scheduler.add(request, request.arrival)

    def _between(self, do: Mapping[str, Any]) -> None:
        reset = do.get("reset_cache")
        if reset == "force" and isinstance(self.scheduler, FaithfulV1):
            self.scheduler.force_reset()
        elif reset == "soft":
            if not self.blocks.pool.used:  # refused while blocks are in use
                self.scheduler.reset_prefix_cache()
        elif reset is not None:
            raise CaseError(f"reset_cache: {reset!r} is not known")
        if "pause" in do:
            pause = str(do["pause"]).lower().removeprefix("paused_")
            if pause not in ("new", "all", "none", "false", "off", "unpaused"):
                raise CaseError(f"pause: {do['pause']!r} is not known")
            if not isinstance(self.scheduler, FaithfulV1):
                raise CaseError("pause: only in v1")
            self.scheduler.paused = "new" if pause == "new" else "all" if pause == "all" else None

    def _commit(self, plan: StepPlan, emit: Mapping[str, Any]) -> None:
        if not self.setup.asynchronous:
            self.scheduler.commit(plan, self._tokens(plan, emit))
            self._advance_beams(plan, emit)
            return
        before, self._in_flight = self._in_flight, (plan, emit)
        if before is not None:
            self.scheduler.commit(before[0], self._tokens(*before))

    def _tokens(self, plan: StepPlan, emit: Mapping[str, Any]) -> StepOutput:
        """The k-th token of a request is made from its number, unless `emit` names it: one, or one per sequence."""
        output = StepOutput([])
        turn: dict[str, int] = {}
        for index, chunk in enumerate(plan.chunks):
            seq = chunk.sequence
            if not chunk.sample:
                output.tokens.append(None)
                continue
            name = seq.request.request_id
            given = emit.get(name)
            if _is_beams(given):
                output.tokens.append(None)  # `_advance_beams` gives them
                continue
            tokens = []
            for _ in (chunk.sequence, *chunk.forks):
                place = turn.get(name, 0)
                turn[name] = place + 1
                token = given[place] if isinstance(given, list) else given
                tokens.append(SampledToken(self.setup.token_of(name, seq.num_output) if token is None else token))
            # of several, the first sequence goes on with the last token
            output.tokens.append(tokens.pop())
            if tokens:
                output.forked[index] = tokens
        return output

    def _advance_beams(self, plan: StepPlan, emit: Mapping[str, Any]) -> None:
        for request in dict.fromkeys(chunk.sequence.request for chunk in plan.chunks if chunk.sample):
            given: Any = emit.get(request.request_id)
            if _is_beams(given):
                beams = self._beams.setdefault(request.request_id, Beams(request))
                beams.advance(self.scheduler, self.stops, given)

    # --- what is seen ------------------------------------------------------------------------------------------------

    def _publish(self) -> list[ev.AnyEvent]:
        events = self.scheduler.take_events()
        self.state.apply(ev.Frame(self._frames, self._frames, self._now, True, events, self._now))
        self._frames += 1
        for event in events:
            if isinstance(event, ev.Finished):
                self._alive.pop(event.id, None)
        return events

    def _audit(self) -> None:
        try:
            audit(self.scheduler, self.blocks, self._alive, self.state)
        except AuditError as error:
            raise CaseError(f"audit: {error}") from error

    def _observe(self, plan: StepPlan, events: list[ev.AnyEvent], aborted: list[str]) -> Observed:
        run: dict[str, int] = {}
        for chunk in plan.chunks:
            name = chunk.sequence.request.request_id
            run[name] = run.get(name, 0) + chunk.num_tokens
        ended = {e.id: _ending(e) for e in events if isinstance(e, ev.Finished)}
        values = {
            "run": run,
            "order": list(run),
            "cached": {e.id: e.hit for e in events if isinstance(e, ev.PrefixLookup) and e.hit},
            "preempted": [e.id for e in events if isinstance(e, ev.Preempted)],
            "resumed": [e.id for e in events if isinstance(e, ev.Admitted) and e.resumed],
            "swapped_out": [e.id for e in events if isinstance(e, ev.SwappedOut)],
            "swapped_in": [e.id for e in events if isinstance(e, ev.SwappedIn)],
            "ignored": [name for name, reason in ended.items() if reason == "ignored"],
            "waiting": [r.request_id for r in self.scheduler.waiting.ordered()],
            "running": [r.request_id for r in self.scheduler.running.snapshot()],
            "swapped": [r.request_id for r in self.scheduler.swapped.ordered()],
            "copies": len(plan.copies),
            "free": self.blocks.pool.available,
            "free_cpu": self.blocks.host.free,
            "blocks": {name: len(table) for name, table in self._tables().items()},
            "finished": ended,
            "aborted": aborted,
        }
        first = self.setup.first_block
        ids = {
            "tables": self._tables(),
            "swap_out": [list(pair) for pair in plan.swap_out],
            "swap_in": [list(pair) for pair in plan.swap_in],
            "copies": [[source + first, target + first] for source, target in plan.copies],
        }
        return Observed(values, ids)

    def _tables(self) -> dict[str, list[int]]:
        """Tables by request, or by sequence (A/0, A/1) of a group that forked."""
        tables: dict[str, list[int]] = {}
        device = self.setup.first_block
        host = self.blocks.pool.total if self.setup.host_ids_follow else 0
        for name, request in self._alive.items():
            several = len(request.sequences) > 1 and request.forked
            for place, seq in enumerate(seq for seq in request.sequences if not (several and seq.ended)):
                table = [b + device for b in seq.blocks] or [b + host for b in seq.host_blocks]
                if table:
                    tables[f"{name}/{place}" if several else name] = table
        return tables


def _is_beams(given: Any) -> bool:
    """[[parent position, token, log-probability], …] and not one token or one for each sequence."""
    return isinstance(given, list) and bool(given) and isinstance(given[0], list)


def _ending(event: ev.Finished) -> str:
    if event.stop_reason == "repetition":
        return "repetition"
    return "ignored" if event.reason in IGNORED else event.reason


def _meta(config: EngineConfig, num_blocks: int, host_blocks: int) -> ev.Meta:
    return ev.Meta(
        schema=ev.SCHEMA_VERSION,
        version="",
        model="recorded",
        device="none",
        dtype="none",
        backend="none",
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_model_len=config.max_model_len or 0,
        token_budget=config.max_num_batched_tokens or 0,
        max_num_seqs=config.max_num_seqs,
        config=asdict(config),
        unix_time=0.0,
        engine_time=0.0,
        num_host_blocks=host_blocks,
    )
