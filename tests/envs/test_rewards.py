import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.envs.hindsight import hindsight_values
from stopwise.envs.interventions import Noop
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward, run_values
from stopwise.signals.features import FeatureSpec

PRICE = st.sampled_from([0.0, 0.0625, 0.25, 0.5])
REWARDS = st.builds(
    Reward, recall=st.sampled_from([0.0, 1.0, 2.0]), correct=PRICE, search=PRICE, intervention=PRICE, controller=PRICE
)


@st.composite
def specifications(draw):
    """Arguments of one run: rising recall, probes known or not, a last page or none, any end."""
    length = draw(st.integers(1, 5))
    found = sorted(draw(st.lists(st.integers(0, 4), min_size=length + 1, max_size=length + 1)))
    return {
        "recall": [count / 4 for count in found[:-1]],
        "final_recall": found[-1] / 4,
        "probes": draw(st.lists(st.sampled_from([0.0, 1.0, math.nan]), min_size=length, max_size=length)),
        "correct": draw(st.sampled_from([0.0, 1.0, math.nan])),
        "ended_by": draw(st.sampled_from(["answer", "budget", "error", "unknown"])),
    }


def returns_of(env, episode, actions):
    _, info = env.reset(options={"episode": episode})
    total, over, taken = 0.0, False, 0
    while not over:
        action = actions[taken] if taken < len(actions) else Action.CONTINUE
        _, reward, terminated, truncated, info = env.step(action)
        total, over, taken = total + reward, terminated or truncated, taken + 1
    return total, info, taken


@given(st.lists(specifications(), min_size=1, max_size=4), REWARDS)
def test_hindsight_equals_the_best_over_all_stop_times(run_of, table_of, specs, reward):
    table = table_of([run_of(**spec, question=f"q{number}") for number, spec in enumerate(specs)])
    stop, going_on = hindsight_values(table, reward)
    env = ReplayEnv(table, FeatureSpec(()), reward=reward)
    for episode, (first, end) in enumerate(zip(table.offsets, table.offsets[1:], strict=False)):
        length = end - first
        plans = [[Action.CONTINUE] * t + [Action.STOP] for t in range(length)] + [[Action.CONTINUE] * length]
        returns = np.array([returns_of(env, episode, plan)[0] for plan in plans])
        assert stop[first] == pytest.approx(returns[0])
        assert going_on[first] == pytest.approx(returns[1:].max())
        for t in range(length):
            # from a later row on: what was paid before it is the same for all plans that reach it
            before = returns[t] - stop[first + t]
            assert going_on[first + t] + before == pytest.approx(returns[t + 1 :].max())


@given(
    specifications(),
    REWARDS,
    st.lists(st.sampled_from([Action.CONTINUE, Action.INTERVENE]), max_size=5),
    st.booleans(),
)
def test_the_return_is_what_was_found_and_answered_less_what_was_paid(run_of, table_of, spec, reward, actions, stops):
    table = table_of([run_of(**spec)])
    env = ReplayEnv(table, FeatureSpec(()), reward=reward, intervention=Noop())
    total, info, decisions = returns_of(env, 0, [*actions, Action.STOP] if stops else actions)
    if info["ended_by"] == "stop":
        recall = spec["recall"][info["searches"] - 1]
        correct = np.nan_to_num(spec["probes"][info["searches"] - 1])
    else:
        recall = spec["final_recall"]
        correct = np.nan_to_num(spec["correct"]) if spec["ended_by"] == "answer" else 0.0
    paid = (
        reward.search * (info["searches"] - 1)
        + reward.intervention * info["interventions"]
        + reward.controller * decisions
    )
    first = reward.recall * spec["recall"][0]
    assert total + first == pytest.approx(reward.recall * recall + reward.correct * correct - paid)


def test_values_of_a_hand_made_table(run_of, table_of):
    table = table_of(
        [
            run_of([0.25, 0.5], question="q0", final_recall=0.75, probes=[1.0, math.nan], correct=1.0),
            run_of([], question="q1"),
            run_of(None, question="q2", steps=2, correct=1.0, ended_by="unknown"),
        ]
    )
    values = run_values(table, Reward(correct=2.0))
    assert values.gain_next.tolist() == [0.25, 0.25, 0, 0]
    assert values.stop_value.tolist() == [2, 0, 0, 0]
    assert values.end_value.tolist() == [2, 0, 0]


def test_an_empty_table_has_no_values(table_of):
    values = run_values(table_of([], signals=("Nov",)), Reward())
    assert (len(values.gain_next), len(values.stop_value), len(values.end_value)) == (0, 0, 0)


@pytest.mark.parametrize("name", ["recall", "correct", "search", "intervention", "controller"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_price_that_is_none_is_refused(name, value):
    with pytest.raises(UsageError, match=rf"reward\.{name}"):
        Reward(**{name: value})
