"""Writing files so that an interrupted command leaves the old result or the new one, never a half."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stopwise.data.errors import DataError, UsageError


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success it is synced and renamed to `target`, else removed.

    Args:
        target: the file that shall exist afterwards; its folder is made when missing.

    Yields:
        A path in the same folder, so that the rename cannot cross file systems.

    Raises:
        UsageError: `target` is a folder or its folder cannot be written.
    """
    target = Path(target)
    check_file_target(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror}); name a path in a writable folder") from error
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.chmod(0o666 & ~_umask())  # mkstemp makes private files; results get the usual mode
        partial.replace(target)
        _sync_folder(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def check_file_target(target: Path) -> None:
    """Refuse early what can be no file to write.

    Raises:
        UsageError: `target` is a folder, a device, a pipe or a socket, or its folder cannot be looked into.
    """
    try:
        is_folder, special = target.is_dir(), target.exists() and not target.is_file()
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror}); name a path in a writable folder") from error
    if is_folder:
        raise UsageError(f"{target}: is a folder; expected a file to write; name a file")
    if special:  # a rename would put a plain file in its place: as root, `--out /dev/null` once did
        raise UsageError(f"{target}: is a device, a pipe or a socket; expected a file to write; name a file")


# what runs and packages consist of: a new one may lack a file of these that the earlier one had
_RESULT_FILES = frozenset(
    {
        "manifest.json",
        "weights.safetensors",
        "README.md",
        "result.json",
        "config.yaml",
        "uplift.json",
        "success.faiss",
        "failure.faiss",
    }
)


@contextmanager
def atomic_folder(target: Path, mark: str = "result.json") -> Iterator[Path]:
    """Yield a temporary folder beside `target`; on success it takes `target`'s place, else it is removed.

    Args:
        target: the folder that shall exist afterwards.
        mark: a file that shows that an existing folder is an earlier result of the same kind. Only such a folder, or
            an empty one, is replaced, and only if it holds nothing that the new one does not: a slip in a path must
            not delete somebody's work.

    Yields:
        A folder beside `target`, so that the rename cannot cross file systems.

    Raises:
        UsageError: `target` is a file, holds something else, or cannot be written.
    """
    target = Path(target)
    check_folder_target(target, mark)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror}); name a path in a writable folder") from error
    retired = partial.with_suffix(".old")
    try:
        yield partial
        lost = _would_be_lost(target, partial)
        if lost is not None:
            raise UsageError(
                f"{target}: holds {lost}, which this command does not write; name another folder, or move it away"
            )
        for path in partial.rglob("*"):
            if path.is_file():
                with path.open("rb") as written:
                    os.fsync(written.fileno())
        partial.chmod(0o777 & ~_umask())
        if target.exists():
            target.rename(retired)
        partial.rename(target)
        _sync_folder(target.parent)
    except BaseException:
        if retired.exists() and not target.exists():
            retired.rename(target)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


@contextmanager
def only_process(
    folder: Path, lock: Path, remedy: str = "wait until that ends, or name another folder"
) -> Iterator[None]:
    """Work on a folder or a file as the only process that does: two would take each other's parts for their own.

    The lock is the operating system's and goes with the process, however that ends; that its file is there means
    nothing.

    Args:
        folder: what is worked on, for the message.
        lock: file that is locked; made with its folder, and removed afterwards.
        remedy: what to do where it is worked on already.

    Raises:
        UsageError: another process holds the lock, or it cannot be made.
    """
    from filelock import FileLock, Timeout

    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock, timeout=0)
        held.acquire()
    except Timeout:
        raise UsageError(f"{folder}: another process is working on it; {remedy}") from None
    except OSError as error:
        raise UsageError(f"{lock}: cannot be locked ({error.strerror}); name a path in a writable folder") from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file; one that stays there locks nothing
            lock.unlink(missing_ok=True)
        held.release()


def claim_folder(folder: Path, record: Mapping[str, Any], what: str) -> None:
    """Take a folder for unfinished work: a new one, an empty one, or one that the same work was begun in.

    Args:
        folder: of the work; it is deleted when that is done, so nothing else may lie in it.
        record: JSON-able, all that the work depends on; stored as ``config.json``.
        what: the work, for the message.

    Raises:
        UsageError: it holds other work, or files of somebody else.
    """
    path = folder / "config.json"
    if path.exists():
        if read_json(path) != json.loads(json.dumps(record)):
            raise UsageError(f"{folder}: holds the unfinished arms of another {what}; delete it, or name another --out")
    elif folder.exists() and any(folder.iterdir()):
        raise UsageError(
            f"{folder}: is where unfinished arms of this {what} would be kept, and holds something else; move that "
            "away, or name another --out"
        )
    write_json(path, record)


def arms_beside(out: Path) -> Path:
    """Where the finished arms of an unfinished run in the arena are kept; see `claim_folder`."""
    return out.with_name(f"{out.name}.arms")


def stages_beside(out: Path) -> Path:
    """Where the checkpoints and finished stages of an unfinished training are kept."""
    return out.with_name(f"{out.name}.partial")


def lock_beside(folder: Path) -> Path:
    """The lock of a folder that may not be there yet, or that another takes the place of."""
    folder = Path(folder).resolve()  # one lock, whatever the folder is called
    return folder.parent / f".{folder.name}.lock"


def check_folder_target(target: Path, mark: str = "result.json") -> None:
    """Refuse early, before anything is worked out for it, what `atomic_folder` would refuse to replace.

    Raises:
        UsageError: `target` is a file, holds something else than an earlier result, or cannot be looked into.
    """
    try:
        if target.exists() and not target.is_dir():
            raise UsageError(f"{target}: is a file; expected a folder to write; name another path")
        if target.is_dir() and not (target / mark).is_file() and any(target.iterdir()):
            raise UsageError(
                f"{target}: holds other files and no {mark}; expected a new or empty folder; name another path"
            )
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror}); name a path in a writable folder") from error


def _would_be_lost(target: Path, partial: Path) -> str | None:
    """A file of an earlier result that the new one neither replaces nor, by its name, makes obsolete."""
    if not target.is_dir():
        return None
    for path in sorted(target.rglob("*")):
        place = path.relative_to(target)
        obsolete = place.name in _RESULT_FILES and (partial / place.parent).is_dir()
        if not path.is_dir() and not (partial / place).exists() and not obsolete:
            return str(place)
    return None


def write_json(target: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinities are refused (ValueError)."""
    with atomic_path(target) as partial:
        partial.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read one JSON value.

    Raises:
        DataError: the file cannot be read, is not UTF-8 or is not JSON; the message names the line and column.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; expected a JSON file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a JSON file") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected JSON text") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}; expected JSON") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets in brackets
        raise DataError(f"{path}: {error}; expected JSON that can be read") from error


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in blocks."""
    with Path(path).open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _umask() -> int:
    umask = os.umask(0)  # it can be read only by setting it
    os.umask(umask)
    return umask


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
