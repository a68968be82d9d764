"""Recordings: Frames as gzipped JSON lines, a meta line first. A file cut anywhere reads up to its last whole Frame.

Unzipped ones are read as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from vtop.engine.errors import BadValue, shown
from vtop.engine.events import SCHEMA_VERSION, Frame, Meta
from vtop.engine.fields import MOST_BLOCKS
from vtop.engine.user_files import pieces

FLUSH_BYTES = 64 * 1024  # of JSON, or
FLUSH_SECONDS = 1.0  # of engine time: what a crash may cost at most
LEVEL = 3  # three quarters of the best ratio at a quarter of the time
GZIP_WBITS = 31
READER_SECONDS = 2.0  # that the reader of a pipe gets to come
MAX_LINE = 1 << 28  # bytes of a Frame; a burst of a thousand long prompts has some millions


class Recorder:
    """Writes Meta, then Frames. `write` may be given to LLMEngine.on_frame.

    Raises BadValue when the file cannot be made, or is a pipe that nobody reads. Compressed data is handed to the
    system at least once a second while Frames come, so that a killed process loses little.

    What goes wrong later (a full disk, a reader that is gone) raises nothing: the recording ends, and `error` says so
    in one line. What was written until then can be read.
    """

    def __init__(self, path: str | os.PathLike[str], meta: Meta) -> None:
        self.path = Path(path)
        self._encoder = msgspec.json.Encoder()
        self._zip = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP_WBITS)
        self._unflushed = 0
        self._flushed_at = meta.engine_time
        self._frames = 0
        self._closed = False
        self.error = ""
        self._file: IO[bytes] | None = _opened(self.path)
        self._line(meta)
        self.flush()

    def write(self, frame: Frame) -> None:
        """Append a Frame."""
        self._line(frame)
        self._frames += 1
        if self._unflushed >= FLUSH_BYTES or frame.time - self._flushed_at >= FLUSH_SECONDS:
            self.flush()
            self._flushed_at = frame.time

    def close(self) -> None:
        """Finish the file. Calling it twice is harmless."""
        self._closed = True
        if self._file is not None:
            with self._told():
                self._file.write(self._zip.flush(zlib.Z_FINISH))
                self._file.close()
            self._file = None

    def _line(self, value: Meta | Frame) -> None:
        if self._closed:
            raise ValueError(f"recording {self.path} is closed")
        data = self._encoder.encode(value) + b"\n"
        self._unflushed += len(data)
        if self._file is not None:
            with self._told():
                self._file.write(self._zip.compress(data))

    def flush(self) -> None:
        """Hand everything written so far to the system."""
        if self._file is not None and self._unflushed:
            with self._told():
                self._file.write(self._zip.flush(zlib.Z_SYNC_FLUSH))
                self._file.flush()
        self._unflushed = 0

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = "its reader is gone" if isinstance(error, BrokenPipeError) else error.strerror
            self.error = f"recording to {self.path} stopped after {self._frames:,} frames: {why}"
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):  # what is left in its buffer cannot be written either
                    file.close()


def _opened(path: Path) -> IO[bytes]:
    """The file, emptied; a pipe as soon as somebody reads it. Raises BadValue."""
    until = time.monotonic() + READER_SECONDS
    while True:
        try:
            # without O_NONBLOCK, opening a pipe would wait for ever; it is for the opening only
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NONBLOCK", 0), 0o666)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise BadValue("record", str(path), f"cannot be written ({error.strerror})") from error
            if time.monotonic() >= until:
                raise BadValue("record", str(path), "is a pipe that nobody reads; start its reader first") from None
            time.sleep(0.05)
        else:
            if hasattr(os, "set_blocking"):
                os.set_blocking(number, True)
            return open(number, "wb")


class Recording:
    """Reads a recording: `meta`, and `frames()` from the first one. Raises BadValue when it is none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        first = next(self._lines(), None)
        if first is None:
            raise BadValue("recording", str(self.path), "holds no whole line; it was cut before its first Frame")
        try:
            self.meta = msgspec.json.decode(first, type=Meta)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadValue("recording", str(self.path), f"is not a vtop recording ({error})") from error
        if self.meta.schema != SCHEMA_VERSION:
            remedy = f"has schema {self.meta.schema}, this vtop reads {SCHEMA_VERSION}; use vtop {self.meta.version}"
            raise BadValue("recording", str(self.path), remedy)
        for name, least, most in (
            ("block_size", 1, 1 << 20),
            ("num_blocks", 0, MOST_BLOCKS),
            ("num_host_blocks", 0, MOST_BLOCKS),
        ):
            if not least <= getattr(self.meta, name) <= most:
                raise BadValue(
                    "recording", str(self.path), f"has {name} {shown(getattr(self.meta, name))}; record it again"
                )

    def frames(self) -> Iterator[Frame]:
        """Whole Frames in order; ends without an error where the file was cut."""
        decoder = msgspec.json.Decoder(Frame)
        lines = self._lines()
        next(lines, None)
        for line in lines:
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
                raise BadValue("recording", str(self.path), f"holds a line that is no Frame ({error})") from error

    def _lines(self) -> Iterator[bytes]:
        """Lines that end in a newline. What follows the last of them was cut and is left out."""
        rest = bytearray()
        first = True
        for data in pieces("recording", self.path, "a recording"):
            if first and not data.startswith(b"{"):
                raise BadValue("recording", str(self.path), "is neither gzip nor JSON lines")
            first = False
            head, end, more = data.partition(b"\n")
            rest += head
            if len(rest) > MAX_LINE:
                raise BadValue("recording", str(self.path), f"has a line longer than {MAX_LINE >> 20} MiB")
            if end:
                yield bytes(rest)
                *whole, last = more.split(b"\n")
                yield from whole
                rest = bytearray(last)
