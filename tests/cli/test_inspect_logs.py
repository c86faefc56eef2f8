import json

import pytest

from stopwise.data.codec import trajectory_to_dict
from stopwise.data.records import Action, AnswerProbe, Criterion, Document, Step, Trajectory
from stopwise.data.store import write_trajectories

DOCUMENTS = (Document("d1", "Ada Brook was born in Lenn.", "Ada Brook", score=0.5, rank=1), Document("d2"))
RUN = Trajectory(
    "run-a",
    "q1",
    "Where was Ada Brook born?",
    steps=(
        Step("search", thought="I search.", queries=("Ada Brook",), documents=DOCUMENTS, tokens_in=7),
        Step("search", queries=("Lenn",), documents=DOCUMENTS[:1], logged_action=Action.STOP),
        Step("search", queries=("[b]Oss",), error="no results", answer_probe=AnswerProbe("Lenn")),
        Step("answer", queries=("Lenn",)),
    ),
    criteria=(Criterion("a town"),),
    answer="Lenn",
    correct=True,
    gold_ids=("d1",),
    ended_by="answer",
    meta={"reference_answer": "Lenn town"},
)


@pytest.fixture
def logs(tmp_path):
    path = tmp_path / "logs.parquet"
    write_trajectories(path, [RUN, Trajectory("run-b", "q1", "Where?", agent="bot", ended_by="budget")])
    return path


def test_a_page_shows_steps_documents_new_or_seen_and_gold(stopwise, logs):
    status, stdout, _ = stopwise("inspect", logs, "run-a")
    lines = [line.rstrip() for line in stdout.splitlines()]
    assert status == 0
    assert lines[0] == "Where was Ada Brook born?"
    assert "   [new  GOLD] 0.5 Ada Brook: Ada Brook was born in Lenn." in lines
    assert "   [new ] d2: (no text)" in lines
    assert "   [seen GOLD] 0.5 Ada Brook: Ada Brook was born in Lenn." in lines
    assert "3. search  [b]Oss" in lines
    assert "   error: no results" in lines
    assert "   controller stop" in lines
    assert lines[-2:] == ["answer: Lenn", "reference: Lenn town"]


def test_a_trajectory_as_json(stopwise, logs):
    status, stdout, _ = stopwise("inspect", logs, "run-a", "--json")
    assert (status, json.loads(stdout)) == (0, trajectory_to_dict(RUN))
    assert json.loads(stopwise("inspect", logs, "2", "--json")[1])["id"] == "run-b"


def test_the_summary_counts_what_is_missing_by_agent_and_dataset(stopwise, logs):
    summary = json.loads(stopwise("inspect", logs, "--json")[1])
    assert summary["trajectories"] == 2
    nameless, bot = summary["groups"]
    assert (nameless["agent"], bot["agent"]) == (None, "bot")
    assert nameless["outcomes"] == {"correct": 1, "incorrect": 0, "halted": 0, "unknown": 0}
    assert nameless["searches"] == {"min": 3, "median": 3, "max": 3}
    assert nameless["step_kinds"] == {"answer": 1, "search": 3}
    assert (nameless["documents"], nameless["errors"]) == (3, 1)
    assert nameless["missing"]["step.thought"] == {"missing": 3, "of": 4}
    assert nameless["missing"]["document.score"] == {"missing": 1, "of": 3}
    assert bot["missing"]["answer"] == {"missing": 1, "of": 1}


def test_the_summary_reads_well(stopwise, logs):
    stdout = stopwise("inspect", logs)[1]
    assert "2 trajectories" in stdout
    assert "agent bot, dataset (not logged)" in stdout
    assert "3 of 4" in stdout


@pytest.fixture
def signals(logs, answer):
    path = logs.with_name("signals.parquet")
    answer("signals", logs, "--only", "Nov,RE", "--out", path)
    return path


def test_a_page_shows_the_signals_of_each_search_or_why_there_is_none(stopwise, logs, signals):
    _, stdout, _ = stopwise("inspect", logs, "run-a", "--signals", signals)
    lines = [line.strip() for line in stdout.splitlines() if "signals:" in line]
    assert lines == [
        "signals: Nov 1 · RE null (no logprobs)",
        "signals: Nov 0 · RE null (no logprobs)",
        "signals: Nov null (no documents) · RE null (no logprobs)",
    ]
    page = json.loads(stopwise("inspect", logs, "run-a", "--signals", signals, "--json")[1])
    assert page["signals"][2] == {"t": 3, "values": {}, "nulls": {"Nov": "no documents", "RE": "no logprobs"}}


def test_the_summary_counts_missing_signals_by_reason(stopwise, logs, signals):
    nameless, bot = json.loads(stopwise("inspect", logs, "--signals", signals, "--json")[1])["groups"]
    assert nameless["missing_signals"] == {
        "Nov": {"missing": 1, "of": 3, "reasons": {"no documents": 1}},
        "RE": {"missing": 3, "of": 3, "reasons": {"no logprobs": 3}},
    }
    assert bot["missing_signals"]["Nov"] == {"missing": 0, "of": 0, "reasons": {}}
    stdout = stopwise("inspect", logs, "--signals", signals)[1]
    assert "no signal Nov" in stdout
    assert "1 of 3: 1 no documents" in stdout


def test_signals_of_other_logs_are_refused(stopwise, logs, signals):
    write_trajectories(logs, [RUN])
    for words in ((), ("run-a",)):
        status, stdout, stderr = stopwise("inspect", logs, *words, "--signals", signals)
        assert (status, stdout) == (1, "")
        assert stderr == f"{signals}: was computed from other logs than {logs}; compute the signals again"
    assert stopwise("inspect", logs, "--signals", logs)[0] == 1


def test_no_such_trajectory(stopwise, logs):
    status, _, stderr = stopwise("inspect", logs, "run-z")
    assert (status, stderr) == (1, f"{logs}: holds no trajectory 'run-z'; the first ids are run-a, run-b")
    assert stopwise("inspect", logs.with_name("none"))[0] == 1
