from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from stopwise.data.errors import DataError
from stopwise.envs.hindsight import clairvoyant_values
from stopwise.train.regression import fit_ridge, standardisation
from stopwise.train.targets import fitted_targets

# A small searcher. In state 0 the trail is warm, in 1 lukewarm, in 2 cold; a search finds new evidence with FIND,
# worth .3 of recall, and an answer given in a state is correct with CORRECT.
FIND = np.array([0.9, 0.4, 0.05])
MOVE = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.0, 0.1, 0.9]])
CORRECT = np.array([0.2, 0.5, 0.4])
GAIN, COST = 0.3, 0.1


@dataclass
class Logs:
    state: np.ndarray
    arguments: dict[str, Any]

    @property
    def features(self):
        return np.eye(3)[self.state]

    def fit(self, ridge: float = 0.1, **options: Any):
        return fitted_targets(self.features, **self.arguments, search_cost=COST, ridge=ridge, **options)

    def clairvoyant(self):
        return clairvoyant_values(
            **{name: array for name, array in self.arguments.items() if name != "questions"}, search_cost=COST
        )


def sample(runs, lengths, seed=0, runs_a_question=4):
    """Logged runs; the gain, the next state and the correctness of answers are all chance."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    state = np.empty(offsets[-1], dtype=int)
    state[offsets[:-1]] = now = rng.integers(0, 3, runs)
    cumulative = MOVE.cumsum(axis=1)
    for turn in range(1, lengths.max()):
        now = (rng.random(runs)[:, None] > cumulative[now]).sum(axis=1)
        alive = lengths > turn
        state[offsets[:-1][alive] + turn] = now[alive]
    last = np.zeros(offsets[-1], dtype=bool)
    last[offsets[1:] - 1] = True
    return Logs(
        state,
        {
            "offsets": offsets,
            "gain_next": np.where(last, 0.0, GAIN * (rng.random(offsets[-1]) < FIND[state])),
            "stop_value": (rng.random(offsets[-1]) < CORRECT[state]).astype(float),
            "end_value": (rng.random(runs) < CORRECT[state[last]]).astype(float),
            "questions": np.arange(runs) // runs_a_question,
        },
    )


def optimum(turns):
    """Q of continuing by turn and state, shape (turns, 3), and the optimal value from each first state."""
    q = np.empty((turns, 3))
    q[-1] = CORRECT
    for turn in reversed(range(turns - 1)):
        q[turn] = GAIN * FIND - COST + MOVE @ np.maximum(CORRECT, q[turn + 1])
    return q, np.maximum(CORRECT, q[0])


@pytest.fixture(scope="module")
def fixed_length():
    return sample(12_000, np.full(12_000, 5))


def test_the_optimum_of_a_known_process_is_recovered(fixed_length):
    fitted = fixed_length.fit()
    q, value = optimum(5)
    turn = np.tile(np.arange(5), 12_000)
    truth = q[turn, fixed_length.state]
    assert np.abs(fitted.q_continue - truth).max() < 0.05  # each from some 1,500 returns of deviation 0.5
    assert np.abs(fitted.q_stop - CORRECT[fixed_length.state]).max() < 0.05
    clear = np.abs(truth - CORRECT[fixed_length.state]) > 0.05
    assert 0.5 < clear.mean() < 1
    assert np.array_equal(fitted.stop[clear], (truth < CORRECT[fixed_length.state])[clear])
    assert 0.2 < fitted.stop[clear].mean() < 0.8
    assert fitted.value.mean() == pytest.approx(value.mean(), abs=0.012)
    assert (fitted.tail_turn == 4).all()


def test_hindsight_promises_what_no_policy_can_reach_and_the_fit_does_not(fixed_length):
    _, value = optimum(5)
    best = value[fixed_length.state[::5]].mean()
    assert fixed_length.clairvoyant().value.mean() > best + 0.2
    assert abs(fixed_length.fit().value.mean() - best) < 0.012


def test_realised_returns_average_to_the_regressed_values(fixed_length):
    fitted = fixed_length.fit()
    difference = fitted.return_continue - fitted.q_continue
    assert abs(difference.mean()) < 0.005
    assert difference.std() > 0.3
    assert np.array_equal(fitted.return_stop, fixed_length.arguments["stop_value"])


def test_noise_features_do_not_pull_returns_towards_hindsight():
    logs = sample(300, np.full(300, 6), seed=4, runs_a_question=2)
    noise = np.random.default_rng(1).normal(size=(1800, 40))
    zero = {"stop_value": np.zeros(1800), "gain_next": np.zeros(1800)}
    arguments: dict[str, Any] = logs.arguments | zero | {"end_value": np.random.default_rng(2).choice([-1.0, 1.0], 300)}
    fitted = fitted_targets(noise, **arguments, search_cost=0.0, min_rows=100, ridge=1.0)
    hindsight = clairvoyant_values(
        **{name: array for name, array in arguments.items() if name != "questions"}, search_cost=0.0
    )
    assert hindsight.value.mean() > 0.4
    assert abs(fitted.q_continue.mean()) < 0.1
    assert abs(fitted.value.mean()) < 0.12


@pytest.mark.parametrize("min_rows", [200, 10**9])
def test_the_tail_block_finds_the_stationary_optimum(min_rows):
    lengths = np.random.default_rng(0).geometric(0.2, 8000)  # the agent answers with probability .2 at every turn
    logs = sample(8000, lengths, seed=1)
    fitted = logs.fit(min_rows=min_rows)
    q = CORRECT.copy()
    for _ in range(200):
        q = 0.2 * CORRECT + 0.8 * (GAIN * FIND - COST + MOVE @ np.maximum(CORRECT, q))
    tail = np.arange(len(logs.state)) - np.repeat(logs.arguments["offsets"][:-1], lengths) >= fitted.tail_turn.max()
    assert (fitted.tail_turn == 0).all() == (min_rows == 10**9)
    assert np.abs(fitted.q_continue - q[logs.state])[tail].mean() < (0.015 if min_rows == 10**9 else 0.06)


def test_boosted_trees_find_it_too():
    logs = sample(1200, np.full(1200, 2))
    fitted = logs.fit(regressor_name="boosted", folds=3)
    q, _ = optimum(2)
    truth = q[np.tile(np.arange(2), 1200), logs.state]
    assert np.abs(fitted.q_continue - truth).mean() < 0.04


def test_a_questions_future_reaches_no_target_of_its_own_fold():
    lengths = np.random.default_rng(3).integers(1, 9, 400)
    logs = sample(400, lengths, seed=2)
    before = logs.fit(min_rows=30)
    changed = {name: array.copy() for name, array in logs.arguments.items()}
    rows = slice(changed["offsets"][8], changed["offsets"][12])  # the four runs of question 2
    changed["gain_next"][rows] += 5.0
    changed["stop_value"][rows] -= 3.0
    changed["end_value"][8:12] += 7.0
    after = Logs(logs.state, changed).fit(min_rows=30)
    same_fold = (before.fold == before.fold[8])[np.repeat(np.arange(400), lengths)]
    assert len(set(before.fold[8:12])) == 1
    assert np.array_equal(before.q_continue[same_fold], after.q_continue[same_fold])
    assert np.array_equal(before.q_stop[same_fold], after.q_stop[same_fold])
    assert not np.allclose(before.q_continue[~same_fold], after.q_continue[~same_fold])
    own = np.zeros(len(logs.state), dtype=bool)
    own[rows] = True
    assert np.array_equal(before.return_continue[same_fold & ~own], after.return_continue[same_fold & ~own])
    assert not np.array_equal(before.return_continue[own], after.return_continue[own])


def test_one_seed_gives_one_answer():
    logs = sample(60, np.random.default_rng(0).integers(1, 6, 60))
    one, same, other = logs.fit(seed=1), logs.fit(seed=1), logs.fit(seed=2)
    assert np.array_equal(one.q_continue, same.q_continue)
    assert not np.array_equal(one.fold, other.fold)


def test_one_step_runs_pay_no_search():
    fitted = fitted_targets(
        np.zeros((6, 1)),
        offsets=np.arange(7),
        gain_next=np.full(6, 0.1),
        stop_value=np.zeros(6),
        end_value=np.full(6, 0.5),
        questions=np.arange(6),
        search_cost=1.0,
        recall_weight=2.0,
    )
    assert fitted.return_continue == pytest.approx(np.full(6, 0.7))
    assert fitted.q_continue == pytest.approx(np.full(6, 0.7))
    assert not fitted.stop.any()


def test_runs_without_a_decision_point_keep_their_end_value():
    offsets = np.array([0, 1, 1, 2, 3])
    end_value = np.array([0.0, 0.9, 0.0, 0.0])
    arguments: dict[str, Any] = {
        "offsets": offsets,
        "gain_next": np.zeros(3),
        "stop_value": np.ones(3),
        "end_value": end_value,
    }
    fitted = fitted_targets(np.zeros((3, 1)), **arguments, questions=np.arange(4), search_cost=0.1, folds=3)
    assert fitted.value == pytest.approx([1, 0.9, 1, 1])
    hindsight = clairvoyant_values(**arguments, search_cost=0.1)
    assert hindsight.value == pytest.approx([1, 0.9, 1, 1])
    assert hindsight.best_stop.tolist() == [0, 0, 0, 0]
    assert fitted.fold[1] == -1
    assert sorted(fitted.fold[[0, 2, 3]]) == [0, 1, 2]


def test_clairvoyant_stops_equal_the_best_of_all_stops():
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 7, 80)
    logs = sample(80, lengths, seed=6)
    hindsight = logs.clairvoyant()
    for run, (first, end) in enumerate(zip(logs.arguments["offsets"], logs.arguments["offsets"][1:], strict=False)):
        gain, stop = logs.arguments["gain_next"][first:end], logs.arguments["stop_value"][first:end]
        returns = [gain[:t].sum() - COST * t + stop[t] for t in range(end - first)]
        returns.append(gain.sum() - COST * (end - first - 1) + logs.arguments["end_value"][run])
        assert hindsight.value[run] == pytest.approx(max(returns))
        assert returns[hindsight.best_stop[run]] == pytest.approx(max(returns))
        assert hindsight.continue_value[first] == pytest.approx(max(returns[1:]))


def test_of_equal_stops_the_earliest_is_taken():
    hindsight = clairvoyant_values(np.array([0, 4]), np.zeros(4), np.zeros(4), np.zeros(1), search_cost=0.0)
    assert hindsight.best_stop.tolist() == [0]


def test_ridge_is_sklearns_on_standardised_features():
    rng = np.random.default_rng(0)
    features, values, other = rng.normal(3, 2, (50, 4)), rng.normal(size=(50, 2)), rng.normal(size=(7, 4))
    features[:, 2] = 0.1
    mean, scale = standardisation(features)
    assert scale[2] == 1
    reference = Ridge(alpha=3.0).fit((features - mean) / scale, values)
    assert fit_ridge(features, values, 3.0)(other) == pytest.approx(reference.predict((other - mean) / scale))


def test_bad_input_is_refused():
    logs = sample(12, np.full(12, 2))
    with pytest.raises(DataError, match="at least 5 questions to cross-fit, found 3"):
        logs.fit()
    with pytest.raises(ValueError, match="at least 3 folds"):
        logs.fit(folds=2)
    with pytest.raises(ValueError, match="ridge strength"):
        logs.fit(folds=3, ridge=0.0)
    with pytest.raises(ValueError, match="not one of"):
        logs.fit(folds=3, regressor_name="forest")
    with pytest.raises(ValueError, match="stop_value has values that are not finite"):
        Logs(logs.state, logs.arguments | {"stop_value": np.full(24, np.nan)}).fit(folds=3)
    with pytest.raises(ValueError, match="offsets"):
        Logs(logs.state, logs.arguments | {"offsets": np.arange(13)}).fit(folds=3)
    with pytest.raises(ValueError, match="as many end and stop"):
        Logs(logs.state, logs.arguments | {"end_value": np.zeros(3)}).fit(folds=3)
    with pytest.raises(ValueError, match="features have values"):
        fitted_targets(np.full((24, 1), np.nan), **logs.arguments, search_cost=0.0, folds=3)
