"""A user's own policy, from a file: FILE.py:Class. Checked before it orders anything; guarded while it does.

Which call into it each thread is in is kept, so that another thread can tell when one does not return. Nothing can end
such a call from outside: who watches can say what hangs, and leave. A call that holds the interpreter (a loop inside C,
as in `sum(itertools.count())`) cannot even be watched.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from vtop.engine import events as ev
from vtop.engine.errors import BadValue, in_one_line
from vtop.engine.policies.base import KeyChange, Policy
from vtop.engine.policy_spec import FILE_MARK, OPTION
from vtop.engine.request import Key, Request, SamplingParams, new_request
from vtop.engine.user_files import read_bytes, typed_path

STUCK_AFTER = 2.0  # seconds in one call: a policy is asked thousands of times per second
REMEDY_KEY = "key(request) must return a finite number, or a tuple of them of one length"

P = ParamSpec("P")
R = TypeVar("R")
_calls: dict[int, tuple[str, str, float]] = {}  # by thread: the policy, what of it, time.monotonic() when it began


class UserPolicy(Policy):
    """Wraps the user's object. It must have `key(request)`; `rank` and the hooks of Policy it may have.

    `on_tokens` may return True to have the key of its request asked for again. `urgent = False` on the object keeps it
    out of preempt_for_waiting. A request is to be read, not changed.
    While the policy is being set, a fault raises BadValue, so the old policy stays; later, the request gets a key of
    zeros (so the policies after this one order it) and the first fault is told. One that does not return cannot be
    ended; `stuck_call` tells of it.
    """

    def __init__(self, spec: str, inner: Any) -> None:
        self.name = spec
        self.urgent = bool(getattr(inner, "urgent", True))
        self._inner = inner
        self._width: int | None = None
        self._trusted = False  # else a fault raises: while it is made, and while it takes over requests
        self._told: list[ev.AnyEvent] = []
        self._faulty = False
        probe = new_request("probe", 0, [1, 2, 3], SamplingParams(), arrival=0.0, limit=19, seed=0)
        self._call("on_arrival", probe, 0.0)
        self._width = len(self._ask("key", probe))
        self.width = self._width
        self._call("on_finish", probe)
        self._trusted = True

    def key(self, request: Request) -> Key:
        return self._ask("key", request)

    def rank(self, request: Request) -> Key:
        return self._ask("rank" if hasattr(self._inner, "rank") else "key", request)

    def on_arrival(self, request: Request, now: float) -> None:
        self._call("on_arrival", request, now)

    def on_admit(self, request: Request, now: float, cached: int) -> None:  # its KeyChange would be told only
        self._call("on_admit", request, now, cached)

    def on_tokens(self, request: Request, computed: int, outputs: int) -> KeyChange | None:
        again = self._call("on_tokens", request, computed, outputs)
        return KeyChange(ev.MoveCause.USER, 0, 0) if again is True else None

    def on_preempt(self, request: Request, now: float) -> None:
        self._call("on_preempt", request, now)

    def on_finish(self, request: Request) -> None:
        self._call("on_finish", request)

    def adopt(self, waiting: Sequence[Request], running: Sequence[Request], now: float, old: Policy | None) -> None:
        self._trusted = False
        for request in sorted((*waiting, *running), key=lambda r: r.number):
            self._call("on_arrival", request, now)
            self._ask("key", request)
        self._trusted = True

    def take_events(self) -> list[ev.AnyEvent]:
        told, self._told = self._told, []
        return told

    def _ask(self, name: str, request: Request) -> Key:
        try:
            key = _as_key(call_user(self.name, name, getattr(self._inner, name), request))
        except (Exception, SystemExit) as error:
            return self._fault(name, error)
        if self._width is not None and len(key) != self._width:
            return self._fault(name, ValueError(f"{len(key)} numbers where it gave {self._width} before"))
        return key

    def _call(self, name: str, *arguments: Any) -> Any:
        hook = getattr(self._inner, name, None)
        if hook is None or getattr(hook, "__func__", None) is getattr(Policy, name):
            return None
        try:
            return call_user(self.name, name, hook, *arguments)
        except (Exception, SystemExit) as error:
            self._fault(name, error)
            return None

    def _fault(self, where: str, error: BaseException) -> Key:
        if not self._trusted:
            raise BadValue(OPTION, self.name, f"{where} failed ({_line(error)}); {REMEDY_KEY}") from error
        if not self._faulty:
            self._faulty = True
            text = f"{OPTION} = {self.name!r}: {where} failed ({_line(error)}); it is passed over where it fails"
            self._told.append(ev.Note("error", text))
        return (0.0,) * self.width


def load_user_policy(spec: str) -> UserPolicy:
    """Read FILE.py:Class afresh and make its policy. Raises BadValue with one line that says what is wrong."""
    path_text, _, class_name = spec.rpartition(FILE_MARK)
    path = typed_path(path_text + ".py")
    try:
        source = read_bytes(OPTION, path, "a Python file with the class")
    except BadValue as error:
        raise BadValue(OPTION, spec, f"{path} {error.remedy}") from error
    # Not through the import system: its cache goes by size and whole seconds, and would miss a quick edit.
    module = ModuleType(f"vtop_user_policy.{path.stem}")
    module.__file__ = str(path)
    with _importable(module):
        try:
            call_user(spec, "loading", exec, compile(source, str(path), "exec"), module.__dict__)
            made = getattr(module, class_name)
            inner = call_user(spec, "__init__", made) if isinstance(made, type) else None
        except AttributeError as error:
            if class_name in module.__dict__:
                raise BadValue(OPTION, spec, f"{class_name}() failed ({_line(error)})") from error
            raise BadValue(OPTION, spec, f"{path} has no class {class_name}") from error
        except SyntaxError as error:
            raise BadValue(OPTION, spec, f"{path}, line {error.lineno}: {error.msg}") from error
        except (Exception, SystemExit) as error:
            raise BadValue(OPTION, spec, f"{path} failed ({_line(error)})") from error
    if inner is None:
        raise BadValue(OPTION, spec, f"{class_name} in {path} is not a class")
    if not callable(getattr(inner, "key", None)):
        raise BadValue(OPTION, spec, f"{class_name} has no method key(request)")
    return UserPolicy(spec, inner)


@contextlib.contextmanager
def _importable(module: ModuleType) -> Any:
    """While it runs, the module can be found by name, as dataclasses need."""
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        sys.modules.pop(module.__name__, None)


def _as_key(value: object) -> Key:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not numbers or not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
        raise TypeError(f"it returned {value!r}")
    return tuple(float(n) for n in numbers)


def _line(error: BaseException) -> str:
    text = in_one_line(str(error).partition("\n")[0])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def call_user(policy: str, what: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `function`, which is `what` of the user's `policy`, returns or raises."""
    thread = threading.get_ident()
    _calls[thread] = policy, what, time.monotonic()
    try:
        return function(*args, **kwargs)
    finally:
        _calls.pop(thread, None)


def stuck_call(thread: int | None) -> str:
    """Of the thread with that identifier: the call that has not returned for STUCK_AFTER, in one line; else empty."""
    call = None if thread is None else _calls.get(thread)
    if call is None:
        return ""
    policy, what, since = call
    seconds = time.monotonic() - since
    return f"policy {policy}: {what} has not returned for {seconds:.0f} s" if seconds >= STUCK_AFTER else ""
