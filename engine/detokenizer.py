"""From token ids to text, a token at a time, never showing half a character."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

REPLACEMENT = "\ufffd"
_MOST_HELD = 64  # tokens held back at most; a character has four bytes, so a longer run is none
_KEPT = 8  # ids of context kept when that many were held
_KINDS = "_vtop_token_kinds"


class Detokenizer:
    """Incremental decoding of one output.

    The texts of `push` and `flush`, joined, are what the tokenizer decodes from all ids at once (without its clean-up
    of spaces). `prompt_tail_ids`, the last few ids of the prompt, are context only: with them, an output that begins
    with a space keeps it under tokenizers that strip the space at the start of a text.

    A token is decoded behind the tokens that were shown last, and only what it adds is passed on; so its cost does not
    grow with the length of the output. Text that ends in U+FFFD may be the beginning of a character and is held back.
    """

    def __init__(self, tokenizer: Any, skip_special_tokens: bool = True, prompt_tail_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._bytes, special = _kinds(tokenizer)
        self._ignored = special if skip_special_tokens else frozenset()
        # the window: context, then what is not shown yet
        self._ids = [i for i in prompt_tail_ids if i not in self._ignored]
        self._shown = len(self._ids)  # ids of the window that are context
        self._context = self._decode(self._ids).rstrip(REPLACEMENT) if self._ids else ""

    def push(self, token_id: int) -> str:
        """Take the next id; returns the text that became final, often ''."""
        if token_id in self._ignored:
            return ""
        self._ids.append(token_id)
        full = len(self._ids) - self._shown >= _MOST_HELD
        if token_id in self._bytes and not full:
            return ""  # byte tokens are decoded as one run: what they say is open until the run ends
        text = self._decode(self._ids)
        if len(text) <= len(self._context):
            if full:  # tokens without text
                del self._ids[self._shown :]
            return ""
        if text.endswith(REPLACEMENT):
            return self._show_all_but_last(text) if full else ""
        return self._show(text)

    def flush(self) -> str:
        """The text still held back, with U+FFFD for a character that was never completed. The output is over."""
        if len(self._ids) == self._shown:
            return ""
        return self._show(self._decode(self._ids))

    def _show(self, text: str) -> str:
        new = text[len(self._context) :]
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        self._context = self._decode(self._ids)
        return new

    def _show_all_but_last(self, text: str) -> str:
        """Of a long run without a whole character only the last U+FFFD can still turn into one."""
        new = text[len(self._context) : -1]
        self._ids = self._ids[-_KEPT:]
        self._shown = len(self._ids) - 1
        self._context = self._decode(self._ids)[:-1]
        return new

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False)
        return text

    def __copy__(self) -> Detokenizer:
        """One that goes on by itself from here."""
        new = object.__new__(Detokenizer)
        new.__dict__.update(self.__dict__)
        new._ids = list(self._ids)
        return new


def _kinds(tokenizer: Any) -> tuple[frozenset[int], frozenset[int]]:
    """(byte tokens, special tokens). Looked up once per tokenizer and kept on it: some have thousands."""
    known: tuple[frozenset[int], frozenset[int]] | None = getattr(tokenizer, _KINDS, None)
    if known is None:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        known = _byte_tokens(tokenizer), frozenset(i for i, token in added.items() if token.special)
        with suppress(AttributeError):
            setattr(tokenizer, _KINDS, known)
    return known


def _byte_tokens(tokenizer: Any) -> frozenset[int]:
    """Ids of <0x00> … <0xFF> when the tokenizer falls back to bytes that way; else none."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    try:
        if tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(names[:1])) != names[:1]:
            return frozenset()
        ids = tokenizer.convert_tokens_to_ids(names)
    except (AttributeError, TypeError, KeyError, IndexError):  # a tokenizer that knows no tokens by name
        return frozenset()
    return frozenset(ids)
