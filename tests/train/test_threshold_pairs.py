import math

import numpy as np
import pytest

from stopwise.controllers.base import Observation
from stopwise.controllers.guards import Guards
from stopwise.controllers.thresholded import Thresholded, intervene_share
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.envs.interventions import Noop
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.retrieve import Retrieve
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift, UpliftFit
from stopwise.evaluation.benchmark import summarise
from stopwise.evaluation.rollout import rollout
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalRow
from stopwise.train.tune import (
    Objective,
    choose_pair_by_values,
    choose_threshold,
    choose_threshold_pair,
)

CONTINUE, INTERVENE, STOP = Action
CLOCK = FeatureSpec(())
REWARD = Reward(correct=0.5, search=0.05, intervention=0.03, controller=0.01)
GUARDS = Guards(min_steps=2, max_steps=7, cooldown=2, max_interventions=2)


def constant(probability):
    size = 2 * len(CLOCK)
    intercept = (
        math.log(probability / (1 - probability)) if 0 < probability < 1 else math.copysign(99, probability - 0.5)
    )
    return Uplift(UpliftFit(CLOCK, np.zeros(size), np.ones(size), np.zeros(size), intercept, 100, 50, 2))


class Table(Thresholded):
    """Probabilities by search step, from a list."""

    kind = "table"
    features = CLOCK

    def __init__(self, by_turn, threshold, intervene_threshold):
        self.by_turn, self.threshold, self.intervene_threshold = by_turn, threshold, intervene_threshold

    def probabilities(self, features):
        return self.by_turn[features[:, 0].astype(int) - 1]


@pytest.fixture(scope="module")
def by_turn():
    return np.random.default_rng(5).dirichlet(np.ones(3), size=9)


@pytest.fixture(scope="module")
def table(run_of, table_of):
    rng = np.random.default_rng(2)
    runs = []
    for number in range(14):
        recall = np.sort(rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], number % 9 + 1))
        probes = rng.integers(0, 2, len(recall)).astype(float)
        question = f"q{number // 2}"
        runs.append(run_of(recall, question=question, id=f"r{number}", probes=probes, correct=float(number % 2)))
    runs.append(run_of([], question="q20", id="empty", correct=1.0))
    return table_of(runs, signals=("Nov",))


def promised(table, by_turn, model, objective=Objective(), reward=REWARD):
    return choose_threshold_pair(by_turn[table.turns - 1], table, reward, GUARDS, model, objective)


def paid(table, by_turn, model, chosen, seeds=1, reward=REWARD):
    controller = Table(by_turn, chosen.threshold, chosen.intervene_threshold)
    env = ReplayEnv(table, CLOCK, reward=reward, intervention=model)
    found = [summarise(rollout(env, controller, GUARDS, seed=seed), table.question_codes) for seed in range(seeds)]
    return {name: np.array([one[name] for one in found]) for name in ("return", "recall", "searches", "interventions")}


@pytest.mark.parametrize("model", [constant(0), constant(1), Noop()])
def test_what_is_promised_is_what_the_environment_pays(table, by_turn, model):
    chosen = promised(table, by_turn, model)
    found = paid(table, by_turn, model, chosen)
    assert chosen.value == pytest.approx(found["return"][0])
    assert chosen.recall == pytest.approx(found["recall"][0])
    assert chosen.searches == pytest.approx(found["searches"][0])
    assert chosen.interventions == pytest.approx(found["interventions"][0])


def test_by_chance_it_is_paid_on_average(table, by_turn):
    cheap = Reward(search=0.06)
    chosen = promised(table, by_turn, constant(0.6), reward=cheap)
    found = paid(table, by_turn, constant(0.6), chosen, seeds=200, reward=cheap)
    assert chosen.interventions
    for name, value in (("return", chosen.value), ("searches", chosen.searches), ("recall", chosen.recall)):
        error = found[name].std(ddof=1) / math.sqrt(200)
        assert error > 0
        assert abs(found[name].mean() - value) < 4 * error


def test_no_other_pair_is_better(table, by_turn):
    chosen = promised(table, by_turn, constant(1))
    levels = [2.0, *np.unique(by_turn[:, STOP]), 0.0]
    shares = [2.0, *np.unique(intervene_share(by_turn)), 0.0]
    for stop in levels:
        for share in shares:
            other = Table(by_turn, stop, share)
            env = ReplayEnv(table, CLOCK, reward=REWARD, intervention=constant(1))
            value = summarise(rollout(env, other, GUARDS), table.question_codes)["return"]
            assert value <= chosen.value + 1e-9


def test_where_interventions_are_worthless_it_is_the_single_threshold(table, by_turn):
    never = by_turn.copy()
    never[:, INTERVENE] = 0.0
    never /= never.sum(axis=1, keepdims=True)
    pair = promised(table, never, constant(0))
    single = choose_threshold(never[table.turns - 1][:, STOP], table, REWARD, GUARDS, Objective())
    assert pair.interventions == 0
    assert (pair.value, pair.recall, pair.searches) == pytest.approx((single.value, single.recall, single.searches))


def test_the_objective_bounds_the_loss_of_recall(table, by_turn):
    chosen = promised(table, by_turn, constant(1), Objective(max_recall_loss=0.05))
    free = promised(table, by_turn, constant(1))
    assert chosen.recall is not None
    assert free.searches is not None
    full = summarise(rollout(ReplayEnv(table, CLOCK), Table(by_turn, 2.0, 2.0), Guards()), table.question_codes)[
        "recall"
    ]
    assert chosen.recall >= full - 0.05 - 1e-9


def test_a_model_that_rewrites_runs_is_refused(table, by_turn):
    with pytest.raises(UsageError, match="intervention 'retrieve'; expected forbidden, noop or uplift"):
        promised(table, by_turn, Retrieve([], None, None, None))  # type: ignore[arg-type]


def test_a_pair_by_values_of_single_actions():
    probabilities = np.array([[0.1, 0.1, 0.8], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1], [0.6, 0.3, 0.1]])
    q = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    questions = np.array([0, 1, 2, 2])
    chosen = choose_pair_by_values(probabilities, q, questions)
    assert 0.1 < chosen.threshold < 0.8
    assert 1 / 9 < chosen.intervene_threshold < 1 / 3
    assert chosen.value == pytest.approx((1 + 1 + (1 + 2) / 2) / 3)
    assert (chosen.recall, chosen.searches, chosen.interventions) == (None, None, None)


def test_the_share_of_intervening_among_what_goes_on():
    found = intervene_share(np.array([[0.2, 0.6, 0.2], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]]))
    assert found == pytest.approx([0.75, 0.0, 0.0])


def test_masks_leave_the_share_alone():
    observation = Observation(SignalRow(1, {}, {}), np.array([1.0, 0.0]), np.array([True, True, False]))
    decision = Table(np.array([[0.1, 0.3, 0.6]]), 0.5, 0.7).decide(observation)
    assert decision.action is INTERVENE
    observation = Observation(SignalRow(1, {}, {}), np.array([1.0, 0.0]), np.array([True, False, True]))
    assert Table(np.array([[0.3, 0.5, 0.2]]), 0.39, 0.1).decide(observation).action is STOP  # .2 of .5
