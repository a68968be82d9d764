"""V0ChunkedScheduler: vLLM V0 with chunked prefill. Numbers are those of `RULES.md`."""

from __future__ import annotations

from dataclasses import dataclass

from vtop.engine.executor import StepPlan
from vtop.engine.presets.options import PresetStopped
from vtop.engine.presets.v0_core import V0Core
from vtop.engine.presets.v0_swap import V0Pass
from vtop.engine.request import Request
from vtop.engine.sched.changes import StepPass


@dataclass(slots=True)
class _Prefills:
    """0.8.5: how many prefills share the budget of this step, and how many long ones run (31)."""

    share: int
    long: int


class V0ChunkedScheduler(V0Core):
    """Running requests first, in queue order; then swapped ones unless somebody gave way; then prompts (3).

    Victims of the step join waiting only when it is decided, so admission goes on behind them.
    """

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step."""
        self._begin(now)
        step = self.deciding = V0Pass(now, self.token_budget)
        self._prefills = self._count_prefills()
        self._passed_over: list[Request] = []  # they join waiting again when the step is decided
        self._run_running(step)
        step.seats = step.reached  # those that the budget did not reach hold no seat
        if not step.gave_way:
            self._return_swapped(step)
        self._admit(step)
        for request in self._put_aside + self._passed_over:
            self.waiting.push(request)
        self._put_aside = []
        batch = step.admitted + step.prefills + step.returned_prefills + step.decodes + step.returned_decodes
        order = step.unreached + step.returned_decodes + step.returned_prefills + step.decodes
        ends = [request for request in step.prefills if step.chunks[request][0].sample]
        order += ends + [request for request in step.prefills if request not in ends]
        return self._decided(step, order + step.admitted, batch)

    def _requeue(self, victim: Request, step: StepPass | None) -> None:
        if step is None:
            self.waiting.push(victim)
        else:
            self._put_aside.append(victim)

    def _undo(self, step: StepPass, at: Request | None) -> None:
        self._put_aside += self._passed_over
        self._passed_over = []
        super()._undo(step, at)

    def _chunk(self, step: V0Pass, tokens: int) -> int:
        left, share = step.left, self.token_budget // max(1, self._prefills.share)
        if self.blocks.prefix_caching:
            size = self.blocks.block_size
            if self.token_budget % size:
                raise PresetStopped("budget_not_in_blocks", f"the token budget is not a multiple of {size}")
            left = min(left, share) // size * size  # chunks end at block borders (26)
        return min(tokens, left, share)

    # --- partial prefills --------------------------------------------------------------------------------------------

    def _count_prefills(self) -> _Prefills:
        """Prefills that run and that could be admitted now. Long ones that could not are left out."""
        count = long = waiting_long = 0
        for request in self.running:
            if not self.blocks.decodes(request.sequences[0]):
                count += 1
                long += self._is_long(request)
        most = self.options.max_partial_prefills
        if most == 1:
            return _Prefills(1, long)
        for request in self.waiting.ordered():
            if count >= most:
                break
            if self._is_long(request):
                if long + waiting_long >= self.options.max_long_partial_prefills:
                    continue
                waiting_long += 1
            count += 1
        return _Prefills(min(count, most), long)

    def _is_long(self, request: Request) -> bool:
        seq = request.sequences[0]
        threshold = self.options.long_prefill_threshold
        if not threshold and self.options.max_partial_prefills > 1:
            threshold = int(self.options.max_model_len * 0.04)
        return seq.num_tokens - seq.num_computed > threshold

    def _next_waiting(self, step: V0Pass) -> Request | None:
        """The head; a long prompt for which no place is left is passed over by those behind it."""
        while (head := self.waiting.peek()) is not None:
            full = self._prefills.long >= self.options.max_long_partial_prefills
            if self.options.max_partial_prefills == 1 or not full or not self._is_long(head):
                return head
            self.waiting.remove(head)
            self._passed_over.append(head)
        return None

    def _place(self, step: V0Pass, head: Request, tokens: int, cached: int) -> None:
        self._prefills.long += self._is_long(head)
        super()._place(step, head, tokens, cached)
