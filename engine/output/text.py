"""TextOutput: turns sampled tokens into text and RequestOutputs, and applies the stop rules.

Order of the rules: below min_tokens none but the length; then end tokens, stop token ids, stop strings, length.
The text of beams, which live before anybody knows whether they are outputs, is at the end.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from copy import copy
from dataclasses import dataclass

from vtop.engine.beam import Choice, Hypothesis
from vtop.engine.clock import Clock
from vtop.engine.executor import Logprob, SampledToken, Tokenizer
from vtop.engine.output.detokenizer import Detokenizer, StopStrings
from vtop.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput, TokenLogprobs
from vtop.engine.request import FinishReason, Request, Sequence
from vtop.engine.sched.output import Accepted

KEEP_CLOSED = 32  # outputs of ended requests


@dataclass(slots=True)
class _Open:
    """What is kept of an alive request. One detokenizer and stop matcher per sequence, made when needed."""

    output: RequestOutput
    ends: frozenset[int]
    detokenizers: list[Detokenizer | None]
    stops: list[StopStrings | None]
    told: int = -1  # the round of `take_changed` in which it was last marked


class TextOutput:
    """An OutputProcessor. Without a tokenizer, or with detokenize off, text stays empty."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_ids: frozenset[int], clock: Clock) -> None:
        self._tokenizer = tokenizer
        self._eos = eos_token_ids
        self._clock = clock
        self._open: dict[Request, _Open] = {}
        self._closed: dict[Request, RequestOutput] = {}  # the latest, for the audit
        self._changed: list[RequestOutput] = []
        self._round = 0

    def open(self, request: Request) -> None:
        """A request was accepted. Must come before its first token."""
        params = request.params
        tokenizer = self._tokenizer if params.detokenize else None
        samples, detokenizers, stops = [], [], []
        tail = request.sequences[0].token_ids[-PROMPT_TAIL:]
        for seq in request.sequences:
            samples.append(CompletionOutput(seq.index))
            if params.logprobs is not None:
                samples[-1].logprobs = []
                samples[-1].cumulative_logprob = 0.0
            detokenizers.append(
                Detokenizer(tokenizer, params.skip_special_tokens, tail) if tokenizer is not None else None
            )
            stops.append(StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None)
        output = RequestOutput(
            request.request_id,
            request.prompt,
            seq.token_ids[: seq.prompt_len],
            samples,
            RequestMetrics(request.arrival),
        )
        if params.prompt_logprobs is not None:
            output.prompt_logprobs = [None] * seq.prompt_len
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        self._open[request] = _Open(output, ends, detokenizers, stops)

    def forget(self, request: Request) -> None:
        del self._open[request]

    def accept(self, seq: Sequence, sampled: SampledToken) -> Accepted:
        request = seq.request
        entry = self._open[request]
        self._mark(entry)
        sample = entry.output.outputs[seq.index]
        self._record(entry, seq, sample, sampled)
        params = request.params
        free = seq.num_output >= params.min_tokens  # to stop
        by_token = free and sampled.token_id in entry.ends
        text = ""
        detokenizer = entry.detokenizers[seq.index]
        if detokenizer is not None and (not by_token or params.include_stop_str_in_output):
            text = detokenizer.push(sampled.token_id)
        stops = entry.stops[seq.index]
        if stops is not None:
            text, matched = stops.push(text, detokenizer.open_text if detokenizer is not None else "", search=free)
            if matched is not None:
                entry.detokenizers[seq.index] = entry.stops[seq.index] = None  # nothing after it is shown
                sample.append_text(text)
                return Accepted(text, FinishReason.STOP, matched)
        sample.append_text(text)
        if by_token:
            return Accepted(text, FinishReason.STOP, sampled.token_id)
        if len(seq.token_ids) >= request.limit:
            return Accepted(text, FinishReason.LENGTH)
        return Accepted(text)

    def end(self, seq: Sequence, reason: FinishReason, stop_reason: str | int | None) -> str:
        entry = self._open[seq.request]
        self._mark(entry)
        sample = entry.output.outputs[seq.index]
        rest = self._flush(entry, seq.index)
        sample.append_text(rest)
        sample.finish_reason, sample.stop_reason = reason.value, stop_reason
        entry.detokenizers[seq.index] = entry.stops[seq.index] = None
        return rest

    def grow_beams(self, request: Request) -> None:
        self._note_time(self._open[request])

    def close_beams(self, request: Request, best: Sequence_[Hypothesis]) -> list[str]:
        entry = self._open[request]
        params = request.params
        tokenizer = self._tokenizer if params.detokenize else None
        texts = ["" if tokenizer is None else text_of(tokenizer, request, found) for found in best]
        outputs = []
        for index, (found, text) in enumerate(zip(best, texts, strict=True)):
            output = CompletionOutput(index, list(found.tokens), found.logprob)
            output.append_text(text)
            if params.logprobs is not None:
                output.logprobs = [_choice(*each) for each in zip(found.tokens, found.choices, strict=True)]
            output.finish_reason, output.stop_reason = found.reason, found.stop
            outputs.append(output)
        entry.output.outputs = outputs or entry.output.outputs[: params.n]
        return texts

    def close(self, request: Request) -> str:
        entry = self._open[request]
        self._mark(entry)
        output = self._closed[request] = entry.output
        if len(self._closed) > KEEP_CLOSED:
            del self._closed[next(iter(self._closed))]
        output.finished = True
        output.message = request.finish_message
        output.metrics.finished_time = self._clock.now()
        output.metrics.first_scheduled_time = request.first_scheduled
        output.metrics.preemptions = request.preemptions
        shown = ""
        for index, sample in enumerate(output.outputs):
            if sample.finish_reason is not None:
                continue  # ended before the request, or a hypothesis
            rest = self._flush(entry, index)
            sample.append_text(rest)
            sample.finish_reason = request.finish_reason.value if request.finish_reason else None
            sample.stop_reason = request.stop_reason
            shown = shown or rest
        if request.params.num_samples > request.params.n and request.beam is None:
            output.outputs = [output.outputs[seq.index] for seq in request.chosen()]
        del self._open[request]
        return shown

    def fail(self, request: Request) -> None:
        entry = self._open.pop(request, None)
        if entry is not None:
            self._mark(entry)
            entry.output.finished, entry.output.message = True, request.finish_message
            for sample in entry.output.outputs:
                sample.finish_reason, sample.stop_reason = FinishReason.FAILED.value, None

    def add_prompt_logprobs(self, seq: Sequence, entries: list[tuple[int, Logprob, tuple[Logprob, ...]]]) -> None:
        """Log-probabilities of prompt tokens at their positions. A position told again is the same: it is kept."""
        known = self._open[seq.request].output.prompt_logprobs
        if known is not None:
            for position, chosen, top in entries:
                known[position] = _table(chosen, top)

    def result(self, request: Request) -> RequestOutput | None:
        entry = self._open.get(request)
        return self._closed.get(request) if entry is None else entry.output

    def take_changed(self) -> list[RequestOutput]:
        """Outputs that changed since the last call, each once."""
        changed, self._changed = self._changed, []
        self._round += 1
        return changed

    def _mark(self, entry: _Open) -> None:
        if entry.told != self._round:
            entry.told = self._round
            self._changed.append(entry.output)

    def _record(self, entry: _Open, seq: Sequence, sample: CompletionOutput, sampled: SampledToken) -> None:
        self._note_time(entry)
        sample.token_ids.append(sampled.token_id)
        if sampled.logprob is None:
            return
        seq.cumulative_logprob += sampled.logprob
        if sample.logprobs is not None:
            sample.cumulative_logprob = seq.cumulative_logprob
            sample.logprobs.append(_table(Logprob(sampled.token_id, sampled.logprob, sampled.rank), sampled.top))

    def _note_time(self, entry: _Open) -> None:
        now = self._clock.now()
        metrics = entry.output.metrics
        if metrics.first_token_time is None:
            metrics.first_token_time = now
        metrics.last_token_time = now

    def _flush(self, entry: _Open, index: int) -> str:
        detokenizer, stops = entry.detokenizers[index], entry.stops[index]
        text = detokenizer.flush() if detokenizer is not None else ""
        if stops is not None:
            text = stops.push(text, search=False)[0] + stops.flush()
        return text


def _table(chosen: Logprob, top: tuple[Logprob, ...]) -> TokenLogprobs:
    table = {entry.token_id: entry for entry in top}
    table.setdefault(chosen.token_id, chosen)
    return table


def _choice(token: int, choice: Choice) -> TokenLogprobs:
    top = tuple(Logprob(other, logprob, rank) for rank, (other, logprob) in enumerate(choice.likeliest, start=1))
    return _table(Logprob(token, choice.logprob, choice.rank), top)


PROMPT_TAIL = 6  # tokens before the output that its first text depends on: a space may belong to it


class BeamText:
    """The text of one beam of `request`, a token at a time, by the stop rules of any output."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
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

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self._empty = BeamText(tokenizer, request)
        self._parents: dict[tuple[int, ...], BeamText] = {}
        self._candidates: dict[tuple[int, ...], BeamText] = {(): self._empty}

    def __call__(self, tokens: tuple[int, ...]) -> str | None:
        if tokens[:-1] not in self._parents:  # the next step
            self._parents, self._candidates = self._candidates, {}
        text = self._parents[tokens[:-1]].branch()
        self._candidates[tokens] = text
        return text.push(tokens[-1])[1]


def text_of(tokenizer: Tokenizer, request: Request, hypothesis: Hypothesis) -> str:
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
