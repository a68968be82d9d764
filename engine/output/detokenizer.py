"""From token ids to the text that may be shown: never half a character, never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from vtop.engine.executor import Tokenizer

REPLACEMENT = "\ufffd"
_MOST_HELD = 64  # tokens held back at most
_KEPT = 8  # ids of context kept when that many were held
_KINDS = "_vtop_token_kinds"


class Detokenizer:
    """Incremental decoding of one output.

    The texts of `push` and `flush`, joined, are what the tokenizer decodes from all ids at once (without its clean-up
    of spaces). `prompt_tail_ids`, the last few ids of the prompt, are context only: with them, an output that begins
    with a space keeps it under tokenizers that strip the space at the start of a text, and one that completes the
    prompt's last character gives that character.

    A token is decoded behind the tokens that were shown last, and only what it adds is passed on; so its cost does not
    grow with the length of the output. Text that ends in U+FFFD may be the beginning of a character and is held back.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt_tail_ids: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._bytes, special = _kinds(tokenizer)
        self._ignored = special if skip_special_tokens else frozenset()
        # the window: context, then what is not shown yet
        self._ids = self._whole_characters([i for i in prompt_tail_ids if i not in self._ignored])
        self._shown = len(self._ids)  # ids of the window that are context
        self._context = self._decode(self._ids) if self._ids else ""

    def push(self, token_id: int) -> str:
        """Take the next id; returns the text that became final, often ''."""
        if token_id in self._ignored:
            return ""
        self._ids.append(token_id)
        full = len(self._ids) - self._shown >= _MOST_HELD
        if token_id in self._bytes:  # byte tokens are decoded as one run: what they say is open until the run ends
            return self._show(self._character_begins()) if full else ""
        text = self._decode(self._ids)
        new = self._added(text)
        if not new:
            if full:  # tokens without text
                del self._ids[self._shown :]
            return ""
        if text.endswith(REPLACEMENT):
            return self._show_all_but_last(new) if full else ""
        return self._show(len(self._ids), new)

    @property
    def open_text(self) -> str:
        """What the tokens held back say as far as they go: what `flush` would give now. Later ones may change it."""
        return self._added(self._decode(self._ids)) if len(self._ids) > self._shown else ""

    def flush(self) -> str:
        """The text still held back, with U+FFFD for a character that was never completed. The output is over."""
        text = self.open_text
        del self._ids[self._shown :]
        return text

    def _added(self, text: str) -> str:
        """What the window's text says behind its context."""
        if text.startswith(self._context):
            return text[len(self._context) :]
        before = self._context.rstrip(REPLACEMENT)  # the prompt ended inside a character, which was completed
        if text.startswith(before) and before != self._context:
            return text[len(before) :]
        return self._decode(self._ids[self._shown :])  # bytes that are none of a character spoil the whole run

    def _show(self, end: int, new: str | None = None) -> str:
        """Pass on the text of the window up to `end`; what is behind it stays held back."""
        if new is None:
            new = self._added(self._decode(self._ids[:end]))
        context = self._ids[self._shown : end]
        if end < len(self._ids) or self._ids[end - 1] in self._bytes:  # the run goes on: little that it could spoil
            context = self._whole_characters(context[-_KEPT:])
        self._ids = context + self._ids[end:]
        self._shown = len(context)
        self._context = self._decode(context)
        return new

    def _show_all_but_last(self, new: str) -> str:
        """Of a long run without a whole character only the last U+FFFD can still turn into one."""
        self._ids = self._ids[-_KEPT:]
        self._shown = len(self._ids) - 1
        self._context = self._decode(self._ids)[:-1]
        return new[:-1]

    def _character_begins(self) -> int:
        """Where in the window, which ends in a byte token, the character of the last bytes begins; its end if whole."""
        end = len(self._ids)
        for back in range(1, 5):
            byte = self._bytes.get(self._ids[end - back], 0)
            if byte >= 0xC0:
                size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                return end - back if back < size else end
            if byte < 0x80:
                break
        return end

    def _whole_characters(self, ids: list[int]) -> list[int]:
        """Without byte tokens at the start whose character began before: they would spoil all the bytes after them."""
        start = 0
        while start < len(ids) and 0x80 <= self._bytes.get(ids[start], 0) < 0xC0:
            start += 1
        return ids[start:]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False)

    def __copy__(self) -> Detokenizer:
        """One that goes on by itself from here."""
        new = object.__new__(Detokenizer)
        new.__dict__.update(self.__dict__)
        new._ids = list(self._ids)
        return new


def _kinds(tokenizer: Tokenizer) -> tuple[dict[int, int], frozenset[int]]:
    """(bytes of byte tokens, special tokens). Looked up once per tokenizer and kept on it: some have thousands."""
    known: tuple[dict[int, int], frozenset[int]] | None = getattr(tokenizer, _KINDS, None)
    if known is None:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        known = _byte_tokens(tokenizer), frozenset(i for i, token in added.items() if token.special)
        with suppress(AttributeError):
            setattr(tokenizer, _KINDS, known)
    return known


def _byte_tokens(tokenizer: Any) -> dict[int, int]:
    """Id -> byte of <0x00> … <0xFF> when the tokenizer falls back to bytes that way; else none."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    try:
        if tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(names[:1])) != names[:1]:
            return {}
        ids = tokenizer.convert_tokens_to_ids(names)
    except (AttributeError, TypeError, KeyError, IndexError):  # a tokenizer that knows no tokens by name
        return {}
    return {token_id: byte for byte, token_id in enumerate(ids)}


class StopStrings:
    """Watches one output for `stop`; `include` keeps the matched string in the text that is shown.

    Of several matches the one that is complete first ends the text (of those that end together, the longest), so the
    result does not depend on how the text was cut into pieces. A string that came to its end while nobody searched is
    none any more; one that only began then is.
    """

    def __init__(self, stop: tuple[str, ...], include: bool = False) -> None:
        self._stop = stop
        self._include = include
        self._held = ""
        self._seen = ""  # `_held` and the open text behind it: no stop string ends in it any more

    def push(self, text: str, open_text: str = "", *, search: bool = True) -> tuple[str, str | None]:
        """(text that may be shown now, the stop string that was matched or None). After a match push no more.

        `open_text` is what the tokens that the detokenizer holds back say so far: a stop string may end in it, and then
        it is final too.
        """
        buffer = self._held + text
        whole = buffer + open_text.rstrip(REPLACEMENT)  # which may still become a character
        if search:
            found = self._first(whole, _shared(self._seen, whole))
            if found is not None:
                start, stop = found
                self._held = self._seen = ""
                return (whole[: start + len(stop)] if self._include else whole[:start]), stop
        shown = len(buffer) - self._longest_beginning(buffer)
        self._held = buffer[shown:]
        if not self._seen.startswith(whole):  # else the open text is inside a character, and will be longer again
            self._seen = whole
        self._seen = self._seen[shown:]
        return buffer[:shown], None

    def flush(self) -> str:
        """What was held back; the output ended without a match."""
        held, self._held, self._seen = self._held, "", ""
        return held

    def _first(self, text: str, seen: int) -> tuple[int, str] | None:
        """Of the stop strings that end behind the first `seen` characters, the one that ends first, and its start."""
        best: tuple[int, int] | None = None  # (end, start)
        chosen = ""
        for stop in self._stop:
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best, chosen = (start + len(stop), start), stop
        return None if best is None else (best[1], chosen)

    def _longest_beginning(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins a stop string."""
        for length in range(min(len(buffer), max(map(len, self._stop)) - 1), 0, -1):
            end = buffer[len(buffer) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop):
                return length
        return 0


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their start."""
    most = min(len(one), len(other))
    return next((at for at in range(most) if one[at] != other[at]), most)
