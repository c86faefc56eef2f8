import json

import pytest

from stopwise.data.records import AnswerProbe, Document, Step, Trajectory
from stopwise.data.store import read_trajectories, write_trajectories
from stopwise.signals.answer_probes import PROBED_BY, MatchJudge

CONFIG = 'endpoint: {{url: "{url}", model: m, prices: {{prompt: 1000000}}, patience: {{attempts: 1}}}}\nparallel: 4\n'
ALBA = Document("a", "The town Alba grew rich on salt.", "A note on Alba")


@pytest.fixture
def place(tmp_path, monkeypatch, server):
    """A folder with two runs, a language model's config and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "cache"))
    steps = (
        Step("search", None, ("nothing",)),
        Step("search", None, ("salt",), (ALBA,)),
        Step("search", None, ("more",), (ALBA,), answer_probe=AnswerProbe("Solm", False)),
    )
    runs = [
        Trajectory(name, name, "Which town grew rich on salt?", steps, meta={"reference_answer": "the Alba."})
        for name in ("one", "two")
    ]
    write_trajectories(tmp_path / "logs.parquet", runs)
    (tmp_path / "llm.yaml").write_text(CONFIG.format(url=server.url))
    return tmp_path


def _probes(path):
    return [[step.answer_probe for step in run.steps] for run in read_trajectories(path)]


def test_the_extractive_reader_needs_no_model(place, answer, server):
    result = answer("probe", "logs.parquet", "--out", "p.parquet")
    kept = AnswerProbe("Solm", False)
    assert _probes(place / "p.parquet") == [[AnswerProbe(None), AnswerProbe("Alba", True), kept]] * 2
    assert (result["searches"], result["probed"], result["no_candidate"]) == (6, 6, 2)
    assert (result["judged"], result["correct"], result["last"]) == (4, 2, {"runs": 2, "correct": 0})
    (run, _) = read_trajectories(place / "p.parquet")
    assert run.meta[PROBED_BY] == {"reader": "extractive(support=0.5)", "judge": "match"}
    assert server.requests == []
    assert not list(place.glob("*llm_cost*"))


def test_anew_replaces_the_probes_of_the_agent(place, answer):
    result = answer("probe", "logs.parquet", "--anew", "--support", 0, "--out", "p.parquet")
    assert _probes(place / "p.parquet")[0][2] == AnswerProbe("Alba", True)
    assert result["last"] == {"runs": 2, "correct": 2}


def test_a_language_model_reads_and_judges(place, answer, command, server):
    judged = json.dumps({"extracted": "Alba", "reasoning": "same", "correct": True})
    server.otherwise = lambda body: judged if "<reference>" in str(body) else "Exact Answer: Alba"
    words = ("probe", "logs.parquet", "--reader", "llm", "--judge", "llm", "--llm", "llm.yaml", "--out", "p.parquet")
    first = answer(*words)
    assert _probes(place / "p.parquet")[1][:2] == [AnswerProbe(None), AnswerProbe("Alba", True)]
    # equal runs are one call each, and all of it is spent on measuring
    assert first["llm"]["evaluation"]["reader"]["calls"] == first["llm"]["evaluation"]["judge"]["calls"] == 1
    assert first["llm"]["operation"]["total"]["calls"] == 0
    written = (place / "p.parquet").read_bytes()
    answer(*words)
    assert (place / "p.parquet").read_bytes() == written
    assert len(server.requests) == 2
    bill = answer("cost", "p.parquet")["bills"]["p.parquet"]
    assert bill["evaluation"]["reader"] | {"seconds": 0} == {
        "calls": 1,
        "attempts": 1,
        "failures": 0,
        "from_cache": 3,  # one of the first call, two of the second
        "prompt_tokens": 10,
        "cached_prompt_tokens": 0,
        "completion_tokens": 3,
        "money": 10.0,
        "seconds": 0,
        "saved_money": 30.0,
    }
    status, out, _ = command("cost", "p.parquet")
    assert status == 0
    assert "evaluation" in out
    assert "reader" in out
    assert "10.0000" in out


def test_a_spent_budget_is_gone_on_from(place, command, answer, server):
    server.otherwise = "Exact Answer: Alba"
    tight = CONFIG.format(url=server.url) + "budget: {calls: 0}\n"
    (place / "llm.yaml").write_text(tight)
    words = ("probe", "logs.parquet", "--reader", "llm", "--llm", "llm.yaml", "--out", "p.parquet")
    status, _, err = command(*words)
    assert status == 1
    assert "with a larger budget.calls" in err
    assert not (place / "p.parquet").exists()
    (place / "llm.yaml").write_text(tight.replace("calls: 0", "calls: 5"))
    assert answer(*words)["probed"] == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--reader", "llm"), "--reader llm: needs a language model; say --llm FILE"),
        (("--judge", "llm"), "--judge llm: needs a language model"),
        (("--llm", "llm.yaml"), "--llm: goes with --reader llm or --judge llm"),
        (("--support", "2"), "from 0 to 1"),
        (("--reader", "llm", "--llm", "llm.yaml", "--support", "0.3"), "goes with --reader extractive"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(place, command, words, message):
    status, out, err = command("probe", "logs.parquet", "--out", "p.parquet", *words)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("one", "other", "same"), [("Alba", "the alba.", True), ("Alba", "Albas", False), ("A", "The", False)]
)
def test_match(one, other, same):
    assert MatchJudge().judge("Which?", one, other).correct is same
