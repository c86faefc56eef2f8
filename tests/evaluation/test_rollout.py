import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.guards import Guards
from stopwise.controllers.oracle import Oracle
from stopwise.envs.interventions import Noop
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift, UpliftFit
from stopwise.evaluation.rollout import rollout
from stopwise.signals.features import FeatureSpec, build_features

REWARD = Reward(correct=2.0, search=0.25, intervention=0.5, controller=0.125)


@pytest.fixture(scope="module")
def table(run_of, table_of):
    return table_of(
        [
            run_of(
                [0.25, 0.5],
                id="answered",
                question="q0",
                final_recall=0.75,
                probes=[1.0, math.nan],
                correct=1.0,
                visible=[0.0, 1.0],
                signals={"residual_z": [3.0, 3.0]},
            ),
            run_of([0.5], id="cut", question="q1", correct=1.0, ended_by="budget", signals={"residual_z": [0.0]}),
            run_of([], id="empty", question="q2", correct=1.0),
            run_of(None, id="no gold", question="q3", steps=1, signals={"residual_z": [0.0]}),
        ]
    )


@pytest.fixture
def env(table):
    return ReplayEnv(table, FeatureSpec(()), reward=REWARD, intervention=Noop())


def test_a_run_to_its_own_end(env):
    answered, cut, empty, unknown = rollout(env, NeverStop(), Guards())
    assert (answered.stopped_at, answered.searches, answered.decisions) == (None, 2, 2)
    assert (answered.recall, answered.documents_seen, answered.relevant_seen) == (0.75, 10, 3)
    assert (answered.correct, answered.visible, answered.cut) == (1, 1, False)
    assert answered.value == 0.25 + 0.25 + 2.0 - 0.25 - 2 * 0.125
    assert math.isnan(cut.correct)  # it never answered, whatever the log says
    assert (cut.cut, cut.recall, cut.value) == (True, 0.5, -0.125)
    assert (empty.searches, empty.decisions, empty.recall, empty.correct, empty.value) == (0, 0, 0, 1, 2.0)
    assert math.isnan(unknown.recall)
    assert math.isnan(unknown.relevant_seen)


def test_a_run_that_was_stopped(env):
    answered, cut, empty, _ = rollout(env, FixedBudget(1), Guards())
    assert (answered.stopped_at, answered.searches, answered.decisions) == (1, 1, 1)
    assert (answered.recall, answered.documents_seen, answered.relevant_seen) == (0.25, 5, 1)
    assert (answered.correct, answered.visible, answered.cut) == (1, 0, False)  # the probe knows
    assert answered.value == 2.0 - 0.125
    assert math.isnan(cut.correct)  # not probed
    assert not cut.cut  # it was stopped before it was cut
    assert empty.stopped_at is None


def test_interventions_are_counted_and_paid(env):
    answered = rollout(env, DsMcm(on_flag="intervene"), Guards(cooldown=0))[0]
    assert (answered.interventions, answered.stopped_at) == (2, None)
    assert answered.value == 0.25 + 0.25 + 2.0 - 0.25 - 2 * 0.125 - 2 * 0.5
    assert rollout(env, DsMcm(on_flag="intervene"), Guards(cooldown=1))[0].interventions == 1
    forbidden = ReplayEnv(env.table, FeatureSpec(()))
    assert rollout(forbidden, DsMcm(on_flag="intervene"), Guards())[0].interventions == 0


def test_guards_hold(env):
    assert rollout(env, FixedBudget(1), Guards(min_steps=2))[0].stopped_at == 2
    assert rollout(env, NeverStop(), Guards(max_steps=1))[0].stopped_at == 1


def test_random_numbers_belong_to_the_run_and_not_to_its_place(run_of, table_of):
    runs = [run_of([0.0] * 8, id=f"run{number}", question=f"q{number}") for number in range(30)]

    def stops(order, seed=0):
        env = ReplayEnv(table_of([runs[number] for number in order], signals=("Nov",)), FeatureSpec(()))
        return {
            env.table.episodes[run.episode].id: run.stopped_at for run in rollout(env, Random(0.3), Guards(), seed=seed)
        }

    assert stops(range(30)) == stops(reversed(range(30)))
    assert stops([7]) == {"run7": stops(range(30))["run7"]}
    assert stops(range(30)) != stops(range(30), seed=1)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5).map(sorted), min_size=1, max_size=5), st.data())
def test_the_oracle_reaches_the_best_stop_of_every_run(run_of, table_of, counts, data):
    price = data.draw(st.sampled_from([0.0, 0.1, 0.3]))
    probe = st.sampled_from([0.0, 1.0, math.nan])
    runs = [
        run_of(
            [found / 4 for found in some],
            question=f"q{number}",
            probes=data.draw(st.lists(probe, min_size=len(some), max_size=len(some))),
            correct=data.draw(probe),
        )
        for number, some in enumerate(counts)
    ]
    reward = Reward(correct=data.draw(st.sampled_from([0.0, 0.5])), search=price, controller=0.05)
    env = ReplayEnv(table_of(runs, signals=("Nov",)), FeatureSpec(()), reward=reward)
    wide = Guards(max_steps=1000)
    budgets = [[run.value for run in rollout(env, FixedBudget(budget), wide)] for budget in range(1, 6)]
    budgets.append([run.value for run in rollout(env, NeverStop(), wide)])
    found = [run.value for run in rollout(env, Oracle(), wide)]
    assert found == pytest.approx(np.max(budgets, axis=0))


def test_after_a_jump_a_controller_sees_what_the_log_shows_there(run_of, table_of):
    """Steps that the uplift jumps over, or stays at, count once in means and streaks, as in the table."""
    seen = []

    class Curious(Random):
        features = FeatureSpec(("Nov",))

        def distribution(self, observation):
            seen.append(observation)
            return super().distribution(observation)

    nov = {"Nov": [1.0, 0.5, 0.25, 0.75, 0.0, 0.125]}
    runs = [run_of([0.0, 0.0, 0.0, 0.5, 0.5, 1.0], question=f"q{number}", signals=nov) for number in range(30)]
    table = table_of(runs)
    size = 2 * len(FeatureSpec(()))
    fit = UpliftFit(FeatureSpec(()), np.zeros(size), np.ones(size), np.zeros(size), 0.0, 100, 50, 2)
    env = ReplayEnv(table, FeatureSpec(()), reward=REWARD, intervention=Uplift(fit))
    found = rollout(env, Curious(0.1, 0.5), Guards(cooldown=0))
    assert sum(run.interventions for run in found) > 20
    whole = build_features(table, FeatureSpec(("Nov",)))[:6]
    for observation in seen:
        assert np.array_equal(observation.features, whole[observation.row.t - 1], equal_nan=True)
