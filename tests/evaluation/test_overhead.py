"""Shares by hand."""

import json

import numpy as np
import pytest

from stopwise.envs.arena.run_cost import RunCost
from stopwise.evaluation.overhead import SCRIPTED, cost_of
from stopwise.models.meter import Spent


def test_shares_by_hand():
    questions = np.array([0, 0, 1])
    alone = [RunCost(Spent(4, 4000, 10.0), search=2.0)] * 3  # 12 seconds each
    # question 0: means of 8 and 12 agent seconds; question 1: 6
    costs = [
        RunCost(Spent(3, 3000, 8.0), 1.0, Spent(2, 200, 1.5), 0.5, Spent(1, 100, 0.5)),
        RunCost(Spent(5, 5000, 12.0), 1.0, Spent(4, 400, 2.5), 0.5, Spent()),
        RunCost(Spent(2, 2000, 6.0), 1.0, Spent(1, 100, 1.0), 0.25, Spent(1, 100, 0.25)),
    ]
    row = cost_of(costs, alone, questions, scripted=False)
    assert row["cost"]["calls"] == {"agent": 3.0, "controller": 2.0, "rethinker": 0.75}
    assert row["cost"]["tokens"] == {"agent": 3000.0, "controller": 200.0, "rethinker": 75.0}
    assert row["cost"]["seconds"] == {
        "agent": 8.0, "search": 1.0, "controller": 1.5, "signals": 0.375, "rethinker": 0.25,
    }  # fmt: skip
    overhead = row["overhead"]
    assert overhead["calls"]["controller"] == pytest.approx(2 / 5.75)
    assert overhead["tokens"]["rethinker"] == pytest.approx(75 / 3275)
    assert overhead["seconds"]["controller"] == pytest.approx(1.5 / 10.75)  # its signals are in the 1.5
    assert overhead["seconds"]["rethinker"] == pytest.approx(0.25 / 10.75)
    assert overhead["added"] == pytest.approx(1.75 / 9)  # RAAC's 10%
    assert overhead["times_alone"] == pytest.approx(10.75 / 12)  # DS-MCM's x1.04


def test_agents_by_themselves_are_the_measure():
    alone = [RunCost(Spent(4, 4000, 10.0), search=2.0)]
    overhead = cost_of(alone, alone, np.array([0]), scripted=False)["overhead"]
    assert (overhead["times_alone"], overhead["added"]) == (1, 0)
    assert overhead["seconds"] == {"controller": 0, "rethinker": 0}


def test_of_a_scripted_agent_no_share_is_told():
    row = cost_of(
        [RunCost(search=0.1, controller=Spent(3, 30, 2.0))], [RunCost(search=0.1)], np.array([0]), scripted=True
    )
    assert row["cost"]["seconds"]["agent"] is row["cost"]["seconds"]["search"] is None
    assert row["cost"]["seconds"]["controller"] == 2
    assert row["cost"]["calls"]["controller"] == 3
    assert row["overhead"] == {
        "calls": None, "tokens": None, "seconds": None, "added": None, "times_alone": None, "reason": SCRIPTED,
    }  # fmt: skip


def test_what_costs_nothing_has_no_share():
    overhead = cost_of([RunCost()], [RunCost()], np.array([0]), scripted=False)["overhead"]
    assert overhead["seconds"] == {"controller": None, "rethinker": None}
    assert (overhead["added"], overhead["times_alone"]) == (None, None)


def test_a_cost_is_read_back():
    from dataclasses import asdict

    cost = RunCost(Spent(3, 3000, 8.0), 1.0, Spent(2, 200, 1.5), 0.5, Spent(1, 100, 0.5))
    assert RunCost.from_json(json.loads(json.dumps(asdict(cost)))) == cost
