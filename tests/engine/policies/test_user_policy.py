"""A user's policy file: the example in the README, live reload, and every way in which one can be wrong."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop.engine.thread import EngineThread
from vtop_support.engines import AuditedEngine

EXAMPLE = Path(__file__).parents[2] / "data" / "example_policy.py"
OLDEST_LAST = """
    class Mine:
        def key(self, request):
            return -request.number
"""


def write(path: Path, text: str) -> str:
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return f"{path}:Mine"


def running(spec: str, **options: Any) -> AuditedEngine:
    engine = AuditedEngine(32, max_num_seqs=1, scheduling_policy=spec, **options)
    for i, size in enumerate((5, 3, 4)):
        engine.add(f"r{i}", size, 2)
    return engine


def order(engine: AuditedEngine) -> list[str]:
    return [v.id for v in engine.state.waiting_order()]


def test_the_example_orders_and_chooses_victims() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 22
    engine = running(f"{EXAMPLE}:SmallFirst+fcfs")
    engine.check()
    assert order(engine) == ["r1", "r2", "r0"]
    engine.run()
    engine = AuditedEngine(6, scheduling_policy=f"{EXAMPLE}:SmallFirst", victim="policy")
    engine.add("a", 8, 12)
    engine.step()
    engine.add("b", 8, 12)
    engine.run()
    assert engine.events(ev.Preempted)[0].id == "b"


def test_it_is_read_again_on_reload_and_composes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    spec = write(file, OLDEST_LAST)
    engine = running(spec)
    engine.check()
    assert order(engine) == ["r2", "r1", "r0"]
    write(file, OLDEST_LAST.replace("-request.number", "+request.number"))  # of equal size, within the same second
    engine.engine.reload_policy()
    engine.check()
    assert order(engine) == ["r0", "r1", "r2"]
    write(file, OLDEST_LAST.replace("-request.number", "request.prompt_len, 0, -request.number"))
    engine.engine.reload_policy()
    engine.check()
    assert order(engine) == ["r1", "r2", "r0"]
    engine.engine.set_option("scheduling_policy", f"priority+{spec}+fair")
    engine.engine.set_priority("r0", 3)
    engine.check()
    assert order(engine) == ["r0", "r1", "r2"] and engine.state.fair_at == 4
    engine.run()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Mine:\n    def key(self, request)\n", "line 2"),
        ("class Other: pass\n", "has no class Mine"),
        ("Mine = 3\n", "is not a class"),
        ("class Mine: pass\n", r"no method key"),
        ("raise RuntimeError('at import')\n", "RuntimeError: at import"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("import no_such_module\n", "no_such_module"),
        ("class Mine:\n    def __init__(self, x): pass\n    def key(self, r): return 0\n", "TypeError"),
        ("class Mine:\n    def key(self, request): return 1 / 0\n", "ZeroDivisionError"),
        ("class Mine:\n    def key(self, request): return request.nothing\n", "AttributeError"),
        ("class Mine:\n    def key(self, request): return 'abc'\n", "TypeError: it returned 'abc'"),
        ("class Mine:\n    def key(self, request): return ()\n", "TypeError"),
        ("class Mine:\n    def key(self, request): return None\n", "TypeError"),
        ("class Mine:\n    def key(self, request): return float('nan')\n", "nan"),
        ("class Mine:\n    def key(self, request): return float('inf'), 1\n", "inf"),
        ("class Mine:\n    def key(self, request): return (0,) * (1 + request.number)\n", "numbers where it gave"),
        ("class Mine:\n    def key(self, request): return 1 if request.number != 2 else 1 / 0\n", "ZeroDivisionError"),
        ("class Mine:\n    def on_arrival(self, r, now): 1 / 0\n    def key(self, r): return 0\n", "on_arrival failed"),
        ("\x00", "null bytes|source code"),
    ],
)
def test_a_bad_one_is_told_and_the_old_one_stays(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.py"
    engine = running(write(file, OLDEST_LAST))
    file.write_text(text)
    for change in (engine.engine.reload_policy, lambda: engine.engine.set_option("scheduling_policy", f"{file}:Mine")):
        with pytest.raises(BadValue, match=message) as error:
            change()
        assert "\n" not in str(error.value)
    engine.check()
    assert order(engine) == ["r2", "r1", "r0"] and not engine.events(ev.Switched)
    engine.run()


def test_a_missing_file_and_one_at_the_start(tmp_path: Path) -> None:
    engine = running("fcfs")
    with pytest.raises(BadValue, match="cannot be read"):
        engine.engine.set_option("scheduling_policy", f"{tmp_path}/none.py:Mine")
    engine.run()
    with pytest.raises(BadValue, match="cannot be read"):
        AuditedEngine(8, scheduling_policy=f"{tmp_path}/none.py:Mine")


def test_a_fault_while_it_orders_costs_nobody_a_request(tmp_path: Path) -> None:
    """Later faults: the key is zeros, so the next policy decides; told once."""
    text = """
        class Mine:
            def key(self, request):
                if request.number >= 3:
                    raise KeyError("lost")
                return -request.number - 1
            def rank(self, request):
                raise KeyError("rank")
            def on_tokens(self, request, computed, outputs):
                raise KeyError("tokens")
    """
    engine = AuditedEngine(8, scheduling_policy=write(tmp_path / "mine.py", text), victim="policy", max_num_seqs=3)
    for i in range(6):
        engine.add(f"r{i}", 6, 8)
    engine.check()
    assert order(engine) == ["r2", "r1", "r0", "r3", "r4", "r5"]
    [note] = engine.events(ev.Note)
    assert note.level == "error" and "lost" in note.text
    engine.run()
    assert engine.state.totals.finished == {"length": 6} and len(engine.events(ev.Note)) == 1


def test_true_from_a_hook_has_the_key_asked_for_again(tmp_path: Path) -> None:
    text = """
        import dataclasses

        @dataclasses.dataclass
        class Mine:
            served: "dict[str, int]" = dataclasses.field(default_factory=dict)
            def key(self, request):
                return self.served.get(request.request_id, 0)
            def on_tokens(self, request, computed, outputs):
                self.served[request.request_id] = self.served.get(request.request_id, 0) + outputs
                return True
    """
    engine = AuditedEngine(32, scheduling_policy=write(tmp_path / "mine.py", text))
    engine.add("a", 4, 6)
    engine.step()
    engine.step()
    engine.add("b", 4, 6)
    engine.step()
    assert [v.id for v in engine.state.running_order()] == ["b", "a"]
    assert engine.state.requests["a"].key == (3.0, 0)
    engine.run()


def test_the_thread_tells_a_bad_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    spec = write(file, OLDEST_LAST)
    engine = AuditedEngine(32, scheduling_policy=spec).engine
    thread = EngineThread(lambda progress: engine)
    frames = thread.subscribe("test")
    file.write_text("class Mine:\n    pass\n")
    thread.start()
    thread.send(cmd.ReloadPolicy())
    thread.send(cmd.SetOption("victim", "most-blocks"))
    thread.send(cmd.SetOption("watermark", "0.1"))
    thread.send(cmd.SetOption("watermark", "2"))
    thread.send(cmd.SetPriority("nobody", 3))
    assert thread.wait_ready(20)
    events: list[ev.AnyEvent] = []
    for _ in range(400):
        events += [e for frame in frames.drain() for e in frame.events]
        if sum(isinstance(e, ev.Note) for e in events) == 3:
            break
        time.sleep(0.01)
    assert thread.shutdown()
    notes = [e.text for e in events if isinstance(e, ev.Note)]
    assert "no method key" in notes[0] and "watermark" in notes[1] and "not alive" in notes[2]
    switched = [(e.option, e.before, e.after) for e in events if isinstance(e, ev.Switched)]
    assert switched == [("victim", "latest", "most-blocks"), ("watermark", 0.0, 0.1)]
