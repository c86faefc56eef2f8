"""Which format a log is in, by its content; a file's name says nothing."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stopwise.data.errors import DataError
from stopwise.data.importers import FORMATS, importer
from stopwise.data.importers.sources import json_values, open_text
from stopwise.data.importers.toolbox import ImportProblem, Sample

_TEXT_CHARACTERS = 1 << 18
_VALUES = 5
_SURE = 0.5  # evidence below this is a guess
_APART = 0.1  # two formats nearer than this cannot be told apart


@dataclass(frozen=True, slots=True)
class Choice:
    """The format that a file's content shows."""

    format: str
    evidence: float  # 0 to 1
    runner_up: str | None  # the next likely format, where there is evidence for one

    def __str__(self) -> str:
        return f"{self.format} (runner-up: {self.runner_up})" if self.runner_up else self.format


def sniff(path: Path) -> Choice:
    """Choose the format of a log by its content.

    Raises:
        DataError: the file cannot be read, is in no known format, or in one of several; the message lists them.
    """
    sample = take_sample(path)
    found = sorted(((importer(name).evidence(sample), name) for name in FORMATS), key=lambda pair: -pair[0])
    (best, name), (second, runner_up) = found[0], found[1]
    if best < _SURE:
        guesses = ", ".join(name for evidence, name in found if evidence > 0)
        raise DataError(
            f"{path}: is in no format that stopwise recognises{f' (perhaps {guesses})' if guesses else ''}; "
            f"expected one of {', '.join(FORMATS)}; name it by --format"
        )
    if best - second < _APART:
        candidates = ", ".join(name for evidence, name in found if best - evidence < _APART)
        raise DataError(f"{path}: may be in any of these formats: {candidates}; name it by --format")
    return Choice(name, best, runner_up if second > 0 else None)


def take_sample(path: Path) -> Sample:
    """The beginning of a file: its text, and its first JSON values where it is JSON."""
    with open_text(path) as source:
        text = source.read(_TEXT_CHARACTERS)
    if text.lstrip()[:1] not in ("{", "["):
        return Sample(text)
    values = [value.value for value in islice(json_values(path), _VALUES) if not isinstance(value, ImportProblem)]
    if not values:
        return Sample(text)
    whole = values[0]
    return Sample(text, tuple(_records(whole) if len(values) == 1 else values), whole)


def _records(whole: Any) -> list[Any]:
    """The records that one JSON value holds: a list's items, the values of an object keyed by numbers, or itself."""
    if isinstance(whole, list):
        return whole[:_VALUES]
    if isinstance(whole, dict) and whole and all(str(key).isdigit() for key in whole):
        return list(islice(whole.values(), _VALUES))
    return [whole]
