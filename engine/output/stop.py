"""Stop strings in a stream of text: nothing of one is ever shown before it is known not to become one."""

from __future__ import annotations

from vtop.engine.output.detokenizer import REPLACEMENT


class StopStrings:
    """Watches one output for `stop`; `include` keeps the matched string in the text that is shown.

    Of several matches the one that is complete first ends the text (of those that end together, the longest), so the
    result does not depend on how the text was cut into pieces. A string that came to its end while nobody searched is
    none any more; one that only began then is.
    """

    def __init__(self, stop: tuple[str, ...], include: bool = False) -> None:
        self._stop = stop
        self._include = include
        self._held = ""
        self._seen = ""  # `_held` and the open text behind it: no stop string ends in it any more

    def push(self, text: str, open_text: str = "", *, search: bool = True) -> tuple[str, str | None]:
        """(text that may be shown now, the stop string that was matched or None). After a match push no more.

        `open_text` is what the tokens that the detokenizer holds back say so far: a stop string may end in it, and then
        it is final too.
        """
        buffer = self._held + text
        whole = buffer + open_text.rstrip(REPLACEMENT)  # which may still become a character
        if search:
            found = self._first(whole, _shared(self._seen, whole))
            if found is not None:
                start, stop = found
                self._held = self._seen = ""
                return (whole[: start + len(stop)] if self._include else whole[:start]), stop
        shown = len(buffer) - self._longest_beginning(buffer)
        self._held = buffer[shown:]
        if not self._seen.startswith(whole):  # else the open text is inside a character, and will be longer again
            self._seen = whole
        self._seen = self._seen[shown:]
        return buffer[:shown], None

    def flush(self) -> str:
        """What was held back; the output ended without a match."""
        held, self._held, self._seen = self._held, "", ""
        return held

    def _first(self, text: str, seen: int) -> tuple[int, str] | None:
        """Of the stop strings that end behind the first `seen` characters, the one that ends first, and its start."""
        best: tuple[int, int] | None = None  # (end, start)
        chosen = ""
        for stop in self._stop:
            start = text.find(stop, max(0, seen - len(stop) + 1))
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


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their start."""
    most = min(len(one), len(other))
    return next((at for at in range(most) if one[at] != other[at]), most)
