"""Files that the program writes: nothing is replaced unasked, nothing waits for a reader that never comes.

What is written is put together beside its target and then takes its place: a full disk costs the new file, not the
old one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from vtop.engine.errors import BadValue


def check_target(option: str, path: Path, overwrite: bool = False) -> None:
    """Before hours are spent on what could not be written. Raises BadValue; makes nothing."""
    try:
        kind = _kind(path)
        if kind is None:
            if not path.parent.is_dir():
                raise BadValue(option, str(path), "there is no such folder; make it first")
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise BadValue(option, str(path), "the folder cannot be written to; choose another")
        elif stat.S_ISDIR(kind):
            raise BadValue(option, str(path), "this is a folder; name a file")
        elif stat.S_ISREG(kind) and not overwrite:
            raise BadValue(option, str(path), "there is such a file already; choose another name, or add --overwrite")
        elif not os.access(path, os.W_OK):
            raise BadValue(option, str(path), "cannot be written (Permission denied)")
    except OSError as error:
        raise BadValue(option, str(path), f"cannot be written ({error.strerror})") from None


def write_file(option: str, path: Path, data: bytes) -> None:
    """Write all of `data` or change nothing. A pipe or a device gets it as it is. Raises BadValue."""
    try:
        kind = _kind(path)
        if kind is not None and not stat.S_ISREG(kind):
            with path.open("wb") as file:
                file.write(data)
            return
        target = path.resolve()  # a link goes on to lead to it
        new = target.with_name(f".{secrets.token_hex(8)}.new")
        try:
            with new.open("xb") as file:
                file.write(data)
            if kind is not None:
                new.chmod(stat.S_IMODE(kind))
            new.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
    except OSError as error:
        raise BadValue(option, str(path), f"cannot be written ({error.strerror})") from None


def _kind(path: Path) -> int | None:
    """Mode of what is there; None when nothing is."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
