"""Text of beams: the stop strings that end them, and what a hypothesis says."""

from __future__ import annotations

from copy import copy
from typing import Any

from vtop.engine.beam import Hypothesis
from vtop.engine.output.detokenizer import Detokenizer
from vtop.engine.output.stop import StopStrings
from vtop.engine.request import Request

PROMPT_TAIL = 6  # tokens before the output that its first text depends on: a space may belong to it


class BeamText:
    """The text of one beam of `request`, a token at a time, by the stop rules of any output."""

    def __init__(self, tokenizer: Any, request: Request) -> None:
        params = request.params
        tail = request.sequences[0].token_ids[: request.prompt_len][-PROMPT_TAIL:]
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens, tail)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        self._min_tokens = params.min_tokens
        self._length = 0

    def push(self, token: int) -> tuple[str, str | None]:
        """(text that became final with the next token, the stop string in which it ends). After one push no more."""
        self._length += 1
        text = self._detokenizer.push(token)
        if self._stops is None:
            return text, None
        return self._stops.push(text, self._detokenizer.open_text, search=self._length >= self._min_tokens)

    def flush(self) -> str:
        """What was held back of a text that no stop string ended."""
        text = self._detokenizer.flush()
        if self._stops is None:
            return text
        return self._stops.push(text, search=False)[0] + self._stops.flush()

    def branch(self) -> BeamText:
        """The text of another beam that is equal so far."""
        new = copy(self)
        new._detokenizer, new._stops = copy(self._detokenizer), copy(self._stops)
        return new


class BeamStops:
    """Finds the stop string in which the output of a beam ends. Called with each candidate, longer by one each step."""

    def __init__(self, tokenizer: Any, request: Request) -> None:
        self._empty = BeamText(tokenizer, request)
        self._parents: dict[tuple[int, ...], BeamText] = {}
        self._candidates: dict[tuple[int, ...], BeamText] = {(): self._empty}

    def __call__(self, tokens: tuple[int, ...]) -> str | None:
        if tokens[:-1] not in self._parents:  # the next step
            self._parents, self._candidates = self._candidates, {}
        text = self._parents[tokens[:-1]].branch()
        self._candidates[tokens] = text
        return text.push(tokens[-1])[1]


def text_of(tokenizer: Any, request: Request, hypothesis: Hypothesis) -> str:
    """The text of a finished beam. An end token is shown only with include_stop_str_in_output."""
    text, tokens = BeamText(tokenizer, request), hypothesis.tokens
    if isinstance(hypothesis.stop, int) and not request.params.include_stop_str_in_output:
        tokens = tokens[:-1]
    parts: list[str] = []
    for token in tokens:
        new, matched = text.push(token)
        parts.append(new)
        if matched is not None:
            return "".join(parts)
    return "".join(parts) + text.flush()
