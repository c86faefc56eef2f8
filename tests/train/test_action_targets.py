import math
from dataclasses import replace

import numpy as np
import pytest

from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.arena.branching import BranchOutcome
from stopwise.envs.interventions import Forbidden, Noop, Place
from stopwise.envs.logged import Logged
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift, UpliftFit, jumps, next_productive
from stopwise.signals.features import FeatureSpec
from stopwise.train.action_targets import action_targets, branch_targets
from stopwise.train.targets import TargetOptions

CONTINUE, INTERVENE, STOP = Action
PRICES = Reward(recall=1.0, correct=2.0, search=0.125, intervention=0.25, controller=0.0625)
CLOCK = FeatureSpec(())
OPTIONS = TargetOptions(folds=3, min_rows=1)


def constant(probability):
    """An uplift of the same probability everywhere."""
    size = 2 * len(CLOCK)
    intercept = (
        math.log(probability / (1 - probability)) if 0 < probability < 1 else math.copysign(99, probability - 0.5)
    )
    return Uplift(UpliftFit(CLOCK, np.zeros(size), np.ones(size), np.zeros(size), intercept, 100, 50, 2))


@pytest.fixture
def table(run_of, table_of):
    """The same run under six questions: what is regressed on the turn alone is exact."""
    runs = [run_of([0.25, 0.25, 0.25, 0.75, 0.75], question=f"q{number}", id=f"r{number}") for number in range(6)]
    return table_of(runs, signals=("Nov",))


def targets(table, model, prices=PRICES):
    return action_targets(table, table.turns[:, None].astype(float), prices, OPTIONS, intervention=model, seed=0)


# by hand, backward: searches and decisions cost .1875 together; stopping is worth 0
ROW_VALUE = [0.0, 0.125, 0.3125, 0.0, 0.0]
GOING_ON = [-0.0625, 0.125, 0.3125, -0.1875, 0.0]


def test_uplift_by_hand(table):
    found = targets(table, constant(0.25))
    # jump with 1/4 to row 3 (gain .5, worth 0 afterwards), stay with 3/4; a search, an intervention, a decision: .4375
    intervening = [
        0.25 * 0.5 + 0.75 * 0.0 - 0.4375,
        0.25 * 0.5 + 0.75 * 0.125 - 0.4375,
        0.25 * 0.5 + 0.75 * 0.3125 - 0.4375,
        0.0 - 0.4375,  # nothing productive is ahead: it stays for certain
        0.0 - 0.4375,
    ]
    expected = np.tile(np.column_stack([GOING_ON, intervening, np.zeros(5)]), (6, 1))
    assert found.returns == pytest.approx(expected)
    assert found.q == pytest.approx(expected)
    assert found.fitted.row_value == pytest.approx(np.tile(ROW_VALUE, 6))
    assert found.fitted.value == pytest.approx(np.zeros(6))


def test_noop_costs_its_price_and_goes_on(table):
    found = targets(table, Noop())
    assert found.q[:5, INTERVENE] == pytest.approx(np.array(GOING_ON) - 0.25)
    assert found.returns[:5, INTERVENE] == pytest.approx(np.array(GOING_ON) - 0.25)


def test_forbidden_has_no_value_of_intervening(table):
    found = targets(table, Forbidden())
    assert np.isnan(found.q[:, INTERVENE]).all()
    assert np.isnan(found.returns[:, INTERVENE]).all()
    assert found.q[:5, CONTINUE] == pytest.approx(GOING_ON)


def test_models_without_an_outcome_at_every_row_are_refused(table):
    branch = BranchOutcome("r0", "q0", "x", 1, INTERVENE, 0, 0.25, 0.0, 1, None, 1.0)
    with pytest.raises(UsageError, match="intervention 'logged' has no outcome at every step"):
        targets(table, Logged([branch]))


@pytest.mark.parametrize("model", [constant(0), constant(1), Noop()])
def test_realised_returns_are_what_the_environment_pays(model, run_of, table_of):
    """Certain outcomes, so one episode is the expectation: take the action, then follow the fitted policy."""
    rng = np.random.default_rng(3)
    runs = []
    for number in range(12):
        recall = np.sort(rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], rng.integers(2, 9)))
        probes = rng.integers(0, 2, len(recall)).astype(float)
        runs.append(run_of(recall, question=f"q{number}", id=f"r{number}", probes=probes, correct=float(number % 2)))
    table = table_of(runs, signals=("Nov",))
    found = targets(table, model)
    for row in range(len(table.values)):
        episode = int(table.episode_of_row[row])
        for action in (CONTINUE, INTERVENE, STOP):
            env = ReplayEnv(table, CLOCK, reward=PRICES, intervention=model)
            env.reset(options={"episode": episode})
            for _ in range(row - table.offsets[episode]):
                env.step(CONTINUE)
            total, over, now = 0.0, False, action
            while not over:
                _, reward, over, _, info = env.step(now)
                total += reward
                at = int(table.offsets[episode]) + info["t"] - 1
                now = STOP if found.fitted.stop[at] else CONTINUE
            assert found.returns[row, action] - PRICES.controller == pytest.approx(total)  # the decision itself


def test_jumps_are_those_of_the_model(run_of, table_of):
    rng = np.random.default_rng(1)
    runs = [
        run_of(np.sort(rng.choice([0.0, 0.5, 1.0], size)), question=f"q{size}", id=str(size)) for size in range(8)
    ] + [run_of(None, steps=3, question="none")]
    table = table_of(runs, signals=("Nov",))
    found = jumps(table, constant(0.3).fit)
    recall = np.nan_to_num(table.label("recall"))
    for row, episode in enumerate(table.episode_of_row):
        ahead = next_productive(Place(table, int(episode), row, np.zeros(2)))
        assert found.target[row] == (row if ahead is None else ahead)
        assert found.probability[row] == pytest.approx(0.0 if ahead is None else 0.3)
        assert found.gain[row] == recall[found.target[row]] - recall[row]


def test_a_questions_future_reaches_no_value_of_its_own_fold(run_of, table_of):
    rng = np.random.default_rng(0)

    def make(last):
        runs = []
        for number in range(30):
            recall = np.sort(np.random.default_rng(number).choice(np.linspace(0, 1, 9), 6))
            correct = last if number == 4 else float(number % 2)
            runs.append(run_of(recall, question=f"q{number}", id=f"r{number}", correct=correct))
        return table_of(runs, signals=("Nov",))

    design = np.column_stack([make(0.0).turns, rng.normal(size=180)])

    def fit(table):
        return action_targets(table, design, PRICES, OPTIONS, intervention=constant(0.5), seed=0)

    before, after = fit(make(0.0)), fit(make(1.0))
    same_fold = (before.fitted.fold == before.fitted.fold[4])[make(0.0).episode_of_row]
    assert np.array_equal(before.q[same_fold], after.q[same_fold])
    assert not np.allclose(before.q[~same_fold, INTERVENE], after.q[~same_fold, INTERVENE])


class TestBranches:
    @pytest.fixture
    def outcomes(self):
        def outcome(t, action, rollout, gain, searches, correct, run="r1"):
            return BranchOutcome(run, "q1", "x", t, action, rollout, 0.25, gain, searches, correct, 0.5)

        return [
            outcome(3, CONTINUE, 0, 0.5, 2, True),
            outcome(3, CONTINUE, 1, 0.0, 4, False),
            outcome(3, INTERVENE, 0, 0.75, 4, True),
            outcome(3, INTERVENE, 1, 0.75, 4, True),
            outcome(3, STOP, 0, 0.0, 0, True),
            outcome(1, CONTINUE, 0, 0.0, 1, None),
            outcome(1, INTERVENE, 0, 0.0, 1, None),
            outcome(1, STOP, 0, 0.0, 0, None),
            outcome(2, STOP, 0, math.nan, 0, None, run="other"),
        ]

    def test_values_by_hand(self, table, outcomes):
        found = branch_targets(outcomes, table, PRICES)
        assert found.rows.tolist() == [5, 7]  # of the second run, five rows each
        assert found.q[0] == pytest.approx([-0.1875, -0.4375, 0.0])
        assert found.q[1] == pytest.approx([((0.5 - 0.375 + 2) + (0.0 - 0.75)) / 2, 0.75 - 0.75 + 2 - 0.25, 2.0])
        assert found.error[1] == pytest.approx([(2.125 + 0.75) / 2, 0.0, 0.0])
        assert np.isnan(found.error[0, :STOP]).all()

    def test_a_split_keeps_its_own_states(self, table, outcomes):
        assert branch_targets(outcomes, table.select([1]), PRICES).rows.tolist() == [0, 2]
        with pytest.raises(DataError, match="none of 2 branched states is in the signal table"):
            branch_targets(outcomes, table.select([0]), PRICES)

    def test_signals_of_other_runs_are_refused(self, table, outcomes):
        with pytest.raises(DataError, match=r"run 'r1' had recall 0\.25 after search 9"):
            branch_targets([replace(one, t=9) for one in outcomes], table, PRICES)
        with pytest.raises(DataError, match=r"run 'r1' had recall 0\.5 after search 3"):
            branch_targets([replace(one, recall_before=0.5) for one in outcomes], table, PRICES)
