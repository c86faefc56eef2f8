import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from stopwise.data.records import AnswerProbe, Criterion, Document, Logprobs, Step, Trajectory
from stopwise.models.embedding_cache import CachedEncoder


class BagOfWords:
    """Words hashed to 64 counts, scaled to unit length: equal texts are equal, texts without a common word unrelated.

    Two words may fall on one count; the tests' words do not.
    """

    id = "bag-of-words"

    def encode(self, texts):
        rows = np.zeros((len(texts), 64))
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()) or [""]:
                row[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % 64] += 1
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class Compass:
    """The last number of a text is an angle in degrees: the cosine of two texts is that of the angle between them."""

    id = "compass"

    def encode(self, texts):
        angles = np.radians([float(re.findall(r"-?\d+", text)[-1]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.fixture(scope="session")
def encoder():
    """A cached bag of words: cheap and deterministic."""
    cached = CachedEncoder(BagOfWords(), ":memory:")
    yield cached
    cached.close()


@pytest.fixture(scope="session")
def compass():
    """An encoder for examples by hand; not cached, so that float32 is its only rounding."""
    return Compass()


# --- hypothesis: runs of every kind, from small pools so that documents, queries and texts come again ---------------

_WORDS = st.sampled_from(["tarn", "mill", "bridge", "arden", "lenn", "fenn", "tower", "hall", "river", "stone"])
_TEXT = st.lists(_WORDS, min_size=1, max_size=4).map(" ".join)
_IDS = st.sampled_from(["a", "b", "c", "d", "e", "文書", "g"])
_LOGPROB = st.floats(-20, 0) | st.just(-np.inf)
_TOP = st.lists(st.lists(_LOGPROB, max_size=4).map(tuple), max_size=4).map(tuple)
_SOURCES = st.sampled_from(["logged", "scored:tiny"])


def _documents(texts, scores):
    document = st.builds(Document, id=_IDS, text=texts, title=st.none() | _WORDS, score=scores)
    return st.lists(document, max_size=5).map(tuple)


# whole steps lack a text or a score, or have them all: a null in one document makes the step's signal null
_DOCUMENTS = st.one_of(
    _documents(_TEXT, st.floats(0, 30)), _documents(_TEXT, st.none()), _documents(st.none() | _TEXT, st.none())
)
_STEP = st.builds(
    Step,
    kind=st.sampled_from(["search", "search", "search", "open", "other"]),
    queries=st.lists(_TEXT, max_size=3).map(tuple),
    documents=_DOCUMENTS,
    logprobs=st.none()
    | st.builds(Logprobs, top=_TOP, source=_SOURCES)
    | st.builds(Logprobs, entropies=st.lists(st.floats(0, 3), max_size=3).map(tuple), source=_SOURCES),
    answer_probe=st.none() | st.builds(AnswerProbe, st.none() | _TEXT, st.none() | st.booleans()),
    tokens_in=st.none() | st.integers(0, 1000),
    tokens_out=st.none() | st.integers(0, 1000),
    seconds=st.none() | st.floats(0, 60),
)
_TRAJECTORY = st.builds(
    Trajectory,
    id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
    question_id=st.sampled_from([f"q{number}" for number in range(12)]),
    question=_TEXT,
    steps=st.lists(_STEP, max_size=6).map(tuple),
    criteria=st.none()
    | st.lists(st.builds(Criterion, _TEXT, st.none() | st.lists(_IDS, max_size=2).map(tuple)), max_size=3).map(tuple),
    correct=st.none() | st.booleans(),
    gold_ids=st.none() | st.lists(_IDS, max_size=3).map(tuple),
    agent=st.none() | st.sampled_from(["blue", "red"]),
    ended_by=st.sampled_from(["answer", "budget", "error", "unknown"]),
    meta=st.sampled_from([{}, {"reference_answer": "Tarn"}, {"reference_answer": "old mill"}]),
)


@pytest.fixture(scope="session")
def trajectories():
    """A strategy for runs with documents, queries, texts, logprobs, gold and probes in every state."""
    return _TRAJECTORY


@pytest.fixture(scope="session")
def steps():
    """A strategy for one step of such a run."""
    return _STEP


# --- plain runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def uncertain_runs():
    """Make a run with logprobs, whose RE follows the SE of what was read."""

    def make(number, agent="blue", source="logged", correct=True, steps=4, slope=0.5, words=None):
        pool = words or [f"w{n}" for n in range(8)]
        taken = []
        for t in range(steps):
            kinds = 1 + (number + t) % 4  # documents without a common word: SE log(kinds)
            documents = tuple(Document(f"{number}-{t}-{k}", text=pool[k]) for k in range(kinds))
            read = 1 + (number + t - 1) % 4
            reasoning = Logprobs(
                entropies=(slope * float(np.log(read)) + 0.1 + 0.01 * ((number + t) % 3),), source=source
            )
            taken.append(Step("search", queries=(pool[t],), documents=documents, logprobs=reasoning))
        run = Trajectory(f"run {number}", f"question {number}", "w0 w1", tuple(taken), correct=correct)
        return replace(run, agent=agent, ended_by="answer")

    return make
