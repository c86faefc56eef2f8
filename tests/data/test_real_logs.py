"""Counts over published logs, for those who have them: set STOPWISE_REAL_LOGS to their folder."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from stopwise.data.gold import GoldReport, join_gold, load_gold
from stopwise.data.importers import choose, read_sources
from stopwise.data.importers.search_tags import tagged_steps
from stopwise.data.records import Trajectory

LOGS = os.environ.get("STOPWISE_REAL_LOGS")
pytestmark = pytest.mark.skipif(not LOGS, reason="STOPWISE_REAL_LOGS names no folder of real logs")


def _read(format: str, *patterns: str) -> list[Trajectory]:
    """All trajectories of the files, which must be recognised as `format` and hold no problem."""
    paths = sorted(path for pattern in patterns for path in Path(LOGS or "").glob(pattern))
    plan = choose(paths)
    assert {source.format for source in plan.sources} == {format}
    found = list(read_sources(plan.sources))
    assert [str(item) for item in found if not isinstance(item, Trajectory)] == []
    return found  # pyright: ignore[reportReturnType]


def _outcomes(runs: list[Trajectory]) -> dict[str, int]:
    return dict(Counter(run.outcome for run in runs))


def _searches(runs: list[Trajectory]) -> list[int]:
    return sorted(len(run.search_steps) for run in runs)


def _documents(runs: list[Trajectory]) -> int:
    return sum(len(step.documents) for run in runs for step in run.steps)


def test_react_reflexion():
    runs = _read("react", "react_reflexion/100_questions_5_trials.txt")
    assert len(runs) == 500
    assert len({run.question_id for run in runs}) == 100
    assert _outcomes(runs) == {"correct": 170, "incorrect": 270, "halted": 60}
    doubles = [run.meta["trial"] for run in runs if "labels" in run.meta]
    assert Counter(doubles) == {1: 3, 2: 3, 3: 2, 4: 2, 5: 2}
    lengths = sorted(len(run.steps) for run in runs)
    assert (lengths[250], lengths[-1]) == (3, 6)
    failed = [step for run in runs for step in run.steps if (step.error or "").startswith("Could not find")]
    assert len(failed) == 477  # 514 listed, 37 of them in runs that are listed twice
    assert all(step.kind == "search" and not step.documents for step in failed)
    gold = load_gold(Path(LOGS or "", "react_reflexion/gold_100_questions.json"))
    report = GoldReport()
    joined = list(join_gold(runs, gold, report))
    assert sum(run.gold_ids is not None for run in joined) == 500
    assert (len(report.questions), report.without) == (100, 0)


def test_react_knowagent():
    runs = _read("react", "react_knowagent/Know*.jsonl")
    assert len(runs) == len({run.question_id for run in runs}) == 500
    assert _outcomes(runs) == {"correct": 132, "incorrect": 362, "halted": 6}
    lengths = sorted(len(run.steps) for run in runs)
    assert (lengths[250], lengths[-1]) == (3, 10)
    gold = load_gold(Path(LOGS or "", "react_knowagent/gold_500_questions.json"))
    joined = list(join_gold(runs, gold, GoldReport()))
    assert sum(run.gold_ids is not None for run in joined) == 500
    # the row's `answer` is the reference, not the agent's
    assert [run.meta["reference_answer"] for run in runs] == [run.meta["reference_answer"] for run in joined]


@pytest.mark.parametrize(
    ("name", "correct", "searches", "documents", "most", "without", "repeating"),
    [("llama", 373, 1399, 6995, 8, 0, 59), ("qwen", 375, 1055, 5275, 4, 11, 4)],
)
def test_r1_searcher(name, correct, searches, documents, most, without, repeating):
    runs = _read("search_tags", f"tags_r1_searcher/hotpotqa_{name}.jsonl")
    assert len(runs) == 500
    assert _outcomes(runs) == {"correct": correct, "incorrect": 500 - correct}
    counts = _searches(runs)
    assert (sum(counts), counts[250], counts[-1], counts.count(0)) == (searches, 2, most, without)
    assert _documents(runs) == documents
    found = [document for run in runs for step in run.steps for document in step.documents]
    assert not [document for document in found if not document.title or "Title:" in (document.text or "")]
    asked = [[step.queries for step in run.search_steps] for run in runs]
    assert sum(len(set(queries)) < len(queries) for queries in asked) == repeating


def test_fireact():
    runs = _read("chat", "chat_fireact/*.json")
    assert len(runs) == len({run.question_id for run in runs}) == 465
    assert _outcomes(runs) == {"correct": 200, "incorrect": 265}
    assert (sum(_searches(runs)), _documents(runs)) == (775, 768)


def test_owl():
    runs = _read("chat", "owl_inline/*.json")
    assert (len(runs), _searches(runs), _documents(runs)) == (3, [1, 1, 2], 15)


def test_webdancer():
    runs = _read("qwen_chat", "qwen_webdancer/*.jsonl")
    steps = [step for run in runs for step in run.steps]
    kinds = Counter(step.kind for step in steps)
    assert (len(runs), kinds) == (199, {"search": 203, "open": 18, "answer": 199})
    assert sum(len(step.queries) for step in steps if step.kind == "search") == 585  # 2.9 a call
    assert _documents(runs) == 5505 + 18  # what the lists say they hold, and one page a visit


def test_dr_tulu():
    runs = _read("dr_tulu", "dr_tulu/*.json")
    kinds = Counter(step.kind for run in runs for step in run.steps)
    assert (len(runs), kinds) == (9, {"search": 32, "open": 8, "answer": 9})
    assert all(step.queries and step.seconds for run in runs for step in run.search_steps)
    for path, run in zip(sorted(Path(LOGS or "", "dr_tulu").iterdir()), runs, strict=True):  # the same runs as text
        text = json.loads(path.read_text(encoding="utf-8"))["full_traces"]["generated_text"]
        tagged = [(step.kind, step.thought, len(step.documents)) for step in tagged_steps(text)]
        assert tagged == [(step.kind, step.thought, len(step.documents)) for step in run.steps]


def test_deerflow_threads_and_replays():
    runs = _read("langchain", "langgraph_deerflow/*")
    assert (len(runs), sum(_searches(runs))) == (9, 20)
    assert all(step.documents and step.queries for run in runs for step in run.search_steps)


def test_deerflow_trace():
    runs = _read("otel", "otel_deerflow/*.json")
    assert [[step.kind for step in run.steps] for run in runs] == [["search", *["open"] * 5, "answer"]]
    assert (_documents(runs), runs[0].search_steps[0].queries != ()) == (5, True)


def test_who_and_when():
    for folder, count, searches in (("Hand-Crafted", 58, 169), ("Algorithm-Generated", 126, 69)):
        runs = _read("who_and_when", f"who_and_when/{folder}/*.json")
        assert len(runs) == len({run.question_id for run in runs}) == count
        assert _outcomes(runs) == {"incorrect": count}
        assert sum(_searches(runs)) == searches
        assert all(run.meta["mistake_step"] < len(run.steps) for run in runs)


@pytest.mark.parametrize(("name", "rows"), [("qrel_golds.txt", 2407), ("qrel_evidence.txt", 5064)])
def test_browsecomp_plus_qrels(name, rows):
    gold = load_gold(Path(LOGS or "", "browsecomp_plus", name))
    assert (len(gold.entries), sum(len(entry.gold_ids) for entry in gold.entries)) == (830, rows)


def test_search_r1():
    runs = _read("search_tags", "tags_search_r1/case.txt")
    assert (len(runs), _searches(runs), _documents(runs)) == (2, [1, 2], 9)
