"""What asking for an attention backend can raise."""

from __future__ import annotations


class UnknownBackend(ValueError):
    """No backend has this name. `names` lists what may be asked for."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        self.name = name
        self.names = names
        super().__init__(f"unknown attention backend {name!r}; choose one of {', '.join(names)}")


class BackendUnavailable(ValueError):
    """The backend exists and cannot run here. `remedy` says in one line why, and what to choose."""

    def __init__(self, name: str, remedy: str) -> None:
        self.name = name
        self.remedy = remedy
        super().__init__(f"attention backend {name!r}: {remedy}")
