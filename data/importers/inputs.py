"""Which files an import means: files, folders, patterns and standard input; gzip and Zstandard by content."""

import glob
import gzip
import io
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

from stopwise.data.errors import DataError

STDIN = "-"

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Input:
    """One file, and whether the user named it; a file found in a folder may be no log at all."""

    path: Path
    named: bool
    unreadable: str | None = None  # why a folder in a folder cannot be read; `path` is then that folder


def expand(paths: Sequence[Path]) -> list[Input]:
    """Files of the given files, folders (all files below, hidden ones left out) and patterns, in sorted order each.

    Links to folders are not followed, so that a loop of them does no harm.

    Raises:
        DataError: a path does not exist or cannot be read, a pattern matches nothing, or a folder is empty.
    """
    found: dict[Path, Input] = {}
    for path in paths:
        try:
            is_folder, exists = path.is_dir(), path.exists()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        if is_folder:
            inputs = _files_below(path)
            reason = "holds no file"
        elif exists or not glob.has_magic(str(path)):
            inputs = [Input(path, named=True)]
            reason = ""
        else:
            matches = sorted(glob.glob(str(path), recursive=True))
            inputs = [Input(Path(match), named=False) for match in matches if Path(match).is_file()]
            reason = "matches no file"
        if not inputs:
            raise DataError(f"{path}: {reason}")
        for item in inputs:
            found.setdefault(item.path, item)
    return list(found.values())


def _files_below(folder: Path) -> list[Input]:
    errors: list[OSError] = []
    found: list[Input] = []
    for place, folders, names in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(place, name) for name in names if not name.startswith("."))
        found.extend(Input(path, named=False) for path in files if path.is_file())
    for error in errors:
        if Path(error.filename) == folder:
            raise DataError(f"{folder}: cannot be read ({error.strerror})")
        found.append(Input(Path(error.filename), named=False, unreadable=f"cannot be read ({error.strerror})"))
    return sorted(found, key=lambda item: item.path)


@contextmanager
def spooled_stdin(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield `paths` with ``-`` replaced by a temporary file of standard input: importers read a file more than once."""
    if Path(STDIN) not in paths:
        yield list(paths)
        return
    with TemporaryDirectory(prefix="stopwise-") as folder:
        spool = Path(folder) / "stdin"
        with spool.open("wb") as target:
            shutil.copyfileobj(sys.stdin.buffer, target)
        yield [spool if path == Path(STDIN) else path for path in paths]


def open_binary(path: Path) -> BinaryIO:
    """Open a file's bytes, unpacked where they are gzip or Zstandard; raises OSError as `open`.

    Raises:
        DataError: it is a pipe, a device or a socket: they cannot be read twice, and a pipe may never end. Damaged
            compressed data raises it too, when it is reached.
    """
    mode = path.stat().st_mode
    for is_kind, kind in ((stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device")):
        if is_kind(mode):
            raise DataError(
                f"{path}: is a {kind}; expected a file; save it as one, or give a log as standard input, `-`"
            )
    with path.open("rb") as source:
        head = source.read(4)
    if head.startswith(_GZIP):
        return cast(BinaryIO, io.BufferedReader(_Unpacked(gzip.open(path), path)))
    if head == _ZSTD:
        import pyarrow as pa

        return cast(BinaryIO, io.BufferedReader(_Unpacked(pa.input_stream(str(path), compression="zstd"), path)))
    return path.open("rb")


class _Unpacked(io.RawIOBase):
    """A compressed stream whose damage is named by file."""

    def __init__(self, stream: object, path: Path) -> None:
        self._stream = stream
        self._path = path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data: bytes = self._stream.read(len(buffer))  # pyright: ignore[reportAttributeAccessIssue]
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise DataError(f"{self._path}: its compressed data is damaged or cut off ({error})") from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()  # pyright: ignore[reportAttributeAccessIssue]
        super().close()
