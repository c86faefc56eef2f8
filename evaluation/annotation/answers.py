"""One rater's answers: a file of their own, written anew and in one piece with every answer."""

import re
import threading
from collections.abc import Mapping
from typing import Any

from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import read_json, write_json
from stopwise.evaluation.annotation.study import CRITERIA, Study

FOLDER = "answers"  # in the study's folder; a file a rater
COMMENT = "comment"
COMMENT_CHARS = 2000
VERSION = 1

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")

Answer = Mapping[str, Any]  # a value for each criterion, and perhaps a comment


class Answers:
    """The answers of one rater to one study; safe to use from several threads."""

    def __init__(self, study: Study, rater: str) -> None:
        """Open what is there, or begin.

        Raises:
            UsageError: the name is none that a file can have.
            DataError: the file holds answers to another study, or what is none.
        """
        if not _NAME.fullmatch(rater):
            raise UsageError(f"--rater {rater!r}; expected up to 40 small letters, digits, - and _")
        self.study = study
        self.rater = rater
        self.path = study.folder / FOLDER / f"{rater}.json"
        self._lock = threading.Lock()
        self._given = self._read()

    @property
    def given(self) -> dict[int, dict[str, Any]]:
        """By item number, from 1."""
        with self._lock:
            return dict(self._given)

    @property
    def missing(self) -> list[int]:
        """Numbers of the items that are not judged yet, ascending."""
        with self._lock:
            return [number for number in range(1, len(self.study.items) + 1) if number not in self._given]

    def put(self, number: int, answer: Answer) -> None:
        """Keep an answer; when this returns it is on the disk.

        Raises:
            DataError: it is no answer to an item of this study, or the file was replaced by another meanwhile.
        """
        wrong = what_is_wrong(answer)
        if wrong is not None or not 1 <= number <= len(self.study.items):
            raise DataError(f"item {number}: {wrong or 'there is no such item'}")
        with self._lock:
            given = self._read() | {number: dict(answer)}  # another window of the same rater may have added some
            record = {"kind": "stopwise.answers", "version": VERSION, "rater": self.rater}
            record |= {"study_sha256": self.study.sha256, "items": len(self.study.items)}
            record["answers"] = {str(one): given[one] for one in sorted(given)}
            write_json(self.path, record)
            self._given = given

    def _read(self) -> dict[int, dict[str, Any]]:
        if not self.path.exists():
            return {}
        found = read_json(self.path)
        if not isinstance(found, dict) or found.get("kind") != "stopwise.answers" or found.get("version") != VERSION:
            raise DataError(f"{self.path}: holds no answers of version {VERSION}; move it away")
        if found.get("study_sha256") != self.study.sha256 or found.get("rater") != self.rater:
            raise DataError(f"{self.path}: holds answers to another study, or of another rater; move it away")
        if not isinstance(found.get("answers"), dict):
            raise DataError(f"{self.path}: holds no `answers` by number; move it away")
        answers: dict[int, dict[str, Any]] = {}
        for number, answer in found["answers"].items():
            wrong = what_is_wrong(answer)
            if wrong is None and not (number.isdecimal() and 1 <= int(number) <= len(self.study.items)):
                wrong = "there is no such item"
            if wrong is not None:
                raise DataError(f"{self.path}: item {number}: {wrong}")
            answers[int(number)] = answer
        return answers


def what_is_wrong(answer: Answer) -> str | None:
    """Why this is no answer, or None."""
    if not isinstance(answer, Mapping):
        return "is no object"
    for criterion in CRITERIA:
        value = answer.get(criterion.name)
        if type(value) is not int or value not in criterion.answers:
            return f"{criterion.name} is {value!r}; expected one of {', '.join(map(str, criterion.answers))}"
    unknown = set(answer) - {criterion.name for criterion in CRITERIA} - {COMMENT}
    if unknown:
        return f"has the unknown key {min(unknown)!r}"
    comment = answer.get(COMMENT, "")
    if not isinstance(comment, str) or len(comment) > COMMENT_CHARS:
        return f"the comment is no text of at most {COMMENT_CHARS} characters"
    return None


def raters_of(study: Study) -> list[str]:
    """Names of those who have begun."""
    return sorted(path.stem for path in (study.folder / FOLDER).glob("*.json"))
