"""The words of the generated world, read from ``vocabulary.yaml`` beside this file."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Wording:
    """One value that a topic can take, in the words of questions and in those of documents."""

    clue: str  # predicate as a question says it: "first made a living at sea"
    documents: tuple[str, ...]  # predicates as documents paraphrase it


@dataclass(frozen=True, slots=True)
class YearAttribute:
    """An attribute whose value is a year; questions speak of its decade."""

    first: int  # earliest year
    last: int  # latest year, exclusive
    clue: str  # with {decade}
    documents: tuple[str, ...]  # with {year}


@dataclass(frozen=True, slots=True)
class Relation:
    """An attribute that points to another entity."""

    to: str  # type of the other entity
    clue: str  # verb phrase that stands before the object: "studied at"
    documents: tuple[str, ...]  # predicates with {object}


@dataclass(frozen=True, slots=True)
class EntityType:
    """A kind of entity: how it is named and what can be said about it."""

    key: str
    noun: str
    share: float  # relative number of entities
    names: tuple[str, ...]  # patterns with {base}, {given}, {word}
    topics: Mapping[str, tuple[Wording, ...]]
    years: Mapping[str, YearAttribute]
    relations: Mapping[str, Relation]


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of document; patterns take {name}, {noun} and, in closings, {other}."""

    key: str
    titles: tuple[str, ...]
    openings: tuple[str, ...]
    closings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything that the world is made of."""

    types: Mapping[str, EntityType]
    forms: tuple[Form, ...]
    circumstances: tuple[tuple[str, str], ...]  # (as a question says it, as documents paraphrase it)
    given_names: tuple[str, ...]
    title_words: tuple[str, ...]
    starts: tuple[str, ...]  # syllables of names
    middles: tuple[str, ...]
    ends: tuple[str, ...]

    def circumstance(self, number: int) -> tuple[str, str]:
        """A circumstance, or beyond those a pair of them: as a question says it, as documents paraphrase it."""
        single = len(self.circumstances)
        if number < single:
            return self.circumstances[number]
        first, second = divmod(number - single, single)
        return (
            f"{self.circumstances[first][0]} and {self.circumstances[second][0]}",
            f"{self.circumstances[first][1]}, and {self.circumstances[second][1]}",
        )

    @property
    def base_names(self) -> int:
        """How many different base names the syllables give: with one middle syllable, then with two."""
        return len(self.starts) * len(self.middles) * len(self.ends) * (1 + len(self.middles))

    def base_name(self, number: int) -> str:
        """The base name with this number; different numbers below `base_names` give different names.

        Raises:
            IndexError: `number` is not below `base_names`.
        """
        if not 0 <= number < self.base_names:
            raise IndexError(f"base name {number} of {self.base_names}")
        short = len(self.starts) * len(self.middles) * len(self.ends)
        second = ""
        if number >= short:
            number -= short
            number, index = divmod(number, len(self.middles))
            second = self.middles[index]
        else:
            number = number * 7919 % short  # spreads neighbours; 7919 is prime, so that it stays one-to-one
        number, end = divmod(number, len(self.ends))
        start, middle = divmod(number, len(self.middles))
        return self.starts[start] + self.middles[middle] + second + self.ends[end]


@cache
def load_vocabulary() -> Vocabulary:
    """Read the vocabulary that is shipped with the package (once a process)."""
    raw = yaml.safe_load(files("stopwise.data.world").joinpath("vocabulary.yaml").read_text(encoding="utf-8"))
    return Vocabulary(
        types={key: _entity_type(key, value) for key, value in raw["types"].items()},
        forms=tuple(
            Form(key, tuple(value["titles"]), tuple(value["openings"]), tuple(value["closings"]))
            for key, value in raw["forms"].items()
        ),
        circumstances=tuple((clue, document) for clue, document in raw["circumstances"]),
        given_names=tuple(raw["given_names"]),
        title_words=tuple(raw["title_words"]),
        starts=tuple(raw["syllables"]["start"]),
        middles=tuple(raw["syllables"]["middle"]),
        ends=tuple(raw["syllables"]["end"]),
    )


def _entity_type(key: str, raw: Mapping[str, Any]) -> EntityType:
    return EntityType(
        key=key,
        noun=raw["noun"],
        share=float(raw["share"]),
        names=tuple(raw["names"]),
        topics={
            name: tuple(Wording(clue, tuple(documents)) for clue, *documents in values)
            for name, values in raw["topics"].items()
        },
        years={
            name: YearAttribute(*value["range"], clue=value["clue"], documents=tuple(value["documents"]))
            for name, value in raw["years"].items()
        },
        relations={
            name: Relation(value["to"], value["clue"], tuple(value["documents"]))
            for name, value in raw["relations"].items()
        },
    )
