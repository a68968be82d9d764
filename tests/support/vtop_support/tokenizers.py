"""Real tokenizers trained here on a few lines: the byte-level kind and the SentencePiece kind with byte tokens."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

LINES = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "def add(a, b):\n    return a + b\n",
    "Blocks are taken from the free list; blocks go back to the free list.",
    "naïve café, семь мир, 世界",
]


@cache
def byte_level() -> Any:
    """Byte-level BPE without merges over non-Latin text: most characters are several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


@cache
def metaspace() -> Any:
    """The SentencePiece kind: spaces as ▁, one prepended and stripped again, bytes as <0xNN>."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=specials[:2], show_progress=False)
    tokenizer.train_from_iterator([line.replace(" ", "▁") for line in LINES[:3]], trainer)
    tokenizer.add_tokens([])
    vocab = tokenizer.get_vocab()
    model = models.BPE(
        vocab={**vocab, **{name: len(vocab) + i for i, name in enumerate(specials[2:])}},
        merges=_merges(tokenizer),
        byte_fallback=True,
        unk_token="<unk>",
        fuse_unk=True,
    )
    tokenizer.model = model
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>")


def _merges(tokenizer: Any) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


TOKENIZERS = {"byte-level": byte_level, "metaspace": metaspace}
