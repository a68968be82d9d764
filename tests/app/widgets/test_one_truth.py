"""One truth on the screen: at random moments of a paused run every panel says the same as the others and as the fold.

What is compared is read from the rows as they are drawn. A number of another step must say so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pytest
from textual.app import App, ComposeResult
from textual.containers import Vertical

from vtop.app.live.feed import Feed
from vtop.app.live.pump import Pump
from vtop.app.live.view import View
from vtop.app.widgets.charts import Charts
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.header_bar import HeaderBar
from vtop.app.widgets.map.map import BlockMap, HostMap
from vtop.app.widgets.panel import Panel
from vtop.app.widgets.queue_table import QueueTable
from vtop.app.widgets.request_detail import RequestDetail
from vtop.app.widgets.step_strip import StepStrip
from vtop.app.widgets.why_panel import WhyPanel
from vtop.engine import events as ev
from vtop.engine.state.fold import EngineState
from vtop_support.random_run import RandomRun
from vtop_support.stub_feed import StubFeed

MOMENTS_A_RUN = 12
WIDTH = 200


SEEN: Counter[str] = Counter()
"""What was found on the screen and compared, so that a reader that finds nothing is noticed."""


class Everything(App[None]):
    """All panels below each other."""

    def __init__(self) -> None:
        super().__init__()
        self.animation_level = "none"
        self.panels: dict[str, tuple[Panel, int]] = {
            "header": (HeaderBar(), 2),
            "strip": (StepStrip(), 3),
            "map": (BlockMap(), 12),
            "host": (HostMap(), 8),
            "running": (QueueTable("running"), 12),
            "waiting": (QueueTable("waiting"), 12),
            "finished": (QueueTable("finished"), 6),
            "events": (EventLog(), 30),
            "charts": (Charts(), 6),
            "detail": (RequestDetail(), 20),
            "why": (WhyPanel(), 20),
        }

    def compose(self) -> ComposeResult:
        with Vertical():
            for panel, rows in self.panels.values():
                panel.styles.height = rows
                yield panel

    def text(self, name: str) -> list[str]:
        panel, rows = self.panels[name]
        return ["".join(segment.text for segment in panel.render_line(y)) for y in range(rows)]


class Reader:
    """What the panels say at one moment, and whether it is true."""

    def __init__(self, app: Everything, state: EngineState, told: Sequence[ev.Frame], selected: str | None) -> None:
        self.app, self.state, self.told, self.selected = app, state, told, selected
        self.title = {name: app.text(name)[0] for name in app.panels}
        self.header = app.text("header")[1]

    def number(self, where: str, pattern: str) -> int | None:
        found = re.search(pattern, where)
        return None if found is None else int(found[1])

    def same(self, what: str, *values: object) -> None:
        assert len(set(values)) == 1, f"{what}: {values}\n" + "\n".join(self.title.values())

    def check(self) -> None:
        self.counts()
        self.pool()
        self.charts()
        self.reasons()
        self.log()

    # --- counts --------------------------------------------------------------------------------------------------

    def counts(self) -> None:
        state, title, header = self.state, self.title, self.header
        self.same("step", self.number(header, r"step (\d+)"), state.step)
        last = self.number(title["strip"], r"LAST STEP  (\d+)")
        self.same("last step", last, state.last_step.step)
        limits = re.search(r"limit: (\w+)", header), re.search(r"limit: (\w+)", title["strip"])
        self.same("limit", *(found and found[1] for found in limits))
        steps = [frame for frame in self.told if frame.ran]
        gave_way = [e for e in steps[-1].events if isinstance(e, ev.GaveWay)] if steps else []
        gone = self.number(title["strip"], r"▼ (\d+) preempted") or 0
        self.same("preempted in the last step", gone, len(gave_way))
        self.same("running", self.number(header, r"running (\d+)"), self.number(title["running"], r"RUNNING  (\d+)"),
                  len(state.running))  # fmt: skip
        self.same("waiting", self.number(header, r"waiting (\d+)"), self.number(title["waiting"], r"WAITING  (\d+)"),
                  len(state.waiting))  # fmt: skip
        self.same("swapped", self.number(header, r"swapped (\d+)") or 0,
                  self.number(title["waiting"], r"⇄ (\d+) swapped") or 0, len(state.swapped))  # fmt: skip
        self.same("finished", self.number(title["finished"], r"FINISHED  (\d+)"), sum(state.totals.finished.values()))
        self.same("preempted", self.number(header, r"▼ (\d+) preempted"),
                  self.number(title["events"], r"▼ (\d+) preempted") or 0, state.totals.preemptions)  # fmt: skip
        if state.running:
            seats = sum(len(request.sequences) for request in state.running.values())
            most = state.options["max_num_seqs"]
            assert f" {seats} of {most} seats " in title["running"], title["running"]

    # --- blocks --------------------------------------------------------------------------------------------------

    def pool(self) -> None:
        state, words = self.state, self.title["map"]
        held = state.ref_count > 0
        used, cached = int(held.sum()), int((state.hashed & ~held).sum())
        self.used, self.cached, self.free = used, cached, len(held) - used - cached
        shown = f"{used}/{len(held)}"
        assert f"KV {shown} " in self.header, (shown, self.header)
        assert f"KV BLOCKS  {shown} " in words, (shown, words)
        self.same("cached", self.number(words, r"(\d+) cached") or 0, cached)
        self.same("free", self.number(words, r"(\d+) free"), self.free)
        assert (" cached " in self.app.text("map")[-1].replace("◇ cached", " cached ")) <= (cached > 0)
        if state.totals.swapped_out_blocks:
            hosted = f"{int((state.host_ref_count > 0).sum())}/{len(state.host_ref_count)}"
            assert f"host {hosted}" in self.header and f"HOST POOL  {hosted} " in self.title["host"]
        for line in self.app.text("running")[2:]:
            found = re.match(r"[ ▌]+\d+ \S+ (q\d+) ", line)
            if found is not None:
                request = state.requests[found[1]]
                blocks = len({block for seq in request.sequences for block in seq.blocks})
                cells = line.split()
                SEEN["blk"] += 1
                assert str(blocks) in cells, (blocks, line)

    # --- charts --------------------------------------------------------------------------------------------------

    def charts(self) -> None:
        title = self.title["charts"]
        per_cent = f"{100 * self.used / self.state.num_blocks:.0f}%"
        assert f"KV used  {per_cent} " in title and f" {per_cent} " in self.header, (per_cent, title)
        self.same("charted", self.number(title, r"running  (\d+)"), len(self.state.running))
        self.same("charted", self.number(title, r"waiting  (\d+)"), len(self.state.waiting))
        self.same("tok/s", self.rate, re.search(r"tok(?:en)?s?/s  (\S+)", title)[1])  # type: ignore[index]
        if not self.state.running:
            self.same("tok/s", self.rate, "0")
        assert "now" in self.app.text("charts")[-1]

    @property
    def rate(self) -> str:
        found = re.search(r"(\S+) tok/s", self.header)
        assert found is not None
        return found[1]

    # --- reasons -------------------------------------------------------------------------------------------------

    def reasons(self) -> None:
        lines = self.app.text("waiting")[2:]
        for line in lines:
            found = re.match(r"[ ▌]+\d+ \S+ (q\d+) ", line)
            if found is not None:
                self.reason(found[1], line)
        if self.selected in self.state.waiting or self.selected in self.state.swapped:
            self.reason(self.selected, self.app.text("detail")[1])
            self.why()

    def reason(self, request_id: str, text: str) -> None:
        """A reason about blocks is that of its step, with its numbers, and holds; or it says that it fits."""
        told = self.last_wait(request_id)
        if "seat" in text:  # a request alone may have any number of samples
            taken, most = self.state.seats, self.state.options["max_num_seqs"]
            full = taken > 0 and taken + len(self.state.requests[request_id].sequences) > most
            assert full != ("a seat is open, next step" in text), (text, taken, most)
            SEEN["seat"] += 1
            return
        if "fits, next step" in text:
            assert told is not None and self.fits(request_id, told[1]), (text, told)
            SEEN["fits"] += 1
            return
        found = re.search(r"needs (\d+)(?: blk)?((?: \+\d+ \w+)*)(?: \+\w+)*, (\d+) (available|free)(.*)", text)
        if found is None or "behind" in text:
            return
        need = int(found[1]) + sum(map(int, re.findall(r"\+(\d+)", found[2])))
        assert told is not None, text
        step, reason = told
        assert isinstance(reason, ev.NeedsBlocks), (text, reason)
        label = re.search(r"· (?:step )?(\d+)", found[5])
        if label is None:  # then it speaks of now
            now = self.free if found[4] == "free" else self.free + self.cached
            assert int(found[3]) == now < need, (text, now)
            return
        total = reason.need + reason.growth + reason.watermark
        have = reason.free + getattr(reason, "cached", 0)
        said = int(label[1]), need, int(found[3])
        assert said in ((step, total, have), (step, reason.need, have)), (text, told)
        assert not self.fits(request_id, reason), text
        SEEN["reason"] += 1

    def last_wait(self, request_id: str) -> tuple[int, ev.WaitReason] | None:
        for frame in reversed(self.told):
            for event in reversed(frame.events):
                if isinstance(event, ev.Waits) and event.id == request_id:
                    return frame.step, event.reason
        return None

    def fits(self, request_id: str, reason: ev.WaitReason) -> bool:
        state = self.state
        if isinstance(reason, ev.NeedsBlocks):
            alone = not state.running and state.options["preset"] != "vllm-v0"
            need = reason.need + (0 if alone else reason.growth + reason.watermark)
            return need <= self.free + self.cached
        return False

    def why(self) -> None:
        text = "\n".join(self.app.text("why"))
        found = re.search(r"(\d+) blocks needed, (\d+) available(?: \((\d+) free \+ (\d+) cached\))? now", text)
        assert "must be free" not in text, text
        if found is not None:
            SEEN["why"] += 1
            assert int(found[2]) == self.free + self.cached, (found[0], self.title["map"])
            if found[3] is not None:
                assert (int(found[3]), int(found[4])) == (self.free, self.cached)

    # --- the log -------------------------------------------------------------------------------------------------

    def log(self) -> None:
        """Lines about waits have the numbers of their step, lines about victims their cause."""
        for line in self.app.text("events")[1:]:
            found = re.match(r".\s*(\d+) . (\w+) +(q\d+)(.*)", line)
            if found is None:
                continue
            step, kind, request_id, rest = int(found[1]), found[2], found[3], found[4]
            events = [e for frame in self.told if frame.step == step for e in frame.events]
            if kind == "wait" and (numbers := re.search(r"needs (\d+) blk.*?, (\d+) (available|free)", rest)):
                reasons = [e.reason for e in events if isinstance(e, ev.Waits) and e.id == request_id]
                blocks = [r for r in reasons if isinstance(r, ev.NeedsBlocks)]
                seen = [(r.need, r.free + getattr(r, "cached", 0)) for r in blocks]
                SEEN["wait line"] += 1
                assert (int(numbers[1]), int(numbers[2])) in seen and numbers[3] == "available", (line, seen)
            if kind in ("PREEMPT", "SWAPOUT"):
                resized = [e for e in events if isinstance(e, ev.PoolResized)]
                victims = [e for e in events if isinstance(e, ev.GaveWay) and e.id == request_id]
                if all(e.cause is ev.PreemptCause.POOL_RESIZED for e in victims):
                    SEEN["shrunk"] += 1
                    assert any(f"(pool shrunk {e.before}→{e.after})" in rest for e in resized), line


async def watch(seeds: Sequence[int], moments: int) -> int:
    """Check so many moments; returns how many were checked."""
    SEEN.clear()
    checked = 0
    app = Everything()
    async with app.run_test(size=(WIDTH, 150)) as pilot:
        await pilot.pause()
        for seed in seeds:
            run = RandomRun(seed)
            checked += await observe(app, run, min(MOMENTS_A_RUN, moments - checked))
    assert min(SEEN[what] for what in ("fits", "seat", "reason", "why", "wait line", "shrunk", "blk")) > 0, SEEN
    return checked


async def observe(app: Everything, run: RandomRun, moments: int) -> int:
    feed: Feed = StubFeed()  # only for the facts about the engine: what happens is handed over by hand
    feed.meta = run.engine.meta  # type: ignore[misc]
    log = app.panels["events"][0]
    assert isinstance(log, EventLog)
    log.clear()
    view = View()
    pump = Pump(feed, view, log.add)
    before: tuple[int, str] | None = None
    for moment in range(moments):
        run.go()
        feed.frames.extend(run.take())  # type: ignore[attr-defined]
        while feed.pending:
            pump.pull()
        state = view.state
        assert state is not None
        run.engine.audit(state)
        queued = [r.id for r in (*state.swapped_order(), *state.waiting_order())]
        view.selected = queued[moment % min(2, len(queued))] if queued else None
        view.touch()
        for panel, _ in app.panels.values():
            panel.show(view)
        reader = Reader(app, state, run.told, view.selected)
        try:
            reader.check()
        except AssertionError as error:
            raise AssertionError(f"seed {run.seed}, moment {moment}: {error}") from error
        if before is not None and before[0] == run.steps and state.running:
            assert reader.rate == before[1], "tok/s moved although no step ran"
        before = (run.steps, reader.rate) if state.running else None
    return moments


async def test_panels_agree_with_each_other_and_with_the_fold() -> None:
    assert await watch(range(6), 6 * MOMENTS_A_RUN) == 6 * MOMENTS_A_RUN


@pytest.mark.slow
async def test_panels_agree_at_five_hundred_moments() -> None:
    assert await watch(range(100, 142), 500) == 500
