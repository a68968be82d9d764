"""An executor that computes nothing: it moves a clock by what a cost model says, and makes up tokens."""

from __future__ import annotations

import math

from vtop.engine.clock import ManualClock
from vtop.engine.executor import Chunk, ExecutorRates, Logprob, SampledToken, StepOutput, StepPlan
from vtop.engine.request import Sequence
from vtop.engine.sim.cost_model import CostModel, StepLoad

VOCABULARY = 32_000
FIRST_TOKEN = 3  # as in workloads: below are special ones
_MIX = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1
_BY_REQUEST, _BY_SAMPLE, _BY_POSITION = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_TOKENS = [SampledToken(token) for token in range(FIRST_TOKEN, VOCABULARY)]  # read by everybody, changed by nobody


class VirtualExecutor:
    """Implements Executor. Tokens depend on (seed, position, sequence) only, so that no two requests share outputs.

    `load` and `seconds` are those of the latest step.
    """

    def __init__(
        self, cost: CostModel, clock: ManualClock, num_blocks: int, num_host_blocks: int = 0, seed: int = 0
    ) -> None:
        self.cost = cost
        self.clock = clock
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.eos_token_ids: frozenset[int] = frozenset()
        self.load = StepLoad()
        self.seconds = 0.0
        self._seed = seed
        swap = cost.swap_s_per_block
        self._rates = ExecutorRates(
            swap_bytes_per_second=1.0 / swap if swap > 0 else math.inf,  # a block counts as one byte
            prefill_tokens_per_second=cost.prefill_tokens_per_second,
            bytes_per_block=1,
        )

    @property
    def rates(self) -> ExecutorRates:
        return self._rates

    def execute(self, plan: StepPlan) -> StepOutput:
        """Advance the clock by the cost of the plan."""
        self.load = load = StepLoad.of(plan)
        self.seconds = self.cost.seconds(load)
        self.clock.advance(self.seconds)
        output = StepOutput([self._result(chunk) if chunk.sample else None for chunk in plan.chunks])
        for index, chunk in enumerate(plan.chunks):
            if chunk.forks and chunk.sample:
                output.forked[index] = [self._token(child) for child in chunk.forks]
        output.swap_seconds = self.cost.swap_s_per_block * load.swapped
        output.model_seconds = self.seconds - output.swap_seconds
        return output

    def resize(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def close(self) -> None:
        """Nothing to give back."""

    def _result(self, chunk: Chunk) -> SampledToken:
        if not chunk.top:
            return self._token(chunk.sequence)
        top = self._likeliest(chunk)
        return SampledToken(top[0].token_id, top[0].logprob, top)

    def _token(self, seq: Sequence) -> SampledToken:
        request = seq.request
        if request.params.needs_logprob:
            number = self._hash(request.number, len(seq.token_ids), seq.index)
            return SampledToken(FIRST_TOKEN + number % (VOCABULARY - FIRST_TOKEN), -(number >> 40) / 2**24)
        # the usual case, a million times over: cheap, and far apart for requests, samples and positions
        number = (request.number * _BY_REQUEST + seq.index * _BY_SAMPLE + len(seq.token_ids) * _BY_POSITION) & _WORD
        return _TOKENS[(number >> 24) % (VOCABULARY - FIRST_TOKEN)]

    def _likeliest(self, chunk: Chunk) -> tuple[Logprob, ...]:
        """Continuations of a beam, best first; what they are depends on the beam's last token."""
        seq = chunk.sequence
        found: list[Logprob] = []
        taken: set[int] = set()
        last, logprob, draw = seq.token_ids[-1], 0.0, 0
        while len(found) < chunk.top:
            draw += 1
            number = self._hash(seq.request.number, len(seq.token_ids), last, draw)
            token = FIRST_TOKEN + number % (VOCABULARY - FIRST_TOKEN)
            if token not in taken:
                taken.add(token)
                logprob -= 0.7 * (0.5 + (number >> 40) / 2**24)
                found.append(Logprob(token, logprob, len(found) + 1))
        return tuple(found)

    def _hash(self, *parts: int) -> int:
        value = self._seed
        for part in parts:
            value = ((value ^ part) * _MIX + 0x632BE59BD9B4E019) & _WORD
            value ^= value >> 29
        return value
