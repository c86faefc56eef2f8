import json
import random
from dataclasses import replace

import pytest

from stopwise.controllers.memory.entries import Entry
from stopwise.controllers.memory.memory import ExperienceMemory
from stopwise.data.corpus import Query
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.data.store import read_trajectories
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.branching import BranchConfig
from stopwise.envs.arena.collect import collect
from stopwise.envs.arena.collection import CollectConfig, ControllerChoice, RethinkerChoice, questions_of
from stopwise.envs.arena.plan_write_agent import PlanWriteConfig
from stopwise.envs.arena.react_agent import ReactConfig
from stopwise.models.chat_config import ChatConfig
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.endpoints import Endpoint, Patience
from stopwise.models.ledger import Budget, BudgetSpent, Prices, add_reports
from stopwise.signals.calibration import Calibration
from stopwise.signals.compute import compute_table
from stopwise.signals.table import write_table
from stopwise.signals.tracker import SignalConfig


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


@pytest.fixture
def signals(config, word_encoder, tmp_path):
    """A signal table that holds a calibration of `quitter`."""
    collect(replace(config, agents=("quitter",), react=(), llm=None), tmp_path / "plain", word_encoder)
    encoder = CachedEncoder(word_encoder(None), ":memory:")
    lines = {("quitter", "logged"): Calibration(slope=0.0, intercept=1.0, sigma=0.2, steps=100)}
    names = ("Nov", "RE", "residual", "residual_z")
    table = compute_table(lambda: iter(_runs(tmp_path / "plain")), SignalConfig(names), encoder, calibrations=lines)
    write_table(tmp_path / "signals.parquet", table)
    encoder.close()
    return str(tmp_path / "signals.parquet")


@pytest.fixture
def remember(word_encoder, tmp_path):
    """``remember(question_id, text, ...)``: a memory with lessons from these questions, beside two of its own."""
    pytest.importorskip("faiss")

    def make(*questions):
        encoder = CachedEncoder(word_encoder(None), ":memory:")
        memory = ExperienceMemory(tmp_path / "memory", encoder)
        for label in ("success", "failure"):
            for name, text in (("other", "Where is the mine?"), ("another", "Who kept bees?"), *questions):
                memory.add(Entry(f"Thought: {name}", "", f"{label} lesson of {name}", label, name, text))
        memory.close()
        encoder.close()
        return str(tmp_path / "memory")

    return make


@pytest.fixture
def monitored(config, signals, server):
    """A collection under DS-MCM whole."""
    server.otherwise = json.dumps({"err": 1, "suggestion": "Look for the mine."})

    def make(memory=None, table=signals, **params):
        choice = ControllerChoice("ds_mcm", params={"slow": True} | params, signals=table, memory=memory)
        return replace(config, agents=("quitter",), react=(), controller=choice)

    return make


def test_ds_mcm_is_collected_with_model_calibrations_and_memory(monitored, remember, server, word_encoder, tmp_path):
    asked = monitored(remember())
    told = collect(asked, tmp_path / "out", word_encoder)
    steps = [step for run in _runs(tmp_path / "out") for step in run.search_steps]
    told_so = [step for step in steps if step.guidance is not None]
    assert told_so
    assert all(step.guidance == "Look for the mine." for step in told_so)
    assert all((step.guidance is None) == (step.logged_action is not Action.INTERVENE) for step in steps)
    assert told["llm"]["operation"]["controller"]["calls"] == len(server.requests) > 0
    for request in server.requests:
        prompt = request["messages"][0]["content"]
        assert all(f"{label} lesson of other" in prompt for label in ("success", "failure"))
    collect(asked, tmp_path / "again", word_encoder)
    one, other = (tmp_path / name / "trajectories.parquet" for name in ("out", "again"))
    assert one.read_bytes() == other.read_bytes()
    # a memory that has grown is another one
    remember(("third", "Who sold salt?"))
    with pytest.raises(UsageError, match="holds a collection of another config"):
        collect(asked, tmp_path / "out", word_encoder)


@pytest.mark.parametrize("by", ["id", "text"])
def test_a_question_of_the_run_in_the_memory_is_refused_before_anything(
    monitored, remember, server, word_encoder, tmp_path, by
):
    query: Query = questions_of(monitored("none"))[1]
    memory = remember((query.id, "Another text?") if by == "id" else ("another id", query.text))
    with pytest.raises(DataError, match=r"the memory holds .* questions of the evaluation"):
        collect(monitored(memory), tmp_path / "out", word_encoder)
    assert not (tmp_path / "out").exists()
    assert server.requests == []


def test_what_a_monitored_collection_lacks_is_named(monitored, remember, config, word_encoder, tmp_path):
    memory = remember()
    (tmp_path / "empty").mkdir()
    bare = SignalConfig(("Nov",))
    write_table(tmp_path / "bare.parquet", compute_table(lambda: iter(_runs(tmp_path / "plain")), bare, None))
    for asked, error, message in (
        (monitored(), UsageError, r"controller\.memory: ds_mcm with slow asks a memory"),
        (monitored(memory, slow=False), UsageError, r"controller\.memory: ds_mcm asks no memory with these"),
        (monitored(memory, recall=0), UsageError, r"controller\.memory: ds_mcm asks no memory with these"),
        (monitored(memory, online=True), UsageError, r"controller\.params\.online: what a run meets would depend"),
        (monitored(memory, table=None), UsageError, r"controller\.signals: ds_mcm needs calibrations; name the signal"),
        (monitored(memory, table=str(tmp_path / "bare.parquet")), UsageError, "has no residual_z, which ds_mcm needs"),
        (monitored(str(tmp_path / "empty")), DataError, r"empty: no experience memory; build one with"),
        (monitored(memory, table="none.parquet"), DataError, r"no such file"),
    ):
        with pytest.raises(error, match=message):
            collect(asked, tmp_path / "out", word_encoder)
    with pytest.raises(UsageError, match="llm: is needed by"):
        replace(monitored(memory), llm=None)
    with pytest.raises(UsageError, match=r"controller\.signals: is for a rule; a policy brings its own"):
        replace(config, controller=ControllerChoice(policy="p", signals="samples"))
    other = type(word_encoder(None))()
    other.id = "other"
    with pytest.raises(DataError, match="fitted with encoder words, found other"):
        collect(monitored(recall=0), tmp_path / "out", lambda model: other)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_run_is_refused(config):
    with pytest.raises(UsageError, match="llm: is needed by an agent"):
        replace(config, llm=None)
    with pytest.raises(UsageError, match="workers: one process keeps to the budget"):
        replace(config, workers=2)
    with pytest.raises(UsageError, match="a name is taken twice"):
        replace(config, react=(ReactConfig("chaser"),), agents=("chaser",))
    with pytest.raises(UsageError, match=r"expected some of chaser, .*, react"):
        replace(config, agents=("other",))
    with pytest.raises(UsageError, match="agents: chaser is named twice; its runs would be the same"):
        replace(config, agents=("chaser", "quitter", "chaser"))
    for count in (0, -3):  # a slice of -3 would quietly take all questions but three
        with pytest.raises(UsageError, match=f"questions: {count}; expected 1 or more"):
            replace(config, questions=count)


def test_bills_are_added():
    one = {"model": "m", "operation": {"agent": {"calls": 1}}}
    other = {"model": "m", "operation": {"agent": {"calls": 2}, "controller": {"calls": 5}}}
    assert add_reports(one, other) == {"model": "m", "operation": {"agent": {"calls": 3}, "controller": {"calls": 5}}}
