"""Which files an import means: files, folders, patterns and standard input; gzip and Zstandard by content."""

import glob
import gzip
import io
import shutil
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


def expand(paths: Sequence[Path]) -> list[Input]:
    """Files of the given files, folders (all files below, hidden ones left out) and patterns, in sorted order each.

    Raises:
        DataError: a path does not exist, a pattern matches nothing, or a folder is empty.
    """
    found: dict[Path, Input] = {}
    for path in paths:
        if path.is_dir():
            inputs = [Input(file, named=False) for file in _files_below(path)]
            reason = "holds no file"
        elif path.exists() or not glob.has_magic(str(path)):
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


def _files_below(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


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

    Damaged compressed data raises DataError when it is reached.
    """
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
