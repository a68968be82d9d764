"""The person's folders, and the reader of every file that a user names: settings, themes, scenarios, cards, prompts.

A name may stand for anything: a pipe that nobody writes to, a device without end, a gigabyte on one line, an archive
that unzips to a thousand times its size, brackets nested without end. Each gives one line that says which file, what it
is and what to give instead, and takes neither a traceback nor time nor memory to say so.
"""

from __future__ import annotations

import io
import json
import os
import stat
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from vtop.engine.errors import BadValue, shown

MOST_BYTES = 1 << 24  # of a text that is read whole
MOST_TOML = 1 << 20  # people write them by hand, and parsing takes the square of the length of a key
MOST_TOML_LINE = 1 << 14
MOST_YAML = 1 << 21
GZIP_MAGIC = b"\x1f\x8b"
SMALL_UNZIPPED = 1 << 26  # bytes that anything may unzip to; beyond, at most MOST_RATIO times the file
MOST_RATIO = 200  # traces and recordings have 5 to 40
_PIECE = 1 << 18
_GZIP_WBITS = 31
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


@contextmanager
def opened(field: str, path: Path, what: str = "a file") -> Iterator[IO[bytes]]:
    """The bytes of a regular file. Raises BadValue, from the OSError where there was one; `what` says what to give."""
    try:
        _check_kind(field, path, os.stat(path).st_mode, what)  # not opened first: to open a device may do something
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(fd, "rb") as file:
            _check_kind(field, path, os.fstat(file.fileno()).st_mode, what)
            yield file
    except OSError as error:
        raise BadValue(field, str(path), f"cannot be read ({error.strerror or error}); give {what}") from error
    except ValueError as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue(field, str(path), f"is no name of a file ({error}); give {what}") from error


def _check_kind(field: str, path: Path, mode: int, what: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((words for is_one, words in _KINDS if is_one(mode)), "no regular file")
        raise BadValue(field, str(path), f"is {kind}; give {what}")


def read_bytes(field: str, path: Path, what: str = "a file", most: int = MOST_BYTES) -> bytes:
    """A file of at most `most` bytes, whole. Raises BadValue."""
    with opened(field, path, what) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise BadValue(field, str(path), f"is longer than {most >> 20} MiB; give {what}")
    return data


def read_text(field: str, path: Path, what: str = "a text file", most: int = MOST_BYTES) -> str:
    """UTF-8 text, without a byte order mark. Raises BadValue."""
    try:
        return read_bytes(field, path, what, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        remedy = f"is not UTF-8 text (byte {error.start + 1}); give {what}"
        raise BadValue(field, str(path), remedy) from error


def lines_of(text: str) -> list[str]:
    """Its lines, without their ends. Only line feeds end one (a carriage return before it belongs to it): form feeds,
    U+0085 and U+2028 are characters of a line like others."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def read_toml(field: str, path: Path, what: str = "a TOML file") -> dict[str, Any]:
    """The table of a TOML file. Raises BadValue."""
    text = read_text(field, path, what, MOST_TOML)
    if (longest := max(map(len, text.split("\n")))) > MOST_TOML_LINE:
        raise BadValue(
            field, str(path), f"has a line of {longest:,} characters, at most {MOST_TOML_LINE:,} are read; give {what}"
        )
    return _parsed(field, path, "TOML", what, tomllib.loads, text)  # type: ignore[no-any-return]


def read_json(field: str, path: Path, what: str = "a JSON file") -> Any:
    """The value of a JSON file. Raises BadValue."""
    return _parsed(field, path, "JSON", what, json.loads, read_text(field, path, what))


def read_yaml(field: str, path: Path, what: str = "a YAML file") -> Any:
    """The value of a YAML file without aliases. Raises BadValue."""
    return _parsed(field, path, "YAML", what, _load_yaml, read_text(field, path, what, MOST_YAML))


def _parsed(field: str, path: Path, form: str, what: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except RecursionError as error:
        raise BadValue(field, str(path), f"is not {form} that can be read: nested too deeply; give {what}") from error
    except Exception as error:  # of the form, and of numbers with thousands of digits
        said = " ".join(str(error).split())[:200]
        raise BadValue(field, str(path), f"is not {form} ({said or shown(error)}); give {what}") from error


def _load_yaml(text: str) -> Any:
    import yaml  # only one command reads YAML

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
        """Without aliases: a few lines of them can stand for more than any memory holds."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("an alias (*name) is not read; write out what it stands for")
            return super().compose_node(parent, index)

    return yaml.load(text, Loader)


# --- zipped files ----------------------------------------------------------------------------------------------------


def pieces(field: str, path: Path, what: str = "a file") -> Iterator[bytes]:
    """The file's bytes in pieces of a bounded size, unzipped when it begins as gzip does (one byte of that is enough).

    Ends without an error where the file was cut. Raises BadValue, also when it unzips to far more than it is.
    """
    with opened(field, path, what) as file:
        size, total = os.fstat(file.fileno()).st_size, 0
        data = file.read(_PIECE)
        if not data or not GZIP_MAGIC.startswith(data[:2]):
            while data:
                yield data
                data = file.read(_PIECE)
            return
        unzip = zlib.decompressobj(_GZIP_WBITS)
        try:
            while not unzip.eof:
                piece = unzip.decompress(data, _PIECE)
                if not piece and not data:
                    return
                total += len(piece)
                check_unzipped(field, path, total, size)
                if piece:
                    yield piece
                data = unzip.unconsumed_tail or file.read(_PIECE)
        except zlib.error as error:
            raise BadValue(field, str(path), f"is damaged gzip ({error}); fetch it again") from error


def check_unzipped(field: str, path: Path, total: int, size: int) -> None:
    """Raises BadValue when a file of `size` bytes that unzipped to `total` so far is a bomb rather than data."""
    if total > SMALL_UNZIPPED and total > MOST_RATIO * size:
        remedy = f"unzips to more than {MOST_RATIO} times its {size:,} bytes; unzip it yourself if you trust it"
        raise BadValue(field, str(path), remedy)


class CountedReader(io.RawIOBase):
    """An unzipped stream that ends with BadValue when it becomes a bomb."""

    def __init__(self, field: str, path: Path, source: IO[bytes], size: int) -> None:
        self._field, self._path, self._source, self._size = field, path, source, size
        self._total = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        self._total += len(data)
        check_unzipped(self._field, self._path, self._total, self._size)
        buffer[: len(data)] = data
        return len(data)


def user_folder(kind: Literal["config", "log", "cache"]) -> Path | None:
    """Where vtop's files of that kind belong, made or not; None when the platform knows no such place."""
    import platformdirs

    try:
        match kind:
            case "config":
                return Path(platformdirs.user_config_dir("vtop", appauthor=False))
            case "log":
                return Path(platformdirs.user_log_dir("vtop", appauthor=False))
            case "cache":
                return Path(platformdirs.user_cache_dir("vtop", appauthor=False))
    except (RuntimeError, KeyError):  # no home
        return None


def typed_path(text: str) -> Path:
    """A path as a person types it, with ~; where nobody knows the home that it means, it stays as it is."""
    return Path(os.path.expanduser(text))
