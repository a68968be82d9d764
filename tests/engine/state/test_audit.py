"""What the audit must see: a fold that shows something else than the engine gave, also of what has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vtop.engine.audit import AuditError
from vtop.engine.state.views import RequestView
from vtop_support.engines import AuditedEngine


class Letters:
    """A tokenizer of one letter per token."""

    is_fast = False
    all_special_ids: tuple[int, ...] = ()

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(97 + token % 26) for token in ids)


def engine_with_two() -> AuditedEngine:
    """`done` has ended, `goes-on` has not; each has two samples."""
    engine = AuditedEngine(32, tokenizer=Letters())
    for name, tokens in (("done", 4), ("goes-on", 30)):
        engine.add(name, [5, 6, 7, 8, 9], tokens, n=2, temperature=1.0)
    while engine.state.find("done") is None or not engine.finish_reason("done"):
        engine.step()
    return engine


def text(view: RequestView) -> None:
    view.sequences[1].text_parts.append("x")


def tokens(view: RequestView) -> None:
    view.sequences[1].output_tokens[-1] += 1


def sample_end(view: RequestView) -> None:
    view.sequences[0].finish_reason = "abort"


def reason(view: RequestView) -> None:
    view.finish_reason = "abort"


def message(view: RequestView) -> None:
    view.message = "something else"


def host_blocks(view: RequestView) -> None:
    view.sequences[0].host_blocks.append(0)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("goes-on", text, "text of sample 1"),
        ("goes-on", tokens, "tokens of sample 1"),
        ("goes-on", sample_end, "end of sample 0"),
        ("done", text, "text of sample 1"),
        ("done", tokens, "outputs"),
        ("done", reason, "reason"),
        ("done", message, "message"),
        ("done", host_blocks, "blocks after its end"),
    ],
)
def test_a_fold_that_shows_something_else_is_found(name: str, change: Callable[[RequestView], None], told: str) -> None:
    engine = engine_with_two()
    engine.check()
    view = engine.state.find(name)
    assert view is not None
    change(view)
    with pytest.raises(AuditError, match=f"{name} {told}"):
        engine.check()


def test_an_ended_request_that_the_fold_does_not_have_is_found() -> None:
    engine = engine_with_two()
    engine.state.finished.clear()
    with pytest.raises(AuditError, match="done ended, and is not among the finished ones"):
        engine.check()


def test_a_host_block_that_nobody_has_is_found() -> None:
    engine = AuditedEngine(8, preemption_mode="swap", num_host_blocks_override=8)
    engine.add("a", 4, 2)
    engine.run()
    host = engine.engine._blocks.host
    assert host._pool is not None
    host._pool.allocate(1)
    with pytest.raises(AuditError, match="reference count 1, 0 table entries"):
        engine.check()
