"""What an engine on a virtual clock does after a step that computed nothing: step again, go on in time, or give up."""

from __future__ import annotations

from vtop.engine import events as ev

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
