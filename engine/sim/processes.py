"""Work on several processes that end with this one, however it ends. Signals are for this one alone."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from vtop.engine.errors import BadValue, VtopError

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_on_processes(
    function: Callable[[Task], Result], tasks: Sequence[Task], workers: int, done: Callable[[int, Result], None]
) -> None:
    """`done(index, result)` is called as results come. The first error is raised; then, and on every other way out,
    the processes are killed: they hold nothing that must be put away.
    """
    context = get_context("spawn")
    team: dict[Connection, BaseProcess] = {}
    todo = iter(enumerate(tasks))
    busy: dict[Connection, int] = {}

    def give(worker: Connection) -> None:
        for index, task in todo:
            try:
                worker.send(task)
            except OSError:
                raise _died(team[worker]) from None
            busy[worker] = index
            return

    try:
        with _signals_held():  # a process between its start and the list would be left behind
            for _ in range(min(workers, len(tasks))):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, function), daemon=True)
                process.start()
                theirs.close()
                team[ours] = process
        for worker in team:
            give(worker)
        while busy:
            ready = wait(list(busy))
            for worker in [worker for worker in busy if worker in ready]:
                index = busy.pop(worker)
                result = _received(worker, team[worker])
                give(worker)
                done(index, result)
    finally:
        for member in team.values():
            member.kill()
        for worker, member in team.items():
            member.join()
            worker.close()


_HELD = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals that end us are handled behind it. Processes started meanwhile never get them: a mask is inherited."""
    noted: list[int] = []
    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # a mask is of one thread: another may take the signal, and the handler runs here all the same
        for number in _HELD:
            if callable(handler := signal.getsignal(number)):
                old[number] = handler
                signal.signal(number, lambda number, _frame: noted.append(number))
    masked = hasattr(signal, "pthread_sigmask")
    if masked:
        resource_tracker.ensure_running()  # which takes the mask away when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        if masked:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in old.items():
            signal.signal(number, handler)
        for number in noted[:1]:
            signal.raise_signal(number)


def _received(worker: Connection, process: BaseProcess) -> Any:
    try:
        kind, *values = worker.recv()
    except (EOFError, OSError):
        raise _died(process) from None
    if kind == "result":
        return values[0]
    if kind == "bad value":  # an exception of three arguments is not restored from its text
        raise BadValue(*values)
    if kind == "refused":
        raise VtopError(*values)
    raise RuntimeError(f"in a worker process:\n{values[0]}")


def _died(process: BaseProcess) -> VtopError:
    process.join(1.0)
    return VtopError(
        f"a worker process ended (exit code {process.exitcode}), perhaps for lack of memory: use fewer --workers"
    )


def _serve(tasks: Connection, function: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where signals cannot be held
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            task = tasks.recv()
        except EOFError:
            return
        try:
            tasks.send(("result", function(task)))
        except BadValue as error:
            tasks.send(("bad value", error.field, error.value, error.remedy))
        except VtopError as error:
            tasks.send(("refused", str(error)))
        except MemoryError:
            tasks.send(("refused", "out of memory: give fewer blocks, requests or --workers"))
        except Exception:
            tasks.send(("bug", traceback.format_exc()))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
