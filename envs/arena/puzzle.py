"""A question as a scripted agent understands it, and what it can read out of a document."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from stopwise.data.corpus import CorpusDocument, Query
from stopwise.data.errors import DataError


@dataclass(frozen=True, slots=True)
class PuzzleClue:
    """One clue, as told by the question."""

    variable: int  # what it is about; variable 0 is asked for
    phrase: str  # predicate without a subject; for a relation, the verb before the object
    to: int | None = None  # variable that a relation points to
    specific: bool = False  # the agent thinks that few things fit it
    key: str | None = None  # attribute or relation; world questions only
    value: int | None = None  # number of the wording, or decade; world questions only
    circumstance: int | None = None  # number of the circumstance, if it is told; world questions only


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A question taken apart: unnamed variables and clues about them."""

    text: str
    nouns: tuple[str, ...]  # what each variable is: "person", "town"
    types: tuple[str, ...]  # entity type of each variable
    clues: tuple[PuzzleClue, ...]

    def standalone(self, number: int) -> str:
        """Clue `number` as a search query of its own: "person who first made a living at sea"."""
        clue = self.clues[number]
        noun = self.nouns[clue.variable]
        told = f"{noun} {'who' if noun == 'person' else 'that'} {clue.phrase}"
        return told if clue.to is None else f"{told} a {self.nouns[clue.to]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A match that a reader sees between a document and a clue; it may be about the wrong entity."""

    clue: int  # number of the clue
    subject: str  # name that the document gives to the clue's variable
    object: str | None = None  # name that it gives to the variable that a relation points to


class Reader(Protocol):
    """What an attentive agent can read in a document."""

    def findings(self, puzzle: Puzzle, document_id: str) -> tuple[Finding, ...]:
        """Matches between the document and the puzzle's clues."""
        ...

    def names(self, document_id: str) -> tuple[str, ...]:
        """Names that stand in the document."""
        ...


def puzzle_of(query: Query) -> Puzzle:
    """Take a world question apart.

    Raises:
        DataError: the query's metadata holds no ``variables`` and ``clues``.
    """
    try:
        variables, clues = query.metadata["variables"], query.metadata["clues"]
        return Puzzle(
            text=query.text,
            nouns=tuple(variable["noun"] for variable in variables),
            types=tuple(variable["type"] for variable in variables),
            clues=tuple(_clue(clue) for clue in clues),
        )
    except (KeyError, TypeError) as error:
        raise DataError(
            f"query {query.id}: its metadata holds no usable {error}; "
            "scripted agents need a generated or composed corpus"
        ) from error


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
