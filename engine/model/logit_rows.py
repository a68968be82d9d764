"""LogitRows: which tokens of a packed step go through the model's last layer, and where their logits lie."""

from __future__ import annotations

import torch

from vtop.engine.executor import Chunk
from vtop.kernels.api import AttentionBatch


class LogitRows:
    """Which packed tokens need logits: the last of every sampling chunk, and the prompt tokens that want theirs.

    sampling: (chunk index, row among the logits) of every chunk that samples.
    prompts: (chunk index, first row among the logits, count).
    """

    def __init__(self, chunks: list[Chunk], batch: AttentionBatch) -> None:
        starts = batch.query_starts.tolist()
        sampling = [i for i, chunk in enumerate(chunks) if chunk.sample]
        self.prompts: list[tuple[int, int, int]] = []
        asking = [i for i, chunk in enumerate(chunks) if _prompt_rows(chunk)]
        if not asking:
            self.sampling = [(i, row) for row, i in enumerate(sampling)]
            self._packed = [starts[i + 1] - 1 for i in sampling]
            self._all = len(self._packed) == batch.num_tokens
            return
        packed: list[int] = []
        place: dict[int, int] = {}  # packed token -> row
        for i in asking:
            count = _prompt_rows(chunks[i])
            self.prompts.append((i, len(packed), count))
            for token in range(starts[i], starts[i] + count):
                place[token] = len(packed)
                packed.append(token)
        self.sampling = []
        for i in sampling:
            token = starts[i + 1] - 1
            if token not in place:
                place[token] = len(packed)
                packed.append(token)
            self.sampling.append((i, place[token]))
        self._packed, self._all = packed, False

    def index(self, device: torch.device) -> torch.Tensor | None:
        """[R] packed tokens whose logits are wanted, int64; None means all."""
        if self._all:
            return None
        # A step that samples nothing still needs a valid, small index.
        return torch.tensor(self._packed or [0], dtype=torch.int64).to(device)


def _prompt_rows(chunk: Chunk) -> int:
    """How many of the chunk's tokens predict a prompt token whose log-probability is asked for."""
    if chunk.sequence.request.params.prompt_logprobs is None:
        return 0
    return max(0, min(chunk.num_tokens, chunk.sequence.prompt_len - 1 - chunk.start))
