"""Reading log files: text and JSON values with their place in the file, whatever the file's habits.

Byte order marks, CRLF, invalid UTF-8, several JSON values in one file and broken lines are all met in real logs.
"""

import io
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO, TypeVar

from stopwise.data.errors import DataError
from stopwise.data.importers.inputs import open_binary
from stopwise.data.importers.toolbox import ImportProblem, clean_json, first_line
from stopwise.data.records import Trajectory

# NaN is read as null, infinities stay (a log-probability may be -inf), control characters in texts are let through
_DECODER = json.JSONDecoder(
    strict=False, parse_constant={"NaN": None, "Infinity": math.inf, "-Infinity": -math.inf}.__getitem__
)
KEEPS_NAN = json.JSONDecoder(strict=False)  # for a format in which a NaN is a mistake
_ODD_ESCAPE = re.compile(r"\\u(?:[dD][89a-fA-F]|0000)|\0")  # may decode to a lone surrogate or is a NUL
TOO_DEEP = "JSON nested too deeply"
_T = TypeVar("_T")

_HEAD_LINES = 50  # JSON Lines are recognised by an object among the first lines
_SAMPLE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class JsonValue:
    """One top-level JSON value of a file."""

    where: str  # "line 7" or "value 2"; "" for the only value of a file
    value: Any


def open_text(path: Path) -> TextIO:
    """Open a log for reading as text, unpacked where it is compressed (gzip, Zstandard).

    A byte order mark is dropped, bytes that are not UTF-8 become U+FFFD.

    Raises:
        DataError: there is no such file, or it is a folder, empty, binary, or not readable.
    """
    path = Path(path)
    _check_text(path)
    return io.TextIOWrapper(open_binary(path), encoding="utf-8-sig", errors="replace")


def _check_text(path: Path) -> None:
    try:
        with open_binary(path) as source:
            head = source.read(_SAMPLE_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; expected a log file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if not head.strip(b"\xef\xbb\xbf \t\r\n"):
        raise DataError(f"{path}: is empty; expected a log")
    if encoding := _other_encoding(head):
        raise DataError(f"{path}: is {encoding} text; expected UTF-8; convert it with `iconv -f {encoding} -t UTF-8`")
    if is_binary(head):
        raise DataError(f"{path}: is a binary file; expected a log as text or JSON")


def _other_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, by the byte order mark, or by the NULs of a text that is mostly ASCII."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    for first, order in ((0, "LE"), (1, "BE")):
        texts, nulls = head[first:1000:2], head[1 - first : 1000 : 2]
        if nulls.count(0) > 0.9 * len(nulls) and texts.count(0) == 0:
            return f"UTF-16{order}"
    return None


def is_binary(head: bytes) -> bool:
    """Whether a file's first bytes are no text: more than a tenth are NULs, control characters or not UTF-8."""
    text = head.decode("utf-8", "replace")
    odd = sum(text.count(chr(code)) for code in (*range(9), *range(14, 32), 0xFFFD))
    return odd * 10 > len(text)


def read_text(path: Path) -> str:
    """The whole file as text; raises as `open_text`."""
    with open_text(path) as source:
        return source.read()


def json_values(path: Path, decoder: json.JSONDecoder = _DECODER) -> Iterator[JsonValue | ImportProblem]:
    """The JSON values of a file in order: one value, several one after the other, or one a line (streamed).

    A line or value that is not JSON is an `ImportProblem`. Yields nothing else; raises as `open_text`. The `decoder`
    reads NaN as null, unless it is another.
    """
    path = Path(path)
    _check_text(path)
    with open_binary(path) as source:  # bytes: looking for odd escapes in them is several times faster than in text
        head = [source.readline().removeprefix(b"\xef\xbb\xbf")]
        while not (by_line := _is_object(head[-1])) and len(head) < _HEAD_LINES and (line := source.readline()):
            head.append(line)
        if by_line:
            for number, line in enumerate(chain(head, source), 1):
                if line.strip():
                    yield _line(path, number, line, decoder)
            return
        text = (b"".join(head) + source.read()).decode("utf-8", "replace")
    yield from _values(path, text, decoder)


def read_rows(
    path: Path,
    convert: Callable[[Any, int], Trajectory | str],
    is_one: Callable[[list[Any]], bool] = lambda items: False,
    decoder: json.JSONDecoder = _DECODER,
) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of a file of rows: one JSON value, a list of rows, or one row a line.

    Args:
        path: the file; raises as `open_text`.
        convert: the trajectory of a row, or the reason why there is none; also given the row's number, from 1.
        is_one: whether a list is itself one row (a bare list of messages), and not a list of rows.
        decoder: reads NaN as null, unless it is another.
    """
    number = 0
    for value in json_values(path, decoder):
        if isinstance(value, ImportProblem):
            yield value
            continue
        many = isinstance(value.value, list) and not is_one(value.value)
        for place, row in enumerate(value.value if many else [value.value], 1):
            number += 1
            where = ", ".join(filter(None, (value.where, f"record {place}"))) if many else value.where
            found = guarded(lambda row=row, number=number: convert(row, number))
            yield ImportProblem(str(path), where, found) if isinstance(found, str) else found


def guarded(work: Callable[[], _T]) -> _T | str:
    """What `work` returns, or the reason that its JSON is nested too deeply to be walked."""
    try:
        return work()
    except RecursionError:
        return TOO_DEEP


def load_json(text: str | bytes, decoder: json.JSONDecoder = _DECODER) -> Any:
    """One JSON value with its texts cleaned (`toolbox.clean_text`); NaN is None, bytes that are not UTF-8 are U+FFFD.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    odd = b"\\u" in text or b"\0" in text if isinstance(text, bytes) else "\\u" in text or "\0" in text
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    value = decoder.decode(text)
    return clean_json(value) if odd and _ODD_ESCAPE.search(text) else value


def _is_object(line: bytes) -> bool:
    """Whether a line alone is a JSON object; a pretty-printed file has no such line in its first column."""
    if not line.startswith(b"{"):
        return False
    try:
        return bool(load_json(line))
    except (ValueError, RecursionError):
        return False


def _line(path: Path, number: int, line: bytes, decoder: json.JSONDecoder) -> JsonValue | ImportProblem:
    try:
        return JsonValue(f"line {number}", load_json(line, decoder))
    except ValueError as error:
        return ImportProblem(str(path), f"line {number}", _not_json(error, line.decode("utf-8", "replace")))
    except RecursionError:
        return ImportProblem(str(path), f"line {number}", TOO_DEEP)


def _values(path: Path, text: str, decoder: json.JSONDecoder) -> Iterator[JsonValue | ImportProblem]:
    odd = bool(_ODD_ESCAPE.search(text))
    position, count = 0, 0
    counted, lines = 0, 1  # lines up to `counted`, so that no text is counted twice
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text):
            return
        lines += text.count("\n", counted, position)
        counted = position
        line = f"line {lines}"
        try:
            value, end = decoder.raw_decode(text, position)
            value = clean_json(value) if odd else value
        except ValueError as error:
            yield ImportProblem(str(path), line, _not_json(error, text[position : position + 200]))
            return
        except RecursionError:
            yield ImportProblem(str(path), line, TOO_DEEP)
            return
        count += 1
        alone = count == 1 and not text[end:].strip()
        yield JsonValue("" if alone else f"value {count}", value)
        position = end


def _not_json(error: ValueError, text: str) -> str:
    what = error.msg.removesuffix(" at") if isinstance(error, json.JSONDecodeError) else str(error)
    place = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    return f"not JSON ({what}{place}); found {first_line(text, 60)!r}"
