import json
import random
from dataclasses import replace

import pytest

from stopwise.data.errors import UsageError
from stopwise.data.store import read_trajectories
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.branching import BranchConfig
from stopwise.envs.arena.collect import collect
from stopwise.envs.arena.collection import CollectConfig, ControllerChoice, RethinkerChoice
from stopwise.envs.arena.plan_write_agent import PlanWriteConfig
from stopwise.envs.arena.react_agent import ReactConfig
from stopwise.models.chat_config import ChatConfig
from stopwise.models.endpoints import Endpoint, Patience
from stopwise.models.ledger import Budget, BudgetSpent, Prices, add_reports


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collect") / "world"
    write_world(folder, WorldConfig(documents=900, questions=40, seed=1))
    return str(folder)


@pytest.fixture
def config(corpus, server, tmp_path):
    def answer(body):
        """Searches twice, rethinks, judges."""
        text = body["messages"][-1]["content"]
        if "Its recent steps" in text or "You are its critic" in text:
            return json.dumps({"critique": "Too narrow.", "query": f"something else {len(text)}"})
        if "You keep the books" in text:
            return json.dumps({"statuses": [{"number": 1, "status": "partial"}], "add": [], "remove": []})
        if "Now stop searching" in text:
            return "Answer: no candidate"
        return f"I look.\nSearch: town {len(body['messages'])}" if len(body["messages"]) < 6 else "Answer: Alba"

    server.otherwise = answer
    endpoint = Endpoint(server.url, "m", patience=Patience(attempts=1), prices=Prices(prompt=1e6))
    return CollectConfig(
        corpus,
        agents=("react",),
        react=(ReactConfig(),),
        llm=ChatConfig(endpoint=endpoint, cache=str(tmp_path / "replies.sqlite")),
        questions=3,
        retriever="bm25",
        group=1,
    )


def _runs(folder):
    return list(read_trajectories(folder / "trajectories.parquet"))


def test_an_llm_agent_is_collected_as_any_other(config, word_encoder, server, tmp_path):
    told = collect(config, tmp_path / "out", word_encoder)
    runs = _runs(tmp_path / "out")
    assert [run.agent for run in runs] == ["react"] * 3
    assert all(run.answer == "Alba" and len(run.search_steps) == 2 for run in runs)
    assert all(run.search_steps[0].documents for run in runs)
    assert told["llm"]["operation"]["agent"]["calls"] == 9
    assert told["llm"]["operation"]["agent"]["money"] == 90
    assert told["llm"]["evaluation"]["reader"]["calls"] == 6
    calls = len(server.requests)
    again = collect(config, tmp_path / "again", word_encoder)
    assert _runs(tmp_path / "again") == runs
    assert len(server.requests) == calls
    assert again["llm"]["operation"]["total"]["money"] == 0
    assert again["llm"]["operation"]["total"]["saved_money"] == 90


def test_a_spent_budget_loses_no_finished_run_and_is_resumed_with_a_larger_one(config, word_encoder, tmp_path):
    tight = replace(config, llm=replace(config.llm, budget=Budget(calls=7)))
    with pytest.raises(BudgetSpent, match=r"with a larger budget\.calls the same command goes on"):
        collect(tight, tmp_path / "out", word_encoder)
    assert len(list((tmp_path / "out" / "parts").glob("*.parquet"))) == 1
    told = collect(config, tmp_path / "out", word_encoder)
    assert len(_runs(tmp_path / "out")) == 3
    # every paid call stands in the bill, with those of the group that was not finished
    assert told["llm"]["operation"]["agent"]["calls"] + told["llm"]["evaluation"]["reader"]["calls"] == 15
    assert told["llm"]["model"].startswith("m@http://127.0.0.1")


def test_rethinker_and_judge_are_driven_by_it_too(config, word_encoder, tmp_path):
    controller = ControllerChoice("random", params={"stop": 0, "intervene": 0.5}, coverage_judge="llm", min_coverage=0)
    asked = replace(config, controller=controller, rethinker=RethinkerChoice("llm"), agents=("quitter",), questions=1)
    told = collect(asked, tmp_path / "out", word_encoder)
    (run,) = _runs(tmp_path / "out")
    assert any(step.thought == "Too narrow." for step in run.search_steps)
    assert told["llm"]["operation"]["rethinker"]["calls"] >= 1
    judged = told["llm"]["operation"]["coverage"]  # equal results for an equal state are one call
    assert judged["calls"] + judged["from_cache"] == sum(bool(step.documents) for step in run.search_steps)


def test_a_plan_and_write_agent_is_collected_by_config(config, word_encoder, server, tmp_path):
    def reply(body):
        text = body["messages"][-1]["content"]
        if "Break the question" in text:
            return "Part: the town"
        if "You keep the notes" in text:
            return f"Note: {len(text)}"
        return "Answer: Alba" if text.count("Searched:") > 1 else f"Search: town {len(text)}"

    server.otherwise = reply
    asked = replace(config, agents=("plan_write",), plan_write=(PlanWriteConfig(),), react=(), group=3)
    told = collect(asked, tmp_path / "out", word_encoder)
    runs = _runs(tmp_path / "out")
    assert [(run.agent, run.answer, len(run.search_steps)) for run in runs] == [("plan_write", "Alba", 2)] * 3
    assert all(step.documents and step.answer_probe is not None for run in runs for step in run.search_steps)
    # a plan, two notes and three turns each
    assert told["llm"]["operation"]["agent"]["calls"] == 18


def test_side_by_side_is_the_same_as_one_after_the_other(config, word_encoder, server, tmp_path):
    """With a controller that reads embeddings, a rethinker and a judge, all behind a server of uneven speed."""
    reply = server.otherwise
    waits = random.Random(0)
    server.otherwise = lambda body: {"text": reply(body), "hang": waits.random() / 50}
    controller = ControllerChoice(
        "random", params={"stop": 0.1, "intervene": 0.4}, coverage_judge="llm", min_coverage=0
    )
    asked = replace(
        config,
        agents=("react", "quitter"),
        controller=controller,
        rethinker=RethinkerChoice("llm"),
        questions=4,
        group=6,
        retriever="dense",
    )
    found = {}
    for parallel in (1, 8):
        llm = replace(config.llm, cache=str(tmp_path / f"replies{parallel}.sqlite"), parallel=parallel)
        told = collect(replace(asked, llm=llm), tmp_path / f"out{parallel}", word_encoder)
        bill = told["llm"]["operation"]["total"] | {"seconds": None}
        found[parallel] = ([_untimed(run) for run in _runs(tmp_path / f"out{parallel}")], bill)
    assert found[1] == found[8]
    # replies hold their own time, so with the same replies not a byte differs
    again = replace(config.llm, cache=str(tmp_path / "replies1.sqlite"), parallel=8)
    collect(replace(asked, llm=again), tmp_path / "again", word_encoder)
    one, other = (tmp_path / name / "trajectories.parquet" for name in ("out1", "again"))
    assert one.read_bytes() == other.read_bytes()


def test_branches_side_by_side_are_those_of_one_after_the_other(config, word_encoder, tmp_path):
    asked = replace(config, branch=BranchConfig(probability=0.7, rollouts=2), group=3)
    for name, parallel in (("one", 1), ("many", 8)):
        llm = replace(config.llm, parallel=parallel)
        collect(replace(asked, llm=llm), tmp_path / name, word_encoder)
    for file in ("branches.parquet", "trajectories.parquet"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "many" / file).read_bytes()


def _untimed(run):
    return replace(run, steps=tuple(replace(step, seconds=None) for step in run.steps))


def test_what_cannot_be_run_is_refused(config):
    with pytest.raises(UsageError, match="llm: is needed by an agent"):
        replace(config, llm=None)
    with pytest.raises(UsageError, match="workers: one process keeps to the budget"):
        replace(config, workers=2)
    with pytest.raises(UsageError, match="a name is taken twice"):
        replace(config, react=(ReactConfig("chaser"),), agents=("chaser",))
    with pytest.raises(UsageError, match=r"expected some of chaser, .*, react"):
        replace(config, agents=("other",))


def test_bills_are_added():
    one = {"model": "m", "operation": {"agent": {"calls": 1}}}
    other = {"model": "m", "operation": {"agent": {"calls": 2}, "controller": {"calls": 5}}}
    assert add_reports(one, other) == {"model": "m", "operation": {"agent": {"calls": 3}, "controller": {"calls": 5}}}
