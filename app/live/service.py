"""What each group of requests was given so far, counted from Frames."""

from __future__ import annotations

from dataclasses import dataclass, field

from vtop.engine import events as ev


@dataclass(slots=True)
class Service:
    """Tokens by group, in the order in which groups came: prompts that were admitted, and output."""

    tokens: dict[str, int] = field(default_factory=dict)
    _alive: dict[str, tuple[str, int]] = field(default_factory=dict)  # id -> group, prompt tokens

    def take(self, frame: ev.Frame) -> None:
        """Count the next Frame. A prompt counts once, however often it is computed."""
        tokens, alive = self.tokens, self._alive
        for event in frame.events:
            match event:
                case ev.Tokens():
                    for request_id in event.ids:
                        if request_id in alive:
                            tokens[alive[request_id][0]] += 1
                case ev.Arrived():
                    alive[event.id] = event.group, event.prompt_tokens
                    tokens.setdefault(event.group, 0)
                case ev.Admitted() if not event.resumed and event.id in alive:
                    group, prompt = alive[event.id]
                    tokens[group] += prompt
                case ev.Finished():
                    alive.pop(event.id, None)
                case _:
                    pass

    def still(self) -> Service:
        """A copy that stands still."""
        return Service(dict(self.tokens))
