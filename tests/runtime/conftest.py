import hashlib
import re

import numpy as np
import pytest

from stopwise.data.records import Criterion, Document, Logprobs, Step, Trajectory
from stopwise.models.embedding_cache import CachedEncoder

WORDS = ["tarn", "mill", "bridge", "arden", "lenn", "fenn", "tower", "hall", "river", "stone"]


class BagOfWords:
    """Words hashed to 64 counts, scaled to unit length."""

    id = "bag-of-words"

    def encode(self, texts):
        rows = np.zeros((len(texts), 64))
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()) or [""]:
                row[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % 64] += 1
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def encoder():
    cached = CachedEncoder(BagOfWords(), ":memory:")
    yield cached
    cached.close()


@pytest.fixture(scope="session")
def logs():
    """Runs with searches, opened pages, errors, empty results, repeated documents, log-probabilities and criteria."""
    rng = np.random.default_rng(0)

    def words(count):
        return " ".join(rng.choice(WORDS, count))

    def document():
        name = f"d{rng.integers(12)}"
        return Document(name, f"{name} {words(4)}", score=float(rng.random()))

    runs = []
    for number in range(40):
        steps = []
        for _ in range(int(rng.integers(1, 8))):
            kind = rng.choice(["search", "search", "search", "open"])
            found = tuple(document() for _ in range(int(rng.integers(0, 5))))
            top = tuple(tuple(np.log(rng.dirichlet(np.ones(4)))) for _ in range(3))
            queries = (words(3),) if rng.random() < 0.9 else ()
            logged = Logprobs(top=top) if rng.random() < 0.8 else None
            steps.append(Step(kind, words(5), queries, found, None if found else "no results", logged))
        steps.append(Step("answer", queries=("Lenn",)))
        criteria = (Criterion("tarn mill"), Criterion("bridge arden")) if number % 2 else None
        runs.append(
            Trajectory(
                f"run{number}",
                f"q{number}",
                f"where is {words(2)}?",
                tuple(steps),
                criteria,
                "Lenn",
                True,
                ("d1", "d2", "d3"),
                "agent",
                ended_by="answer",
            )
        )
    return runs
