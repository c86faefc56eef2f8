import math
from dataclasses import fields, replace
from typing import Any

import pytest

from stopwise.data.corpus import Query
from stopwise.data.records import Document, Step
from stopwise.envs.arena.agents import ScriptedAgent
from stopwise.envs.arena.chance import Chance
from stopwise.envs.arena.kinds import KINDS, AgentKind, Temper
from stopwise.envs.arena.puzzle import WorldReader, puzzle_of


def fixed(**values: float) -> AgentKind:
    """A kind that always chases, never loops, reads everything; `values` override."""
    defaults = {
        "chase": 1.0, "clue": 1e-9, "drift": 0.0, "repeat": 0.0, "temperature": 0.01, "enter_loop": 0.0,
        "leave_loop": 0.0, "enter_verify": 0.0, "verify_turns": 1.0, "attention": 1.0, "patience": 50.0,
        "satisfied": 1.0, "budget": 60.0, "parallel": 0.0, "obedience": 1.0,
    }  # fmt: skip
    ranges: dict[str, Any] = {name: (value, value) for name, value in (defaults | values).items()}
    return AgentKind("fixed", **ranges)


@pytest.fixture
def agent(mini_query: Query, mini_reader: WorldReader) -> ScriptedAgent:
    return ScriptedAgent(fixed(), puzzle_of(mini_query), mini_reader, "seed")


def results(*ids: str) -> list[Document]:
    return [Document(id=name) for name in ids]


def test_known_path(agent: ScriptedAgent) -> None:
    """Anchor, hop, check, verification, answer: with one candidate the only move left is the right one."""
    assert agent.turn().queries == ("Which town is meant?",)
    agent.observe(results("other"))
    agent.turn()
    agent.observe(results("bees", "other"))
    hop = agent.turn()
    assert "Ida Brun" in hop.thought
    assert "born" in hop.queries[0]
    agent.observe(results("birth"))
    check = agent.turn()
    assert "Alba" in check.thought
    assert "salt" in check.thought
    agent.observe(results("salt"))
    assert agent.mode == "verify"
    assert agent.coverage == 1.0
    kinds = []
    for _ in range(4):
        turn = agent.turn()
        kinds.append(turn.kind)
        if turn.kind == "answer":
            assert turn.answer == "Alba"
            break
        agent.observe(results("salt"))
    assert kinds[-1] == "answer"


def test_patience_and_budget_end_a_run(mini_query: Query, mini_reader: WorldReader) -> None:
    puzzle = puzzle_of(mini_query)
    patient = ScriptedAgent(fixed(patience=4), puzzle, mini_reader, "s")
    for _ in range(4):
        assert patient.turn().kind == "search"
        patient.observe(results("other"))
    turn = patient.turn()
    assert (turn.kind, turn.answer) == ("answer", "unknown")
    spender = ScriptedAgent(fixed(budget=3), puzzle, mini_reader, "s")
    for _ in range(3):
        spender.turn()
        spender.observe(results("other"))
    assert spender.turn().kind == "cut"


def test_a_loop_goes_around_the_last_searches(mini_query: Query, mini_reader: WorldReader) -> None:
    agent = ScriptedAgent(fixed(enter_loop=1.0), puzzle_of(mini_query), mini_reader, "s")
    for _ in range(10):
        agent.turn()
        agent.observe(results("other"))
    assert agent.mode == "loop"
    assert agent.turn().thought


def test_logprobs_are_those_of_the_draws(agent: ScriptedAgent) -> None:
    agent.turn()
    agent.observe(results("bees"))
    agent.turn()
    agent.observe(results("birth"))
    logprobs = agent.turn().logprobs
    assert logprobs is not None
    assert logprobs.top is not None
    mode, family, *_ = logprobs.top
    assert mode == (0.0,)  # this kind never loops
    assert family[0] == pytest.approx(0.0, abs=1e-6)  # and always chases
    for position in logprobs.top:
        assert sum(map(math.exp, position)) == pytest.approx(1.0, abs=1e-4)


def test_probe_refuses_another_history(agent: ScriptedAgent) -> None:
    agent.turn()
    agent.observe(results("bees"))
    with pytest.raises(ValueError, match="seen 1 searches"):
        agent.probe([])


def test_fork_goes_on_in_the_same_way_and_apart(mini_query: Query, mini_reader: WorldReader) -> None:
    agent = ScriptedAgent(KINDS["chaser"], puzzle_of(mini_query), mini_reader, "s")
    for _ in range(3):
        agent.turn()
        agent.observe(results("other"))
    fork = agent.fork()
    ahead = []
    for _ in range(5):
        ahead.append(fork.turn())
        fork.observe(results("bees"))
    again = []
    for _ in range(5):
        again.append(agent.turn())
        agent.observe(results("bees"))
    assert ahead == again


def test_temper_is_drawn_within_its_ranges() -> None:
    for kind in KINDS.values():
        for seed in range(5):
            temper = kind.draw(Chance(str(seed)))
            for field in fields(Temper):
                low, high = getattr(kind, field.name)
                assert low <= getattr(temper, field.name) <= high


def test_a_memory_bank_keeps_what_was_read_too_early(mini_query: Query, mini_reader: WorldReader) -> None:
    """The birth place is read before the person is known: only the agent with notes makes the link afterwards."""
    for memory, known in ((False, None), (True, "Alba")):
        kind = replace(fixed(), memory=memory)
        agent = ScriptedAgent(kind, puzzle_of(mini_query), mini_reader, "s")
        agent.turn()
        agent.observe(results("birth"))
        agent.turn()
        agent.observe(results("bees"))
        steps = [Step("search"), Step("search")]
        assert agent.probe(steps) == known
        assert agent.turn().thought.startswith("My notes cover") == memory


def test_an_obedient_agent_leaves_its_loop(mini_query: Query, mini_reader: WorldReader) -> None:
    stubborn = ScriptedAgent(fixed(enter_loop=1.0, obedience=0.0), puzzle_of(mini_query), mini_reader, "s")
    obedient = ScriptedAgent(fixed(enter_loop=1.0, obedience=1.0), puzzle_of(mini_query), mini_reader, "s")
    for agent in (stubborn, obedient):
        for _ in range(4):
            agent.turn()
            agent.observe(results("other"))
        agent.intervene(["bees"], results("bees"), redirects=True)
    assert (stubborn.mode, obedient.mode) == ("loop", "explore")


def test_an_injected_search_uses_up_no_patience(mini_query: Query, mini_reader: WorldReader) -> None:
    agent = ScriptedAgent(fixed(patience=4), puzzle_of(mini_query), mini_reader, "s")
    for _ in range(3):
        agent.turn()
        agent.observe(results("other"))
    agent.intervene(["x"], results("other"), redirects=False)
    assert agent.turn().kind == "search"
    agent.observe(results("other"))
    assert agent.turn().kind == "answer"
