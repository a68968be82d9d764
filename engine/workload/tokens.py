"""Token ids for texts in a simulation, which has no model and so no tokenizer."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

CHARACTERS = 4  # of a token; about what English takes
VOCABULARY = 32_000
FIRST_ID = 3  # as in workloads


@dataclass(frozen=True, slots=True)
class MadeUpIds:
    input_ids: list[int]


class MadeUpTokenizer:
    """Stands in for a tokenizer: every four characters are a token. Equal beginnings give equal ids."""

    def __call__(self, text: str) -> MadeUpIds:
        pieces = (text[at : at + CHARACTERS] for at in range(0, len(text), CHARACTERS))
        span = VOCABULARY - FIRST_ID
        return MadeUpIds([FIRST_ID + zlib.crc32(p.encode("utf-8", "surrogatepass")) % span for p in pieces])

    def decode(self, ids: list[int], **_options: bool) -> str:
        """Made-up ids say nothing."""
        return ""
