"""A question as a scripted agent understands it, and what it can read out of a document."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from stopwise.data.corpus import CorpusDocument, Query
from stopwise.data.errors import DataError
from stopwise.data.records import Criterion


@dataclass(frozen=True, slots=True)
class PuzzleClue:
    """One clue, as told by the question."""

    variable: int  # what it is about; variable 0 is asked for
    phrase: str  # predicate without a subject; for a relation, the verb before the object
    to: int | None = None  # variable that a relation points to
    specific: bool = False  # the agent thinks that few things fit it
    key: str | None = None  # attribute or relation; in a question of parts, the id of the document that covers it
    value: int | None = None  # number of the wording, or decade; world questions only
    circumstance: int | None = None  # number of the circumstance, if it is told; world questions only
    part: int = 0  # part of a composed question that it belongs to


@dataclass(frozen=True, slots=True)
class Part:
    """One of the questions that a composed question joins."""

    clues: tuple[int, ...]  # numbers of its clues
    answer: str  # what an agent that has covered them answers


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A question taken apart: unnamed variables and clues about them."""

    text: str
    nouns: tuple[str, ...]  # what each variable is: "person", "town"
    types: tuple[str, ...]  # entity type of each variable
    clues: tuple[PuzzleClue, ...]
    parts: tuple[Part, ...] = ()  # of a question over a plain corpus; empty for world questions

    def standalone(self, number: int) -> str:
        """Clue `number` as a search query of its own: "person who first made a living at sea"."""
        clue = self.clues[number]
        if self.parts:
            return clue.phrase
        noun = self.nouns[clue.variable]
        told = f"{noun} {'who' if noun == 'person' else 'that'} {clue.phrase}"
        return told if clue.to is None else f"{told} a {self.nouns[clue.to]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A match that a reader sees between a document and a clue; it may be about the wrong entity."""

    clue: int  # number of the clue
    subject: str  # name that the document gives to the clue's variable
    object: str | None = None  # name that it gives to the variable that a relation points to
    leads: tuple[str, ...] = ()  # names in it that may lead to the rest of the same part


class Reader(Protocol):
    """What an attentive agent can read in a document."""

    def findings(self, puzzle: Puzzle, document_id: str) -> tuple[Finding, ...]:
        """Matches between the document and the puzzle's clues."""
        ...

    def names(self, document_id: str) -> tuple[str, ...]:
        """Names that stand in the document."""
        ...


def puzzle_of(query: Query) -> Puzzle:
    """Take a question apart: by its clues, if it is a world's, else by its criteria and their gold documents.

    Raises:
        DataError: the query has neither clues nor criteria with gold nor gold documents.
    """
    if "clues" in query.metadata:
        return _world_puzzle(query)
    criteria = query.criteria or (Criterion(query.text, query.gold_ids),)
    answers = [part["answer"] for part in query.metadata.get("parts", ())] or [query.answer or "known"] * len(criteria)
    clues: list[PuzzleClue] = []
    parts: list[Part] = []
    for number, (criterion, answer) in enumerate(zip(criteria, answers, strict=True)):
        if not criterion.gold_ids:
            raise DataError(
                f"query {query.id}: its criterion {criterion.text[:60]!r} has no gold documents; "
                "scripted agents need them to tell what a document is worth"
            )
        first = len(clues)
        clues += [
            PuzzleClue(first + offset, criterion.text, specific=True, key=document_id, part=number)
            for offset, document_id in enumerate(criterion.gold_ids)
        ]
        parts.append(Part(tuple(range(first, len(clues))), answer))
    return Puzzle(query.text, ("passage",) * len(clues), ("",) * len(clues), tuple(clues), tuple(parts))


def _world_puzzle(query: Query) -> Puzzle:
    try:
        variables, clues = query.metadata["variables"], query.metadata["clues"]
        return Puzzle(
            text=query.text,
            nouns=tuple(variable["noun"] for variable in variables),
            types=tuple(variable["type"] for variable in variables),
            clues=tuple(_clue(clue) for clue in clues),
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"query {query.id}: its metadata is not a generated world's; {error} is missing") from error


def _clue(raw: dict[str, Any]) -> PuzzleClue:
    return PuzzleClue(
        variable=raw["variable"],
        phrase=raw["phrase"],
        to=raw["to"],
        specific=raw["circumstance"] is not None,
        key=raw["key"],
        value=raw["value"],
        circumstance=raw["circumstance"],
    )


class WorldReader:
    """Reads what the documents of a generated world state, true or outdated, from their metadata."""

    def __init__(self, documents: Iterable[CorpusDocument]) -> None:
        self._metadata = {document.id: document.metadata for document in documents}

    def findings(self, puzzle: Puzzle, document_id: str) -> tuple[Finding, ...]:
        """Matches between the document's statements and the clues of the same type of entity."""
        metadata = self._metadata[document_id]
        found: list[Finding] = []
        for key, value, circumstance, object_name in metadata["states"]:
            for number, clue in enumerate(puzzle.clues):
                if clue.key != key or puzzle.types[clue.variable] != metadata["type"]:
                    continue
                if object_name is not None:
                    found.append(Finding(number, metadata["about"], object_name))
                elif circumstance is None:
                    if value // 10 * 10 == clue.value:
                        found.append(Finding(number, metadata["about"]))
                elif value == clue.value and clue.circumstance in (None, circumstance):
                    found.append(Finding(number, metadata["about"]))
        return tuple(found)

    def names(self, document_id: str) -> tuple[str, ...]:
        """The entity that the document is about, those it relates it to, and those it mentions."""
        metadata = self._metadata[document_id]
        related = [state[3] for state in metadata["states"] if state[3] is not None]
        about = [metadata["about"]] if metadata["about"] is not None else []
        return tuple(dict.fromkeys([*about, *related, *metadata["mentions"]]))


class GoldReader:
    """Reads documents of any corpus with gold: a gold document covers its clue, and names in it are leads.

    What an agent would understand of real text is not modelled beyond that.
    """

    MAX_LEADS = 8  # names of a document that are followed
    MAX_WORDS = 8  # of a title that is looked for in texts

    def __init__(self, documents: Iterable[CorpusDocument]) -> None:
        self._documents = {document.id: document for document in documents}
        self._titles = {_plain_title(document.title) for document in self._documents.values() if document.title} - {""}
        self._names: dict[str, tuple[str, ...]] = {}

    def findings(self, puzzle: Puzzle, document_id: str) -> tuple[Finding, ...]:
        """The clues that the document is gold for."""
        names = self.names(document_id)
        return tuple(
            Finding(number, names[0] if names else document_id, leads=names[1 : self.MAX_LEADS + 1])
            for number, clue in enumerate(puzzle.clues)
            if clue.key == document_id
        )

    def names(self, document_id: str) -> tuple[str, ...]:
        """The document's own title, then titles of other documents that stand in its text, in order."""
        if document_id not in self._names:
            document = self._documents[document_id]
            own = [_plain_title(document.title)] if document.title else []
            words = re.findall(r"[\w'&.-]*\w", document.text)
            found: list[str] = []
            start = 0
            while start < len(words):
                for length in range(min(self.MAX_WORDS, len(words) - start), 0, -1):
                    name = " ".join(words[start : start + length])
                    if name[0].isupper() and name in self._titles:
                        found.append(name)
                        start += length - 1
                        break
                start += 1
            self._names[document_id] = tuple(dict.fromkeys([*own, *found]))
        return self._names[document_id]


def _plain_title(title: str) -> str:
    """The title without a bracketed explanation: "Ed Wood (film)" is called "Ed Wood" in running text."""
    return re.sub(r"\s*\(.*?\)\s*$", "", title).strip()


def make_reader(documents: Iterable[CorpusDocument]) -> Reader:
    """The reader that fits a corpus: a world's documents say what they state, others are read by gold."""
    held = list(documents)
    stating = [document for document in held if "states" in document.metadata]
    if not stating:
        return GoldReader(held)
    if len(stating) < len(held):
        raise DataError(f"{len(held) - len(stating)} of {len(held)} documents do not say what they state")
    return WorldReader(held)
