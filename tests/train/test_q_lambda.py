import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.controllers.base import Observation
from stopwise.controllers.logistic import Logistic
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.hindsight import Runs, clairvoyant_values, lay_out
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalRow
from stopwise.train.q_lambda import (
    CONTINUE,
    STOP,
    LinearQ,
    QLambdaConfig,
    as_logistic,
    fit_q,
    lambdas,
    q_lambda_targets,
    train_q_lambda,
)


def one_run(stop: list[float], end: float, gain: list[float] | None = None, cost: float = 0.0) -> Runs:
    rows = len(stop)
    return lay_out(
        np.array([0, rows]), np.array(gain or [0.0] * rows), np.array(stop), np.array([end]), cost, recall_weight=1.0
    )


def test_targets_of_the_paper() -> None:
    """Stop-RAG eq. 8 to 12 for s_0, s_1, s_2 with T = 3, rewards at the end only.

    r(s_t, STOP) = .2, .5, .1 and r(s_2, CONT) = .4; Q = (CONT, STOP) = (.3, .1), (.6, .2), (.7, .9).
    s_2: .4 (eq. 12).
    s_1: n = 1 asks Q at s_2: max(.9, .7) = .9; n = 2 is complete: max(.1, .4) = .4.
    s_0: n = 1 asks Q at s_1: max(.2, .6) = .6; n = 2: max(.5, then Q at s_2: .9, .7) = .9; n = 3: max(.5, .1, .4) = .5.
    """
    runs = one_run([0.2, 0.5, 0.1], 0.4)
    q = np.array([[0.3, 0.1], [0.6, 0.2], [0.7, 0.9]])
    for lam in (0.0, 0.5, 1.0):
        expected = [
            (1 - lam) * (0.6 + lam * 0.9) + lam**2 * 0.5,
            (1 - lam) * 0.9 + lam * 0.4,
            0.4,
        ]
        found = q_lambda_targets(runs, q, lam)
        np.testing.assert_allclose(found[:, CONTINUE], expected)
        np.testing.assert_allclose(found[:, STOP], [0.2, 0.5, 0.1])


def test_rewards_on_the_way() -> None:
    # two rows, recall .25 to come and a price of .1 for the second search: .25 - .1 + max(.5, .2), or Q's .9
    runs = one_run([0.0, 0.5], 0.2, gain=[0.25, 0.0], cost=0.1)
    q = np.array([[0.0, 0.0], [0.9, 0.3]])
    np.testing.assert_allclose(q_lambda_targets(runs, q, 1.0)[:, CONTINUE], [0.65, 0.2])
    np.testing.assert_allclose(q_lambda_targets(runs, q, 0.0)[:, CONTINUE], [1.05, 0.2])
    np.testing.assert_allclose(q_lambda_targets(runs, q, 0.4)[:, CONTINUE], [0.6 * 1.05 + 0.4 * 0.65, 0.2])


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any),
    lam=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_targets_lie_between_one_step_and_hindsight(lengths: list[int], lam: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    offsets = np.cumsum([0, *lengths])
    gain, stop, end = rng.random(rows), rng.random(rows), rng.random(len(lengths))
    runs = lay_out(offsets, gain, stop, end, 0.1, 1.0)
    whole = q_lambda_targets(runs, rng.random((rows, 2)), 1.0)[:, CONTINUE]
    best = clairvoyant_values(offsets, gain, stop, end, search_cost=0.1)
    np.testing.assert_allclose(whole, best.continue_value)
    # a Q that is right makes every n-step target the same, so lambda does not matter
    truth = np.column_stack([best.continue_value, stop])
    np.testing.assert_allclose(q_lambda_targets(runs, truth, lam)[:, CONTINUE], best.continue_value)


def chance_runs(copies: int) -> tuple[np.ndarray, Runs]:
    """At A go on to B; at B stopping brings .5 and going on 1 or 0, by chance. One-hot features of A and B."""
    outcomes = [1.0, 0.0] * copies
    rows = 2 * len(outcomes)
    design = np.tile(np.eye(2), (len(outcomes), 1))
    runs = lay_out(
        np.arange(0, rows + 1, 2), np.zeros(rows), np.tile([0.1, 0.5], len(outcomes)), np.array(outcomes), 0.0, 1.0
    )
    return design, runs


def test_a_hand_made_process() -> None:
    """Going on at A is worth .5, whatever is done at B. Hindsight thinks .75, the mean of max(.5, 1) and max(.5, 0)."""
    design, runs = chance_runs(copies=200)
    hindsight = fit_q(design, runs, end=1.0, ridge=1e-6).values(np.eye(2))
    np.testing.assert_allclose(hindsight, [[0.75, 0.1], [0.5, 0.5]], atol=1e-6)
    fitted = fit_q(design, runs, end=0.0, ridge=1e-6).values(np.eye(2))
    np.testing.assert_allclose(fitted, [[0.5, 0.1], [0.5, 0.5]], atol=1e-6)
    between = fit_q(design, runs, end=0.5, ridge=1e-6).values(np.eye(2))
    np.testing.assert_allclose(between, [[0.5 * 0.5 + 0.5 * 0.75, 0.1], [0.5, 0.5]], atol=1e-6)


def test_worthless_states_are_left_out() -> None:
    """[Stop-RAG] 4.2: a state from which nothing can be had teaches nothing."""
    design, runs = chance_runs(copies=5)
    rows = len(design)
    with_idle = lay_out(
        np.append(np.arange(0, rows + 1, 2), rows + 3),
        np.zeros(rows + 3),
        np.append(runs.stop_value, [0.0] * 3),
        np.append(runs.end_value, 0.0),
        0.0,
        1.0,
    )
    wider = np.append(design, np.tile([[1.0, 0.0]], (3, 1)), axis=0)
    for end in (0.0, 1.0):
        np.testing.assert_allclose(
            fit_q(wider, with_idle, end=end, ridge=1.0).values(np.eye(2)),
            fit_q(design, runs, end=end, ridge=1.0).values(np.eye(2)),
        )
    with pytest.raises(DataError, match="nothing can be had"):
        fit_q(np.eye(2), one_run([0.0, 0.0], 0.0), end=0.0, ridge=1.0)


def test_lambda_goes_down_to_its_end() -> None:
    assert lambdas(0.3, 0.5, 2) == [1.0, 0.5, 0.3, 0.3]
    assert lambdas(1.0, 0.5, 3) == [1.0, 1.0, 1.0, 1.0]
    assert lambdas(0.0, 0.2, 1) == pytest.approx([1.0, 0.2, 0.04, 0.0])  # .008 is next to nothing


def test_the_policy_stops_where_stopping_is_worth_as_much() -> None:
    spec = FeatureSpec(())
    width = 2 * len(spec)
    # Q(stop) - Q(continue) = x - 2 for the first column x, which is the step index
    coef = np.array([[0.0, 1.0]])
    q = LinearQ(np.zeros(1), np.ones(1), coef, np.array([0.5, -1.5]))
    values = q.values(np.array([[1.0], [2.0], [3.0]]))
    np.testing.assert_allclose(values[:, STOP] - values[:, CONTINUE], [-1, 0, 1])
    controller = as_logistic(q, spec, np.array([0]), width, values)
    for x, action in ((1.9, Action.CONTINUE), (2.001, Action.STOP), (2.1, Action.STOP)):
        row = np.zeros(len(spec))
        row[0] = x
        seen = Observation(SignalRow(1, {}, {}), row, np.array([True] * 3))
        decision = controller.decide(seen)
        assert decision.action is action
        assert decision.probabilities[Action.INTERVENE] == 0
    assert controller.probabilities(np.array([[2.0] + [0.0] * (len(spec) - 1)]))[0, Action.STOP] == pytest.approx(0.5)


def test_it_learns_when_to_stop(knowing) -> None:
    """In these runs Cov tells when nothing more comes; the same seed gives the same policy."""
    config = QLambdaConfig("unused", features=("Cov", "Sim"), grid={"end": (0.0,), "ridge": (1.0,)})
    package, record = train_q_lambda(config, knowing)
    assert (package.name, package.controller.kind) == ("q_lambda", "logistic")
    never = 8.0 + 5.5  # searches a run makes by itself, about
    assert record["validation"]["recall"] > 0.95
    assert record["validation"]["searches"] < never - 3
    assert record["greedy"]["return"] == pytest.approx(record["validation"]["return"], abs=0.03)
    again, _ = train_q_lambda(config, knowing)
    assert isinstance(package.controller, Logistic)
    assert isinstance(again.controller, Logistic)
    for name, array in package.controller.weights.items():
        np.testing.assert_array_equal(array, again.controller.weights[name])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"grid": {"C": (1.0,)}}, "grid.C: is no parameter of q_lambda; expected end, ridge"),
        ({"grid": {"end": ()}}, "grid.end: is empty"),
        ({"grid": {"end": (2.0,)}}, "grid.end: 2.0; expected a number of 0 or more, 1 or less"),
        ({"grid": {"ridge": (0.0,)}}, "grid.ridge: 0.0; expected a number"),
        ({"decay": 1.0}, "decay: 1.0; expected a number"),
        ({"settle": 0}, "settle: 0; expected a whole number"),
    ],
)
def test_wrong_configs(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        QLambdaConfig("samples", **keys)  # pyright: ignore[reportArgumentType]


def test_no_gold_is_refused(run_of, table_of, questions_of) -> None:
    runs = [run_of(None, steps=3, question=q, signals={"Nov": [1.0] * 3}) for q in questions_of("train", 3)]
    with pytest.raises(DataError, match="no run of the split train has gold"):
        train_q_lambda(QLambdaConfig("unused"), table_of(runs))
