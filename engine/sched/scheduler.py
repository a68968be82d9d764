"""Scheduler: which sequences compute how many tokens in the next step, and what their tokens change.

What an admission takes and why it must wait is `need.py`; what becomes of victims is `preemption.py`; what a decision
does to queues and tables is `changes.py`. The rules, in order (each step):
 1. time-outs end requests, whatever queue they are in;
 2. running requests, in policy order: each decode or next chunk gets blocks; when none is free, victims are
    taken by the victim rule until it fits or the request itself is the victim; the preemption mode says whether
    a victim's K/V is thrown away or moved to the host pool;
 3. swapped requests return, in policy order, unless this step preempted, until one does not fit;
 4. waiting requests, in policy order, unless this step preempted or somebody is left swapped out: admit while
    sequences, tokens and blocks (need + watermark) allow; stop at the first that does not fit. With
    preempt_for_waiting, it may take victims among running ones that are strictly less urgent; with skip_ahead, so
    many later ones may pass it.
With batching = prefill-first, 4 comes before 2 while nobody is swapped out, and a step that computes prompts computes
nothing else; after `max_prefill_steps` such steps in a row the decodes have a turn.

A preempted request returns only when everything it must compute again fits at once, beside the blocks that running
requests take meanwhile, and is no victim of the growth of others until it has given a token. A more urgent one takes
nobody's place who has given none since it was admitted. So every preemption costs an output token, and preemptions are
bounded, whatever the victim rule.

Of several samples that return, the first computes the prompt alone; then the others share its whole blocks, as after
the first admission, and compute their own outputs again. Nobody else takes the blocks that they will need for that.
"""

from __future__ import annotations

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.policies.queues import peek_many
from vtop.engine.request import FinishReason, Request, RequestStatus, Sequence
from vtop.engine.sched.changes import StepPass
from vtop.engine.sched.core import SchedulerCore
from vtop.engine.sched.need import Admission, Need
from vtop.engine.sched.output import OutputProcessor
from vtop.engine.sched.preemption import choose_victims


class Scheduler(SchedulerCore):
    """The scheduler of preset `sensible`, with its switches."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        outputs: OutputProcessor,
        token_budget: int,
        max_model_len: int = 0,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, max_model_len)
        self.admission = Admission(self)
        self._prefill_streak = 0  # steps in a row that computed prompts while decodes waited

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step. Block tables grow here; `num_computed` grows in `commit`."""
        step = self._begin(now)  # rule 1
        if self.config.batching == "prefill-first":
            self._prefill_first(step)
        else:
            self._run_running(step)
            self._return_swapped(step)
            self._admit_waiting(step)
        return self._plan(step)

    def _prefill_first(self, step: StepPass) -> None:
        """Prompts before decodes: rule 4, then 2, unless somebody is swapped out or it is the decodes' turn."""
        if len(self.swapped):
            self._prefill_streak = 0
            self._run_running(step)
            self._return_swapped(step)
            return
        running = self.running.snapshot()
        begun = [r for r in running if any(seq.num_computed < seq.num_tokens - 1 for seq in r.computing)]
        decodes_wait = len(begun) < len(running)
        bound = self.config.max_prefill_steps
        if decodes_wait and bound and self._prefill_streak >= bound:
            self._prefill_streak = 0
            head = self.waiting.peek()
            if head is not None:
                self._tell_wait(step, head, ev.DecodesFirst(bound))
            self._run_running(step, [r for r in running if r not in begun])
            return
        self._run_running(step, begun)
        self._admit_waiting(step)
        if step.chunks:
            self._prefill_streak += decodes_wait
        else:
            self._prefill_streak = 0
            self._run_running(step)

    def _run_running(self, step: StepPass, only: list[Request] | None = None) -> None:
        """Rule 2: tokens and blocks to running requests, in policy order."""
        requests = self.running.snapshot() if only is None else only
        block_size = self.blocks.block_size
        # a chunk leaves one token of the budget to every decode that comes after it
        decodes = sequences = 0
        for request in requests:
            for seq in request.computing:
                sequences += 1
                if len(seq.token_ids) - seq.num_computed == 1:
                    decodes += 1
        reserve = decodes if decodes < sequences else 0
        skipped: list[Request] = []
        for request in requests:
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted earlier in this pass
            self.concerns = request
            group = request.computing
            if len(group) > 1 and not self._rejoin(step, request, group[0]):
                continue
            for seq in group:
                if not seq.blocks and seq is not group[0]:
                    continue  # a sample that waits for its prompt
                start = seq.num_computed
                tokens = len(seq.token_ids) - start
                if tokens == 0:
                    continue  # a beam that waits for the others
                if tokens == 1:
                    reserve -= reserve > 0
                    allowed = step.left
                else:
                    allowed = step.left - reserve
                if allowed <= 0:
                    step.limit = ev.Limit.BUDGET
                    self._tell_skipped(request, ev.NeedsBudget(tokens, step.left, self.token_budget))
                    skipped.append(request)
                    continue
                tokens = min(tokens, allowed)
                end = start + tokens
                copy = len(group) > 1 and self.blocks.must_copy(seq, start)
                if (copy or end > len(seq.blocks) * block_size) and not self._make_room(step, request, seq, start, end):
                    break
                step.add(request, _chunk(seq, start, tokens))
        if skipped and step.left > 0:  # those for whom it was kept gave way
            skipped = [r for r in skipped if r.status is RequestStatus.RUNNING and r not in step.chunks]
            if skipped:
                self._run_running(step, list(dict.fromkeys(skipped)))

    def _rejoin(self, step: StepPass, request: Request, first_one: Sequence) -> bool:
        """Where the prompt is computed again, the other samples share it; false when the request had to give way."""
        block_size = self.blocks.block_size
        if first_one.num_computed < first_one.prompt_len // block_size * block_size:
            return True
        for seq in request.awaiting:
            self._share_prompt(first_one, seq)
            if not self._make_room(step, request, seq, seq.num_computed, seq.num_tokens):
                return False
        return True

    def _make_room(self, step: StepPass, request: Request, seq: Sequence, start: int, end: int) -> bool:
        """Blocks for slots start … end - 1, preempting where needed; false when the request itself had to give way."""
        pool = self.blocks.pool
        while self.blocks.missing(seq, end) + self.blocks.must_copy(seq, start) > pool.available - (
            self.admission.promised(without=(request,))
        ):
            if len(self.running) == 1:
                # several samples that hold the whole pool: nobody is left who could make room for them
                step.give_back(request)
                self.finish(request, FinishReason.CAPACITY, message=self._group_message(request))
                return False
            candidates = [r for r in self.running.snapshot() if r is request or not (r.owed_token and r.preemptions)]
            victim = self.victim_rule.choose(candidates, request)
            self._give_way(step, victim, request, ev.PreemptCause.NO_FREE_BLOCK)
            if victim is request:
                return False
        if self.blocks.must_copy(seq, start):
            self._copy_on_write(step, seq, start)
        self._grow(seq, end)
        return True

    def _group_message(self, request: Request) -> str:
        need = max(self.blocks.least_blocks(request), self.blocks.pool.used + 1)
        return f"its {len(request.computing)} samples need {need} blocks; the pool has {self.blocks.pool.total}"

    def _give_way(self, step: StepPass, victim: Request, beneficiary: Request, cause: ev.PreemptCause) -> None:
        """Preempt, by the preemption mode: to the host pool, or back to waiting."""
        choice = self.preemption_mode.choose(victim, self.blocks, self.rates())
        if choice.swap and victim not in step.copies:  # a copy that is not done yet cannot be moved
            self.preemption.swap_out(step, victim, beneficiary, cause, choice)
        else:
            self.preemption.tell_host_full(choice)
            self._preempt(victim, beneficiary, cause, step, choice)

    def _return_swapped(self, step: StepPass) -> None:
        """Rule 3: swapped requests come back, in policy order, until one does not fit."""
        while step.victim is None and (head := self.swapped.peek()) is not None:
            self.concerns = head
            verdict = self.admission.of_swapped(step, head)
            if not isinstance(verdict, Need):
                self._tell_wait(step, head, verdict)
                return
            self.preemption.swap_in(step, head, verdict.blocks, verdict.watermark)
            self._number_admission(head)
            head.owed_token = True
            self.admission.promise(head)
            self._run_running(step, [head])

    def _admit_waiting(self, step: StepPass) -> None:
        """Rule 4: waiting requests are admitted, in policy order, until one does not fit."""
        while (head := self.waiting.peek()) is not None:
            self.concerns = head
            if step.victim is not None:
                self._tell_wait(step, head, ev.AfterPreemption(step.victim.request_id))
                return
            swapped = self.swapped.peek()
            if swapped is not None:
                self._tell_wait(step, head, ev.SwappedFirst(swapped.request_id))
                return
            if not self.blocks.ever_returns(head):
                self.finish(head, FinishReason.CAPACITY, message=self._group_message(head))
                continue
            reason = self._admit_if_fits(step, head)
            if reason is not None and self.config.preempt_for_waiting and self._take_victims(step, head):
                reason = self._admit_if_fits(step, head)
            if reason is not None:
                self._tell_wait(step, head, reason)
                if isinstance(reason, (ev.NeedsBlocks, ev.NeedsBudget)) and step.victim is None:
                    self._skip_ahead(step)
                return

    def _admit_if_fits(self, step: StepPass, request: Request) -> ev.WaitReason | None:
        """Admit a waiting request if it fits; else, why not."""
        self.concerns = request
        verdict = self.admission.of_waiting(step, request)
        if not isinstance(verdict, Need):
            return verdict
        self._admit(step, request, verdict)
        return None

    def _take_victims(self, step: StepPass, head: Request) -> bool:
        """Preempt running requests that are strictly less urgent than the head, if it fits then; else nobody."""
        if step.returned:
            return False  # copies to the host come first in a step, and would meet blocks that are still to be read
        urgency, order = self.policy.urgency, self.policy.order
        mine, place = urgency(head), order(head)
        rivals = [r for r in self.running.snapshot() if not r.owed_token and urgency(r) > mine and order(r) > place]

        def enough(victims: list[Request]) -> bool:
            return self.admission.fits_without(step, head, victims)

        victims = choose_victims(self.victim_rule, rivals, head, enough)
        for victim in victims:
            self._give_way(step, victim, head, ev.PreemptCause.MORE_URGENT)
        return bool(victims)

    def _skip_ahead(self, step: StepPass) -> None:
        """Admit later requests that fit, while nobody in front of them was passed by as many as allowed."""
        limit = self.config.skip_ahead
        while limit and step.left > 0:
            heads: list[Request] = []
            for request in peek_many(self.waiting, limit + 1):
                if heads and self._admit_if_fits(step, request) is None:
                    for head in heads:
                        head.passed += 1
                    names = [head.request_id for head in heads]
                    self._events.append(ev.Passed(request.request_id, names, heads[0].passed, limit))
                    break
                heads.append(request)
                if request.passed >= limit:
                    return
            else:
                return

    def _admit(self, step: StepPass, head: Request, need: Need) -> None:
        """From waiting to running, with blocks and the first chunk."""
        seq, hit = head.computing[0], need.hit
        free, cached = self.blocks.pool.free, self.blocks.pool.cached
        resumed = self._leave_waiting(head, step.now)
        head.owed_token = True
        head.passed = 0
        self.running.push(head)
        self._events.append(
            ev.Admitted(head.request_id, head.admitted_serial, resumed, need.blocks, free, need.watermark, cached)
        )
        aged = self.policy.on_admit(head, step.now, hit.tokens)
        if aged is not None:
            self._events.append(ev.Promoted(head.request_id, aged.cause, aged.before, aged.after, head.key))
        if self.blocks.looks_up(seq):
            found = hit.tokens, len(hit.blocks)
            self._events.append(ev.PrefixLookup(head.request_id, seq.num_tokens, *found, resumed, seq.index))
        if hit.blocks:
            self._adopt(step, seq, hit)
        tokens = min(seq.num_tokens - hit.tokens, step.left)
        end = hit.tokens + tokens
        whole = resumed or self.config.admission != "first-chunk"
        self._grow(seq, seq.num_tokens if whole else end)
        step.add(head, _chunk(seq, hit.tokens, tokens))
        self.admission.promise(head)


def _chunk(seq: Sequence, start: int, tokens: int) -> Chunk:
    """Work for a sequence; where its prompt is done, the request's other samples get their first tokens with it."""
    request = seq.request
    if start + tokens < len(seq.token_ids):
        return Chunk(seq, start, tokens, False)
    if request.beam is not None:
        return Chunk(seq, start, tokens, True, top=request.beam.looked_at)
    return Chunk(seq, start, tokens, True, [] if request.forked else request.sequences[1:])
