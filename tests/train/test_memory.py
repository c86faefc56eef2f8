import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopwise.controllers.memory.memory import ExperienceMemory
from stopwise.data.errors import DataError
from stopwise.data.records import Document, Step, Trajectory
from stopwise.models.chat_config import ChatConfig
from stopwise.models.encoders import Embeddings
from stopwise.train.memory import ByModel, Extractive, MemoryConfig, build_memory, label_of


class HashEncoder:
    """A random direction for each text: different texts are far apart."""

    id = "hash"

    def encode(self, texts: Sequence[str]) -> Embeddings:
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
        rows = np.array([np.random.default_rng(seed).normal(size=64) for seed in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def run(
    question: str, *, correct: bool | None, ended_by: Any = "answer", searches: int = 3, id: str = ""
) -> Trajectory:
    steps = [
        Step("search", f"thought {t} of {id}", (f"query {t} of {question}",), (Document(f"{question}-{t}", "text"),))
        for t in range(searches)
    ]
    return Trajectory(
        id=id or question,
        question_id=question,
        question=f"What is {question}?",
        steps=(*steps, Step("answer", queries=("it",))),
        correct=correct,
        agent="ann",
        dataset="made",
        ended_by=ended_by,
    )


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[ExperienceMemory]:
    opened = ExperienceMemory(tmp_path / "memory", HashEncoder())
    yield opened
    opened.close()


@pytest.fixture
def runs(questions_of: Callable[[str, int], list[str]]) -> list[Trajectory]:
    training = questions_of("train", 4)
    return [
        run(training[0], correct=True),
        run(training[1], correct=False),
        run(training[2], correct=True, ended_by="budget"),  # no answer of its own: a failure
        run(training[3], correct=None),
        run(training[3], correct=True, searches=0, id="no search"),
        *(run(question, correct=True) for split in ("val", "cal", "test") for question in questions_of(split, 2)),
    ]


def config(**more: Any) -> MemoryConfig:
    return MemoryConfig(**{"logs": "logs.parquet", "min_trajectories": 3} | more)


def test_sessions_of_training_runs_by_outcome(memory: ExperienceMemory, runs: list[Trajectory]) -> None:
    record = build_memory(lambda: runs, memory, config(), Extractive())
    assert record["runs"] == {"success": 1, "failure": 2}
    assert record["entries"] == memory.counts() == {"success": 3, "failure": 6}
    assert record["left_out"] == {
        "runs of other splits": 6,
        "runs of other agents or datasets": 0,
        "runs without a search": 1,
        "runs without a known outcome": 1,
        "runs beyond max_trajectories": 0,
    }
    assert (record["sessions"], record["near_duplicates"]) == (9, 0)
    (entry,) = memory.nearest("anything", k=9).successes[:1]
    assert (entry.agent, entry.dataset, entry.source, entry.abstraction_by) == (
        "ann",
        "made",
        "offline",
        "extractive@1",
    )
    assert entry.question == f"What is {entry.question_id}?"
    memory.check_disjoint({one.question_id for one in runs[5:]}, [one.question for one in runs[5:]])
    with pytest.raises(DataError, match="holds 1 questions of the evaluation"):
        memory.check_disjoint({runs[0].question_id})


def test_the_same_logs_twice_bring_nothing_new(memory: ExperienceMemory, runs: list[Trajectory]) -> None:
    build_memory(lambda: runs, memory, config(), Extractive())
    again = build_memory(lambda: runs, memory, config(), Extractive())
    assert (again["sessions"], again["near_duplicates"]) == (9, 9)


def test_bounds(memory: ExperienceMemory, runs: list[Trajectory]) -> None:
    record = build_memory(lambda: runs, memory, config(max_trajectories=2, sessions=2), Extractive())
    assert record["runs"] == {"success": 1, "failure": 1}
    assert record["entries"] == {"success": 2, "failure": 2}
    assert record["left_out"]["runs beyond max_trajectories"] == 1
    queries = {entry.session.splitlines()[1] for entry in memory.nearest("x", k=9).successes}
    assert queries == {f"Action: search query {t} of {runs[0].question_id}" for t in (0, 2)}


@pytest.mark.parametrize("name", ["agents", "datasets"])
def test_of_one_agent_or_dataset(memory: ExperienceMemory, runs: list[Trajectory], name: str) -> None:
    """What a memory is moved from, in a table of transfer."""
    field = name.removesuffix("s")
    mixed = [*runs, *(replace(run, id=f"{run.id} again", **{field: "other"}) for run in runs)]
    record = build_memory(lambda: mixed, memory, config(**{name: ("other",)}), Extractive())
    assert record["runs"] == {"success": 1, "failure": 2}
    assert record["left_out"]["runs of other agents or datasets"] == 5
    assert {getattr(entry, field) for entry in memory.nearest("anything", k=9).successes} == {"other"}
    with pytest.raises(DataError, match=r"0 successful and 0 failed runs.*5 runs of other agents or datasets"):
        build_memory(lambda: runs, memory, config(**{name: ("other",)}), Extractive())


@pytest.mark.parametrize(("kept", "least"), [(slice(0, 3), 4), (slice(1, 3), 1), (slice(0, 1), 1), (slice(5, 9), 1)])
def test_too_little_is_refused(memory: ExperienceMemory, runs: list[Trajectory], kept: slice, least: int) -> None:
    with pytest.raises(DataError, match=f"expected both, and at least {least} together"):
        build_memory(lambda: runs[kept], memory, config(min_trajectories=least), Extractive())
    assert len(memory) == 0


def test_labels(runs: list[Trajectory]) -> None:
    # [DS-MCM] eq. 10
    assert [label_of(one) for one in runs[:4]] == ["success", "failure", "failure", None]


def test_abstractions_by_a_model(
    memory: ExperienceMemory, runs: list[Trajectory], client_of: Callable[..., Any], server: Any
) -> None:
    def reply(body: dict[str, Any]) -> str:
        prompt = body["messages"][0]["content"]
        if "query 1" in prompt.split("<session>")[1].split("</session>")[0]:
            return "I would rather not."
        mood = "worked" if "ended with the right answer" in prompt else "failed"
        return json.dumps({"behaviour": "It searches.", "insight": f"This {mood}."})

    server.otherwise = reply
    abstractor = ByModel(client_of(tries=1))
    llm = ChatConfig(local="not opened here", parallel=4)
    record = build_memory(lambda: runs, memory, config(llm=llm), abstractor)
    assert record["entries"] == {"success": 2, "failure": 4}
    assert record["sessions_without_abstraction"] == 3
    assert abstractor.failures == {"no JSON in reply": 3}
    found = memory.nearest("x", k=9)
    assert {entry.abstraction for entry in found.successes} == {"It searches.\nThis worked."}
    assert {entry.abstraction for entry in found.failures} == {"It searches.\nThis failed."}
    assert record["abstractions"] == found.failures[0].abstraction_by
    assert record["abstractions"].startswith(f"test-model@{server.url} memory_success@")
