"""ShareGPT dumps: lengths of the first question that was answered in every conversation. Their text is not kept."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from vtop.engine.traces.source import (
    MAX_LINE,
    MAX_TOKENS,
    Draft,
    Place,
    first_line,
    json_object,
    numbered_lines,
    opened,
)

_CHUNK = 1 << 18  # characters
_BLANK = " \t\r\n"


def estimated_tokens(text: str) -> int:
    """An estimate without a tokenizer: four ASCII characters or one other make a token, but a word at least one."""
    ascii_characters = sum(map(str.isascii, text)) if not text.isascii() else len(text)
    by_characters = math.ceil(ascii_characters / 4) + len(text) - ascii_characters
    return max(by_characters, len(text.split()))


def sharegpt(path: Path, count_tokens: Callable[[str], int] = estimated_tokens) -> Iterator[Draft]:
    """All at 0 s: a dump has no arrivals. The first question that was answered counts, with the system's text before
    it; conversations without one count as failed."""
    for place, conversation in _conversations(path):
        turns = conversation.get("conversations", conversation.get("messages"))
        if not isinstance(turns, list):
            raise place.bad(turns, "is no list of turns", "conversations")
        question, answer = _first_answered([_turn(place, turn) for turn in turns])
        prompt, output = (min(count_tokens(text), MAX_TOKENS) if text else 0 for text in (question, answer))
        yield Draft(0.0, prompt if answer else 1, output)


_ROLES = {"user": "human", "assistant": "gpt", "chatgpt": "gpt", "model": "gpt", "developer": "system"}


def _turn(place: Place, turn: Any) -> tuple[str, str]:
    """Who speaks, and what: {"from", "value"} or {"role", "content"}; content may be null, or a list with texts."""
    who, text = None, None
    if isinstance(turn, dict):
        who, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content", ""))
    if text is None:  # an answer that calls a tool and says nothing
        text = ""
    if isinstance(text, list):
        text = "\n".join(part["text"] for part in text if isinstance(part, dict) and isinstance(part.get("text"), str))
    if not isinstance(text, str) or not isinstance(who, str):
        remedy = 'is no turn; use {"from": "human" or "gpt", "value": text} or {"role": ..., "content": text}'
        raise place.bad(turn, remedy, "conversations")
    return _ROLES.get(who, who), text


def _first_answered(turns: list[tuple[str, str]]) -> tuple[str, str]:
    """The texts of the first human turn that a gpt turn follows, and of that; turns of one role in a row are one.

    What the system says belongs to the question. Both are empty when nothing is answered.
    """
    system: list[str] = []
    asked: list[str] = []
    answer: list[str] = []
    for who, text in turns:
        if who == "gpt" and asked:
            answer.append(text)
        elif answer:
            break
        elif who == "system":
            system.append(text)
        elif who == "human":
            asked.append(text)
        else:  # an opening of the model, or a tool: what was asked before it got no answer
            asked = []
    return ("\n".join(system + asked), "\n".join(answer)) if answer else ("", "")


def _conversations(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Elements of the JSON list, or the objects of JSON lines."""
    first = first_line(path)
    if first is not None and first[1] == "[":
        yield from _list_elements(path)
        return
    for place, line in numbered_lines(path):
        yield place, json_object(place, line)


def _list_elements(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Elements of one large JSON list, without holding it: such files have hundreds of megabytes, often on one line."""
    decoder = json.JSONDecoder()
    with opened(path) as file:
        reader = _Text(path, file)
        reader.take("[")
        while reader.peek() != "]":
            start = reader.place()
            yield start, reader.element(decoder)
            if reader.peek() == ",":
                reader.take(",")
            elif reader.peek() != "]":
                raise reader.place().bad(reader.peek(), "use a comma or ] after a conversation")


class _Text:
    """A window on a file's text that moves forward."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._line = 1
        self._ended = False

    def place(self) -> Place:
        return Place(self._path, self._line)

    def _more(self) -> bool:
        """Drop what was read and append a chunk. False at the end of the file."""
        if self._ended:
            return False
        data = self._file.read(_CHUNK)
        self._ended = not data
        try:
            self._text = self._text[self._at :] + self._decode.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise self.place().bad(data[:20], "is not UTF-8 text") from error
        self._at = 0
        return not self._ended

    def _move(self, to: int) -> None:
        self._line += self._text.count("\n", self._at, to)
        self._at = to

    def peek(self) -> str:
        """The next character that is not blank."""
        while True:
            at = self._at
            while at < len(self._text) and self._text[at] in _BLANK:
                at += 1
            self._move(at)
            if at < len(self._text):
                return self._text[at]
            if not self._more():
                raise self.place().bad("", "the file ends inside its list; it was cut")

    def take(self, character: str) -> None:
        if self.peek() != character:
            raise self.place().bad(self._text[self._at : self._at + 20], f"use {character}")
        self._move(self._at + 1)

    def element(self, decoder: json.JSONDecoder) -> dict[str, Any]:
        """The JSON object that comes next."""
        if self.peek() != "{":
            raise self.place().bad(self._text[self._at : self._at + 20], "is no conversation; use a list of objects")
        want = 1  # characters to have before trying (again): doubling keeps retries cheap
        while True:
            while len(self._text) - self._at < want and self._more():
                pass
            try:
                value, end = decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                want = 2 * (len(self._text) - self._at)
                if isinstance(error, RecursionError) or self._ended or want > 2 * MAX_LINE:
                    start = self._text[self._at : self._at + 80]
                    raise self.place().bad(start, f"is no JSON object of a conversation ({error})") from error
            else:
                self._move(end)
                assert isinstance(value, dict)
                return value
