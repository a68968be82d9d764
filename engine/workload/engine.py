"""An engine whose requests come from workloads, on a virtual clock or on the real one."""

from __future__ import annotations

import time
from typing import Any

from vtop.engine import events as ev
from vtop.engine.adding import Prompt
from vtop.engine.clock import Clock, ManualClock
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue, Deadlock
from vtop.engine.executor import Executor
from vtop.engine.outputs import RequestOutput
from vtop.engine.request import SamplingParams
from vtop.engine.sched.admission import check_fits, check_samples, refusal_event
from vtop.engine.workload.arrivals import Arrivals, stretched, with_free_names
from vtop.engine.workload.jobs import Job, Workload, prompt_ids
from vtop.engine.workload.speed import SCENARIO_STEP, StepMeter, decode_seconds

LATE = 0.5  # seconds: after more than that the pace begins anew, rather than being caught up with
SOON = 1e-3  # seconds of rounding, and of delay, that an arrival may come early
NOTHING_COMES = 0.1  # seconds between two looks when nobody can go on


class WorkloadEngine(LLMEngine):
    """An LLMEngine that adds the jobs of workloads when their time has come; others may be added beside them.

    With a ManualClock, time jumps to the next arrival or time-out when there is nothing to compute. `time_scale` is
    then how many virtual seconds pass in a real one at most (None: as fast as it goes). With any other clock, arrivals
    come in real time.

    Whoever steps should wait until `not_before`; stepping earlier is allowed and means that the next thing, be it an
    arrival, happens now. `hold` and `go_on` tell that nobody steps for a while: no time passes for arrivals.

    `patient`: when nobody can go on and nothing will come, a person may still change that; otherwise `step` raises
    Deadlock, on a virtual clock (see `Idle`).

    `until` is how many seconds of it `workload` has; whoever steps may stop when `take_end` says that they are over.
    """

    def __init__(
        self,
        executor: Executor,
        config: EngineConfig,
        workload: Workload | None = None,
        *,
        time_scale: float | None = None,
        patient: bool = False,
        until: float | None = None,
        **more: Any,
    ) -> None:
        super().__init__(executor, config, **more)
        self.arrivals = Arrivals()
        self.time_scale = time_scale
        self.patient = patient
        self._start = self.clock.now()
        self._names: set[str] = set()  # of all jobs that ever were loaded
        self._pace: tuple[float, float] | None = None  # (real, virtual) seconds at which the pace began
        self._waits_for: float | None = None  # the arrival until which `not_before` says to wait
        self._end: tuple[float, str] | None = None  # (`elapsed` when a workload is over, what to say then)
        self._held: float | None = None  # time.monotonic() since which nobody steps
        self._idle = Idle()
        self._step_events: list[ev.AnyEvent] = []  # of the last step
        self._meter = StepMeter()
        if self.virtual is None:
            self.on_frame(self._meter.take)
        else:
            self.on_frame(self._keep_events)
        if workload is not None:
            self._add_jobs(workload.jobs)
            self._set_end(workload, until)

    @property
    def virtual(self) -> ManualClock | None:
        """The clock, when this engine may move it."""
        clock: Clock = self.clock
        return clock if isinstance(clock, ManualClock) else None

    @property
    def elapsed(self) -> float:
        """Seconds of the time line that arrivals are on."""
        return self.clock.now() - self._start

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests) or self.arrivals.next_at is not None

    # --- workloads -----------------------------------------------------------------------------------------------

    def load(self, workload: Workload, stretch: float | None = None, until: float | None = None) -> float:
        """Let the jobs of `workload` come from now on, and tell it in a Note. Names that are taken get a number.

        All times are multiplied by `stretch`, and so is `until`, after which the workload is over. None is 1 on a
        virtual clock; on a real one it is the ratio of a decode step here to one of the scenarios' card. Returns the
        stretch.
        """
        said = ""
        if stretch is None:
            stretch = 1.0
            if self.virtual is None:
                step = self.decode_seconds()
                stretch = step / SCENARIO_STEP
                said = f"; times x{stretch:.3g}, since a decode step takes {1e3 * step:.1f} ms, not 17.6"
        if not self._requests:
            self._wake()
        jobs = stretched(workload.jobs, stretch)
        last = max((job.at for job in jobs), default=0.0)
        self._add_jobs(jobs)
        self._set_end(workload, None if until is None else until * stretch)
        self.note(ev.Note("info", f"{workload.name}: {len(jobs)} requests over {last:.1f} s{said}"))
        return stretch

    def _set_end(self, workload: Workload, until: float | None) -> None:
        if until is not None:
            text = f"{workload.name} ends here, {until:.1f} s after its start; resume to go on"
            self._end = self.elapsed + until, text

    def take_end(self) -> str:
        """That a workload is over by its `until` although not all is done, in one line and once; else empty."""
        if self._end is None or (self.elapsed < self._end[0] and self.has_unfinished_requests()):
            return ""
        text, self._end = self._end[1], None
        return text if self.has_unfinished_requests() else ""

    def _add_jobs(self, jobs: tuple[Job, ...]) -> None:
        named = with_free_names(jobs, self._names | self._requests.keys())
        self._names.update(job.id for job in named)
        self.arrivals.add(named, self.elapsed)

    def decode_seconds(self) -> float:
        """What a decode step takes: as seen so far, or measured now when nothing was computed yet."""
        seen = self._meter.seconds
        return decode_seconds(self.executor, self.config.block_size, self.max_model_len) if seen is None else seen

    def add_job(self, job: Job, arrival: float) -> None:
        """Queue a job that arrived at `arrival` (engine time). Raises BadValue when it can never run."""
        try:
            params = self._params_of(job)
            check_fits(job.prompt_tokens, self.max_model_len, self._blocks, self._scheduler.token_budget, self.config)
        except BadValue as error:  # before its token ids are made: memory may not hold them
            if not self._requests:
                self._wake()
            self._scheduler.note(refusal_event(job.id, error, None))
            raise
        self.add_request(
            job.id,
            prompt_ids(job, self.facts.vocab_size or 32_000),
            params,
            priority=job.priority,
            group=job.group,
            timeout=job.timeout,
            deadline=job.deadline,
            arrival_time=arrival,
            expected_tokens=job.expected_tokens,
        )

    def _params_of(self, job: Job) -> SamplingParams:
        sampled = job.n > 1 and job.beam_width is None
        params = SamplingParams(
            max_tokens=job.output_tokens,
            temperature=1.0 if sampled else 0.0,
            ignore_eos=True,
            n=job.n,
            beam_width=job.beam_width,
            detokenize=self.tokenizer is not None,
        )
        check_samples(params, self.config, self._scheduler.token_budget)
        return params

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, **more: Any) -> None:
        """As LLMEngine.add_request."""
        if not self._requests:
            self._wake()
        super().add_request(request_id, prompt, params, **more)

    # --- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Let arrivals come, then step; returns as LLMEngine.step does."""
        if time.monotonic() < self.not_before:
            self._pace = None  # somebody steps by hand: the pace goes on from here
        self._admit_arrivals()
        if not self._requests:
            self._go_to_arrival()
            if not self._requests:
                self.flush()
                self.last_step_ran = False
                return []
        self._waits_for = None
        self.not_before = 0.0
        outputs = super().step()
        now = self.elapsed
        for output in outputs:
            if output.finished:
                self.arrivals.ended(output.request_id, now)
        if self.last_step_ran:
            if self._idle.steps:
                self._idle = Idle()
        elif self._requests and self.virtual is not None:
            self._after_idle_step(self.virtual)
        if self.time_scale is not None and self.virtual is not None:
            self.not_before = max(self.not_before, self._due(self.clock.now()))
        return outputs

    def _admit_arrivals(self, until: float = 0.0) -> None:
        """Let everything in that came by now, or by `until` where sums of floats fall short of it."""
        while taken := self.arrivals.take(max(until, self.elapsed)):
            for at, job in taken:
                try:
                    self.add_job(job, self._start + at)
                except BadValue:  # told as a Refused event
                    self.arrivals.ended(job.id, self.elapsed)

    def _go_to_arrival(self) -> None:
        """Say until when to wait for the next arrival, or let it come when that was said already."""
        at = self.arrivals.next_at
        if at is None:
            return
        gap = max(0.0, at - self.elapsed)
        if self.virtual is None or self.time_scale is not None:
            stopped = self.virtual is None and gap > SOON and time.monotonic() >= self.not_before
            if self._waits_for != at or stopped:  # engine time stood still meanwhile, so it is not yet due
                self._waits_for = at
                self.not_before = self._due(self._start + at) if self.virtual else time.monotonic() + gap
                return
            self._waits_for = None
        if self.virtual is not None:
            self.virtual.advance(gap)
        else:
            self._start -= gap
        self._admit_arrivals(at)

    def _keep_events(self, frame: ev.Frame) -> None:
        if frame.ran:
            self._step_events = frame.events

    def _after_idle_step(self, clock: ManualClock) -> None:
        """Nothing was computed. What the step did is what the next one begins with; when it did nothing, go to what
        comes next, an arrival or a time-out.
        """
        idle = self._idle
        idle.passed(self._step_events)
        if idle.restless(len(self._requests)):
            raise Deadlock(f"{self._who_waits()}, and {idle.steps:,} steps moved them about and computed nothing")
        if not idle.settled:
            return
        coming = [self._start + at] if (at := self.arrivals.next_at) is not None else []
        coming += [t for r in self._requests.values() for t in (r.expires, r.deadline) if t is not None]
        later = [t for t in coming if t > clock.now()]
        if later:
            idle.time_passes()
            clock.advance(min(later) - clock.now())
        elif self.patient:
            self.not_before = time.monotonic() + NOTHING_COMES
        elif (pause := idle.pause()) is not None:
            clock.advance(pause)
        else:
            raise Deadlock(f"{self._who_waits()}, nothing runs and nothing comes; no step would ever change that")

    def _who_waits(self) -> str:
        names = ", ".join(list(self._requests)[:3])
        count = len(self._requests)
        more = f" and {count - 3:,} more" if count > 3 else ""
        return f"deadlock: {names}{more} wait{'s' * (count == 1)}"

    # --- pace ----------------------------------------------------------------------------------------------------

    def _due(self, moment: float) -> float:
        """time.monotonic() at which it is `moment` (virtual)."""
        assert self.time_scale is not None
        real = time.monotonic()
        if self._pace is None:
            self._pace = real, self.clock.now()
        due = self._pace[0] + (moment - self._pace[1]) / self.time_scale
        if due < real - LATE:  # drawing or a slow machine held it up: go on from here
            self._pace, due = (real, moment), real
        return due

    def hold(self) -> None:
        """As LLMEngine.hold."""
        super().hold()
        if self._held is None:
            self._held = time.monotonic()

    def go_on(self) -> None:
        """As LLMEngine.go_on."""
        super().go_on()
        if self._held is None:
            return
        seconds, self._held = time.monotonic() - self._held, None
        if self._waits_for is None:
            self._pace, self.not_before = None, 0.0
            return
        self.not_before += seconds
        if self._pace is not None:
            self._pace = self._pace[0] + seconds, self._pace[1]

    def _wake(self) -> None:
        """Somebody comes while nothing runs: it is now, not when the next arrival is due."""
        waited_for, self._waits_for, self.not_before = self._waits_for, None, 0.0
        pace, self._pace = self._pace, None
        if waited_for is not None and pace is not None and self.virtual is not None and self.time_scale is not None:
            real = time.monotonic() if self._held is None else self._held
            now = min(pace[1] + (real - pace[0]) * self.time_scale, self._start + waited_for)
            self.virtual.advance(max(0.0, now - self.clock.now()))


QUIET = (ev.Waits, ev.Skipped, ev.StepTimes, ev.Note, ev.StepFailed)
"""Events that tell why nothing was done, or how long it took: they change no queue, block or key."""
SETTLED = 2  # quiet steps at one moment: what a scheduler remembers of the step before, it has forgotten by the second
FIRST_PAUSE, MOST_SECONDS = 1.0, 1e6  # engine time that is tried when nothing is known to come
MOST_RESTLESS = 1000  # steps without a computed token, and ten more for each request


class Idle:
    """Counts steps in a row that computed nothing.

    When requests wait, nothing runs on the clock and nobody will come, only the scheduler can change something, and it
    decides from queues, pools and keys (all of which events tell), from what it remembers of its last step, and from
    the time. So nothing can ever change again when steps were quiet at one moment until that memory is gone, and quiet
    too after pauses of 1, 2, 4 ... seconds, a million in all: keys do not change with time, and the longest wait that
    a policy knows (mlfq's starvation) is over by then.

    Steps that move requests about and compute nothing come to an end as well: there are only so many states, so one
    comes back, and all that followed it.
    """

    def __init__(self) -> None:
        self.quiet = 0  # steps in a row at this moment
        self.steps = 0  # in a row that computed nothing
        self.waited = 0.0  # seconds of engine time that were tried in vain
        self._pause = FIRST_PAUSE

    def passed(self, events: list[ev.AnyEvent]) -> None:
        """A step computed nothing; these are its events."""
        self.steps += 1
        if all(isinstance(event, QUIET) for event in events):
            self.quiet += 1
        else:
            self.quiet, self.waited, self._pause = 0, 0.0, FIRST_PAUSE

    @property
    def settled(self) -> bool:
        """Whether another step at this moment would do nothing either."""
        return self.quiet >= SETTLED

    def restless(self, alive: int) -> bool:
        """Whether requests were moved about for so long that it must be a circle."""
        return self.steps > MOST_RESTLESS + 10 * alive

    def time_passes(self) -> None:
        """The clock goes on to something that is known to come."""
        self.quiet = 0

    def pause(self) -> float | None:
        """Seconds of engine time to try next; None: nothing will ever change."""
        if self.waited >= MOST_SECONDS:
            return None
        seconds = self._pause
        self._pause *= 2
        self.waited += seconds
        self.quiet = 0
        return seconds
