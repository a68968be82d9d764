"""Stop strings in a stream of text: nothing of one is ever shown before it is known not to become one."""

from __future__ import annotations


class StopStrings:
    """Watches one output for `stop`; `include` keeps the matched string in the text that is shown.

    Of several matches the one that is complete first ends the text (of those that end together, the longest), so the
    result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stop: tuple[str, ...], include: bool = False) -> None:
        self._stop = stop
        self._include = include
        self._held = ""

    def push(self, text: str, *, search: bool = True) -> tuple[str, str | None]:
        """(text that may be shown now, the stop string that was matched or None). After a match push no more.

        With search=False the text passes without being looked at, and what was held comes out with it.
        """
        buffer = self._held + text
        if not search:
            self._held = ""
            return buffer, None
        found = self._first(buffer)
        if found is not None:
            start, stop = found
            self._held = ""
            return (buffer[: start + len(stop)] if self._include else buffer[:start]), stop
        held = self._longest_beginning(buffer)
        self._held = buffer[len(buffer) - held :]
        return buffer[: len(buffer) - held], None

    def flush(self) -> str:
        """What was held back; the output ended without a match."""
        held, self._held = self._held, ""
        return held

    def _first(self, buffer: str) -> tuple[int, str] | None:
        best: tuple[int, int] | None = None  # (end, start)
        chosen = ""
        for stop in self._stop:
            start = buffer.find(stop)
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
