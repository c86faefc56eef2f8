"""The arena benchmark over agents that a language model drives: bills apart, shares, resuming."""

import json
import re
from dataclasses import replace

import pytest

from stopwise.controllers.baselines import FixedBudget, NeverStop
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.kinds import connect
from stopwise.controllers.raac import Raac
from stopwise.data.store import read_trajectories
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.collect import collect
from stopwise.envs.arena.collection import CollectConfig, RethinkerChoice
from stopwise.envs.arena.react_agent import ReactConfig
from stopwise.envs.rewards import Reward
from stopwise.evaluation.arena import AGENTS_BILL, ArenaArm, ArenaBenchmark, arena_rows
from stopwise.evaluation.benchmark import Arm
from stopwise.models.chat_config import ChatConfig, open_chat
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.endpoints import Endpoint, Patience
from stopwise.models.ledger import Budget, BudgetSpent, read_bill
from stopwise.models.prompts import load_prompt
from stopwise.models.running_bill import RunningBill
from stopwise.signals.calibration import Calibration
from stopwise.signals.table import SignalInfo
from stopwise.signals.tracker import SignalConfig

pytest.importorskip("bm25s")

INFO = SignalInfo(SignalConfig(signals=("Nov", "Sim", "residual_z")), encoder=None, calibrations=(), logs_sha256=None)
ANSWER_NOW = load_prompt("answer_now").text[:30]
SEARCHES = 4  # of an agent by itself


def agent_and_controller(body):
    """Searches four times, then answers; as a controller intervenes after the second search; rethinks."""
    messages = body["messages"]
    text = messages[-1]["content"]
    if text.startswith(load_prompt("raac").text[:40]):
        steps = len(re.findall(r"^\d+ \|", text, re.MULTILINE))
        return json.dumps({"reasoning": f"{steps}", "action": "intervene" if steps == 2 else "continue"})
    if "You are its critic" in text:
        return json.dumps({"critique": "Too narrow.", "query": f"something else {len(text)}"})
    if ANSWER_NOW in text:
        return "Answer: no candidate"
    return f"I look.\nSearch: town {len(messages)}" if len(messages) < 2 * SEARCHES + 2 else "Answer: Alba"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driven") / "world"
    write_world(folder, WorldConfig(documents=900, questions=40, seed=2))
    return folder


@pytest.fixture
def config(world, server, tmp_path):
    server.otherwise = agent_and_controller
    endpoint = Endpoint(server.url, "m", patience=Patience(attempts=1))
    return CollectConfig(
        str(world),
        agents=("react",),
        react=(ReactConfig(),),
        llm=ChatConfig(endpoint=endpoint, cache=str(tmp_path / "replies.sqlite"), parallel=1),
        questions=3,
        retriever="bm25",
        group=1,
    )


@pytest.fixture
def bench_of(tmp_path, lengths):
    def make(config, info=INFO, bills=(), name="arms", said=None):
        progress = (lambda *_: None) if said is None else (lambda what, *_: said.append(what))
        encoder = CachedEncoder(lengths, ":memory:")
        return ArenaBenchmark(config, info, encoder, tmp_path / name, progress, bills)

    return make


def raac(client):
    arm = Arm("raac N", Raac(signals=["Nov"]), Guards(cooldown=1))
    connect(arm.controller, client)
    return ArenaArm(arm)


def test_the_agents_are_those_of_collect(config, bench_of, lengths, tmp_path):
    alone = bench_of(config).run(None).runs
    collect(config, tmp_path / "collected", lambda model: lengths)
    assert tuple(read_trajectories(tmp_path / "collected" / "trajectories.parquet")) == alone
    assert [len(run.search_steps) for run in alone] == [SEARCHES] * 3


def test_bills_and_shares(config, bench_of, server, client_of, tmp_path):
    """The scripted server takes 13 tokens a call."""
    client = client_of(model="judge")
    bill = RunningBill(tmp_path / "controllers.json", client)
    bench = bench_of(config, bills=(bill,))
    one = raac(client)
    other = replace(one, arm=replace(one.arm, name="rethinking by the model"), rethinker=RethinkerChoice("llm"))
    arms = [ArenaArm(Arm("never", NeverStop())), one, other]
    (never, plain, rethinking), apart = arena_rows(bench, arms, Reward())
    assert never["models"] == {"agent": bench.client.id, "controller": None, "rethinker": None, "coverage": None}
    assert never["cost"]["calls"] == {"agent": SEARCHES + 1, "controller": 0, "rethinker": 0}
    assert never["overhead"]["times_alone"] == pytest.approx(1)
    # of four searches the third is injected, and the agent is not asked for it
    assert plain["interventions"] == 1
    assert plain["models"]["controller"] == client.id
    assert plain["models"]["rethinker"] is None
    assert plain["cost"]["calls"]["controller"] == plain["controller_calls"] == plain["searches"]
    assert plain["cost"]["tokens"]["controller"] == 13 * plain["searches"]
    assert plain["cost"]["calls"] == {"agent": SEARCHES, "controller": SEARCHES, "rethinker": 0}
    assert plain["overhead"]["calls"] == {"controller": 0.5, "rethinker": 0}
    assert rethinking["models"]["rethinker"] == bench.client.id
    assert rethinking["cost"]["calls"]["rethinker"] == 1
    assert rethinking["cost"]["seconds"]["rethinker"] > 0
    assert rethinking["overhead"]["tokens"]["rethinker"] > 0
    seconds = plain["cost"]["seconds"]
    assert 0 < seconds["signals"] < seconds["controller"]
    assert seconds["controller"] > plain["controller_seconds"]
    whole = seconds["agent"] + seconds["search"] + seconds["controller"] + seconds["rethinker"]
    assert plain["overhead"]["seconds"]["controller"] == pytest.approx(seconds["controller"] / whole)
    assert plain["overhead"]["times_alone"] == pytest.approx(
        whole / (never["cost"]["seconds"]["agent"] + never["cost"]["seconds"]["search"])
    )
    assert apart["react"][1]["cost"] == plain["cost"]
    # what was really paid: each bill knows its own purposes only, and the probes for the log are evaluation
    agents, controllers = bench.report(), bill.report()
    assert agents["operation"].keys() == {"agent", "rethinker", "total"}
    assert agents["evaluation"]["reader"]["calls"] > 0
    assert controllers["operation"].keys() == {"controller", "total"}
    assert controllers["evaluation"].keys() == {"total"}
    paid = [
        part["total"]["calls"] for told in (agents, controllers) for part in (told["operation"], told["evaluation"])
    ]
    assert sum(paid) == len(server.requests)


def test_the_answer_at_a_stop_is_the_agents_and_probes_are_not(config, bench_of):
    bench = bench_of(config)
    (row,), _ = arena_rows(bench, [ArenaArm(Arm("two", FixedBudget(2)))], Reward())
    assert row["cost"]["calls"]["agent"] == 3  # two turns and the answer
    assert row["overhead"]["times_alone"] < 1


def test_a_benchmark_goes_on_with_a_larger_budget(config, bench_of, server, tmp_path):
    arms = [ArenaArm(Arm("three", FixedBudget(3))), ArenaArm(Arm("rules", Heuristic()))]
    whole, _ = arena_rows(bench_of(config, name="whole"), arms, Reward())
    server.requests.clear()
    fresh = replace(config, llm=replace(config.llm, cache=str(tmp_path / "other.sqlite"), budget=Budget(calls=13)))
    with pytest.raises(BudgetSpent):
        arena_rows(bench_of(fresh), arms, Reward())
    assert _paid(read_bill(tmp_path / "arms" / AGENTS_BILL)) == len(server.requests) == 13
    again = replace(fresh, llm=replace(fresh.llm, budget=Budget()))
    bench = bench_of(again)
    rows, _ = arena_rows(bench, arms, Reward())
    assert _paid(bench.report()) == len(server.requests)
    timeless = ("cost", "overhead", "controller_seconds", "milliseconds_a_decision")
    for one, other in zip(rows, whole, strict=True):
        assert {k: v for k, v in one.items() if k not in timeless} == {
            k: v for k, v in other.items() if k not in timeless
        }
        assert one["cost"]["calls"] == other["cost"]["calls"]
    said: list[str] = []
    assert arena_rows(bench_of(again, said=said), arms, Reward())[0] == rows
    assert said == []


def _paid(bill):
    return sum(bill[part]["total"]["calls"] for part in ("operation", "evaluation"))


def test_side_by_side_is_the_same(config, bench_of, server, client_of, tmp_path):
    found = []
    for parallel in (1, 4):
        llm = replace(config.llm, parallel=parallel, cache=str(tmp_path / f"{parallel}.sqlite"))
        bench = bench_of(replace(config, llm=llm, group=3), name=f"arms{parallel}")
        made = bench.run(raac(client_of()))
        steps = [[replace(step, seconds=None) for step in run.steps] for run in made.runs]
        found.append((steps, [(cost.agent.calls, cost.controller.calls) for cost in made.costs]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("lines", "logprobs", "reason"),
    [
        ((), False, "no residual_z: react brings no log-probabilities"),
        ((), True, "no residual_z: not calibrated for react; compute `signals` from its own training runs"),
        ((("react", "logged", Calibration(slope=0.0, intercept=0.1, sigma=0.01, steps=9)),), True, None),
    ],
)
def test_a_monitor_without_a_line_is_not_applicable(config, bench_of, server, lines, logprobs, reason):
    if logprobs:
        tokens = [{"token": "I look.", "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -1.25}]}]
        server.otherwise = lambda body: {"message": {"content": agent_and_controller(body)}, "logprobs": tokens}
        endpoint = replace(config.llm.endpoint, server="vllm")
        config = replace(config, llm=replace(config.llm, endpoint=endpoint))
    bench = bench_of(config, replace(INFO, calibrations=lines))
    arms = [ArenaArm(Arm("never", NeverStop())), ArenaArm(Arm("fast", DsMcm()))]
    (_, row), apart = arena_rows(bench, arms, Reward())
    assert row.get("not_applicable") == apart["react"][1].get("not_applicable") == reason
    assert row["models"]["agent"] == open_chat(config.llm).id
    if reason is None:
        assert row["interventions"] > 0


def test_of_mixed_agents_the_scripted_ones_have_no_share(config, bench_of):
    mixed = replace(config, agents=("react", "quitter"))
    line = ("quitter", "logged", Calibration(slope=0.0, intercept=1.0, sigma=0.2, steps=9))
    bench = bench_of(mixed, replace(INFO, calibrations=(line,)))
    arms = [ArenaArm(Arm("never", NeverStop())), ArenaArm(Arm("fast", DsMcm()))]
    rows, apart = arena_rows(bench, arms, Reward())
    assert "scripted" in rows[0]["overhead"]["reason"]
    assert apart["react"][0]["overhead"]["times_alone"] == pytest.approx(1)
    assert "scripted" in apart["quitter"][0]["overhead"]["reason"]
    # the monitor works on one kind only: its figures are told of that one
    assert "react" in rows[1]["not_applicable"]
    assert "react" in apart["react"][1]["not_applicable"]
    assert apart["quitter"][1]["runs"] == 3


def test_a_network_in_this_process_drives_both(config, bench_of, tiny_lm_folder, tmp_path):
    """A random one of 2,048 places: agents search for what they said, and the controller's prompt is too long."""
    llm = ChatConfig(local=str(tiny_lm_folder), cache=str(tmp_path / "local.sqlite"), parallel=1, tries=1)
    agent = ReactConfig(max_searches=2, max_tokens=8, unmarked="search")
    bench = bench_of(replace(config, llm=llm, react=(agent,), questions=2))
    arm = Arm("raac N", Raac(signals=["Nov"], max_tokens=8))
    connect(arm.controller, open_chat(llm))
    (never, row), _ = arena_rows(bench, [ArenaArm(Arm("never", NeverStop())), ArenaArm(arm)], Reward())
    assert row["models"]["agent"] == row["models"]["controller"] == open_chat(llm).id
    assert row["controller_failures"] == {"refused": 4}  # two decisions of two runs
    assert row["searches"] == never["searches"] == 2
    assert row["cost"]["calls"] == {"agent": 2, "controller": 0, "rethinker": 0}
    assert row["overhead"]["seconds"]["controller"] > 0  # the signals and the vain attempts
