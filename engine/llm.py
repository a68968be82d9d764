"""LLM: offline batches. Names and behaviour are those that users of vLLM know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any

from vtop.engine.adding import Prompt
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue
from vtop.engine.executor import Tokenizer
from vtop.engine.outputs import RequestOutput
from vtop.engine.request import SamplingParams


class LLM:
    """A model with its engine, for generating whole batches.

    Options are the fields of EngineConfig: `LLM(model="tiny", num_gpu_blocks_override=64)`. Raises BadValue or
    ModelRefused with one line that says what to change. Use as a context manager, or call `close`, to give memory back.
    """

    def __init__(self, model: str = "tiny", *, engine: LLMEngine | None = None, **options: Any) -> None:
        known = {f.name for f in fields(EngineConfig)}
        for name in options:
            if name not in known:
                raise BadValue(name, options[name], f"no such option; there are {', '.join(sorted(known))}")
        self.engine = engine or LLMEngine.from_config(EngineConfig(model=model, **options))
        self._batches = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[float] | None = None,
    ) -> list[RequestOutput]:
        """Run prompts (text or token ids) to their ends; results are in the order of the prompts.

        One SamplingParams serves all prompts, or there is one for each. Raises BadValue, before anything runs, when a
        prompt can never run; requests that fail later have finish_reason `failed` and a message.
        """
        batch = _as_list(prompts)
        params = _one_each(
            "sampling_params",
            SamplingParams() if sampling_params is None else sampling_params,
            SamplingParams,
            len(batch),
        )
        priorities = _one_each("priority", priority if priority is not None else 0, (int, float), len(batch))
        self._batches += 1
        ids = [f"{self._batches}-{index}" for index in range(len(batch))]
        try:
            for request_id, prompt, one, urgency in zip(ids, batch, params, priorities, strict=True):
                self.engine.add_request(request_id, prompt, one, priority=urgency)
            with self.engine.clock.watched():
                return self._run(ids, use_tqdm)
        except BaseException:
            self.engine.abort_request(ids)
            raise

    def _run(self, ids: list[str], use_tqdm: bool) -> list[RequestOutput]:
        from tqdm.auto import tqdm

        done: dict[str, RequestOutput] = {}
        wanted = set(ids)
        tokens = 0
        with tqdm(total=len(ids), desc="Processed prompts", disable=not use_tqdm) as bar:
            while len(done) < len(ids):
                for output in self.engine.step():
                    if not output.finished or output.request_id not in wanted:
                        continue
                    done[output.request_id] = output
                    tokens += sum(len(sample.token_ids) for sample in output.outputs)
                    bar.update(1)
                    elapsed = bar.format_dict["elapsed"]
                    if elapsed:
                        bar.set_postfix_str(f"output {tokens / elapsed:.1f} tokens/s", refresh=False)
        return [done[request_id] for request_id in ids]

    def get_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, None when it has none."""
        return self.engine.tokenizer

    def close(self) -> None:
        """Give back the model and its memory."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A batch, from one prompt (text, ids, dict) or several."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise BadValue("prompts", prompts, "give text, token ids, or a list of these")
    batch: list[Any] = list(prompts)
    if batch and all(isinstance(item, int) for item in batch):
        return [batch]
    return batch


def _one_each(name: str, given: Any, kind: type | tuple[type, ...], count: int) -> list[Any]:
    if isinstance(given, kind):
        return [given] * count
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadValue(name, given, f"give {_kind_name(kind)}, or a list with one for each prompt")
    several = list(given)
    if len(several) != count:
        raise BadValue(name, f"{len(several)} of them", f"give one, or one for each of the {count} prompts")
    return several


def _kind_name(kind: type | tuple[type, ...]) -> str:
    return kind.__name__ if isinstance(kind, type) else "a number"
