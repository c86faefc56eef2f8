"""A bag-of-words encoder, a hand-made world whose agent's path is known, and a small generated one."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stopwise.data.corpus import CorpusDocument, Query, read_corpus, read_queries
from stopwise.data.records import Criterion
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.puzzle import WorldReader
from stopwise.envs.arena.retrievers import DenseRetriever


class WordEncoder:
    """Counts words, hashed into 4,096 places; deterministic and without a model."""

    id = "words"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), 4096), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                vectors[row, int.from_bytes(hashlib.sha256(word.encode()).digest()[:2], "big") % 4096] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


@pytest.fixture
def word_encoder() -> Callable[[str | None], WordEncoder]:
    """Makes the encoder of a collection, whatever model is asked for."""
    return lambda model: WordEncoder()


@dataclass(frozen=True)
class Arena:
    """A world that is ready to be searched."""

    documents: list[CorpusDocument]
    queries: list[Query]
    reader: WorldReader
    retriever: DenseRetriever


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Arena:
    folder: Path = tmp_path_factory.mktemp("arena") / "world"
    write_world(folder, WorldConfig(documents=900, questions=40, seed=1))
    documents = list(read_corpus(folder))
    retriever = DenseRetriever.build(documents, WordEncoder())
    return Arena(documents, list(read_queries(folder)), WorldReader(documents), retriever)


@pytest.fixture
def mini_query() -> Query:
    """Which town? A person, who kept bees, was born there; the town grew rich on salt."""
    return Query(
        id="mini",
        text="Which town is meant?",
        answer="Alba",
        criteria=(
            Criterion("The person kept bees.", ("bees",)),
            Criterion("The person was born in the town.", ("birth",)),
            Criterion("The town asked for grew rich on salt.", ("salt",)),
        ),
        gold_ids=("bees", "birth", "salt"),
        metadata={
            "variables": [
                {"type": "town", "noun": "town", "name": "Alba"},
                {"type": "person", "noun": "person", "name": "Ida Brun"},
            ],
            "clues": [
                _clue(1, "hobby", 2, 4, None, "kept bees in secret"),
                _clue(1, "native", None, None, 0, "was born in"),
                _clue(0, "craft", 3, 5, None, "grew rich on salt by mistake"),
            ],
        },
    )


def _clue(
    variable: int, key: str, value: int | None, circumstance: int | None, to: int | None, phrase: str
) -> dict[str, object]:
    return {
        "variable": variable,
        "key": key,
        "value": value,
        "circumstance": circumstance,
        "to": to,
        "ambiguity": None if to is not None else 1,
        "phrase": phrase,
    }


@pytest.fixture
def mini_reader() -> WorldReader:
    def document(name: str, about: str, kind: str, state: list[object]) -> CorpusDocument:
        metadata = {"kind": "fact", "about": about, "type": kind, "mentions": ["Old Mill"], "states": [state]}
        return CorpusDocument(name, f"{about}: {state}", about, metadata)

    return WorldReader(
        [
            document("bees", "Ida Brun", "person", ["hobby", 2, 4, None]),
            document("birth", "Ida Brun", "person", ["native", None, None, "Alba"]),
            document("salt", "Alba", "town", ["craft", 3, 5, None]),
            document("other", "Edo Falk", "person", ["hobby", 2, 7, None]),
            document("namesake", "Alba", "ship", ["craft", 3, 5, None]),
        ]
    )
