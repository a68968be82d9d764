"""What a run is asked to do from the start: prompts, a burst, for how long, recorded where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vtop.app.live.inject import Lengths, burst_prompts


@dataclass(frozen=True, slots=True)
class Work:
    """What to run, and for how long. `prompts` come first, then `burst` made-up ones."""

    prompts: Sequence[str] = ()
    burst: int = 0
    burst_lengths: Lengths = Lengths.MIXED
    duration: float | None = None
    record: Path | None = None

    @property
    def empty(self) -> bool:
        return not self.prompts and not self.burst

    def all_prompts(self, seed: int) -> Iterator[tuple[str, str]]:
        """(request id, prompt) of everything."""
        for number, prompt in enumerate(self.prompts, 1):
            yield f"r{number}", prompt
        if self.burst:
            made_up = burst_prompts(self.burst_lengths, self.burst, abs(seed))
            for number, prompt in enumerate(made_up, 1):
                yield f"b1-{number}", prompt
