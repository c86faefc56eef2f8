import math
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.interventions import Forbidden, Noop, intervention_model
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.signals.features import FeatureSpec

CONTINUE, INTERVENE, STOP = Action
PRICES = Reward(recall=2.0, correct=3.0, search=0.25, intervention=0.5, controller=0.125)
SPEC = FeatureSpec(("Nov",))


@pytest.fixture(scope="module")
def table(run_of, table_of):
    """A run that answers, one cut by its budget, one of a single step, one without any step, one without gold."""
    return table_of(
        [
            run_of(
                [0.25, 0.25, 0.5],
                question="q0",
                signals={"Nov": [1.0, 0.5, "no documents"]},
                final_recall=0.75,  # a page opened after the last search brought the rest
                probes=[0.0, 1.0, math.nan],
                correct=1.0,
            ),
            run_of([0.5, 1.0], question="q1", signals={"Nov": [1.0, 0.0]}, ended_by="budget", correct=1.0),
            run_of([1.0], question="q2", signals={"Nov": [1.0]}, correct=0.0),
            run_of([], question="q3", ended_by="error"),
            run_of(None, question="q4", steps=2, signals={"Nov": [0.5, 0.5]}, correct=1.0),
        ]
    )


@pytest.fixture
def env(table):
    return ReplayEnv(table, SPEC, reward=PRICES, intervention=Noop())


def play(env, actions, episode=0):
    """Rewards and the last (observation, info) of a run under a list of actions."""
    observation, info = env.reset(options={"episode": episode})
    rewards, terminated, truncated = [], False, False
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
    return rewards, observation, terminated, truncated, info


@pytest.mark.filterwarnings("ignore:.*Box observation space (m..imum|maximum|minimum).*infinity.*")
@pytest.mark.parametrize("model", [Forbidden(), Noop()])
def test_gymnasium_accepts_the_environment(table, model):
    check_env(ReplayEnv(table, SPEC, reward=PRICES, intervention=model), skip_render_check=True)
    one_step = table.select([2])
    check_env(ReplayEnv(one_step, SPEC, intervention=model), skip_render_check=True)
    check_env(ReplayEnv(one_step, FeatureSpec(()), intervention=model), skip_render_check=True)


def test_a_seed_gives_one_order_of_episodes_and_every_run_comes_up(env):
    def names(seed):
        chosen = [env.reset(seed=seed)[1]["trajectory"]]
        return chosen + [env.reset()[1]["trajectory"] for _ in range(40)]

    assert names(3) == names(3)
    assert names(3) != names(4)
    assert len(set(names(3))) == env.episode_count == 4  # the run without a search step has no decision


def test_each_price_is_paid_where_it_is_due(env):
    env.reset(options={"episode": 0})
    _, reward, _, _, info = env.step(CONTINUE)
    assert info["reward"] == {"controller": -0.125, "recall": 0.0, "search": -0.25}
    assert reward == -0.375
    _, reward, _, _, info = env.step(INTERVENE)
    assert info["reward"] == {"controller": -0.125, "intervention": -0.5, "recall": 0.5, "search": -0.25}
    assert (info["searches"], info["interventions"], info["action"]) == (3, 1, INTERVENE)
    _, reward, terminated, truncated, info = env.step(CONTINUE)
    assert info["reward"] == {"controller": -0.125, "recall": 0.5, "correct": 3.0}  # no search follows: none is paid
    assert (terminated, truncated, info["ended_by"]) == (True, False, "answer")
    assert reward == 3.375


def test_stop_is_worth_what_the_probe_says_and_nothing_where_nobody_asked(env):
    assert play(env, [STOP])[0] == [-0.125]  # probed: wrong
    rewards, _, terminated, truncated, info = play(env, [CONTINUE, STOP])
    assert rewards[1] == 3.0 - 0.125  # probed: correct
    assert (terminated, truncated, info["ended_by"], info["t"]) == (True, False, "stop", 2)
    assert play(env, [CONTINUE, CONTINUE, STOP])[0][2] == -0.125  # not probed: unknown, paid as 0
    assert "recall" not in info["reward"]  # what pages opened later would have brought is given up


def test_a_log_that_was_cut_is_truncated_and_its_answer_does_not_count(env, run_of, table_of):
    rewards, _, terminated, truncated, info = play(env, [CONTINUE, CONTINUE], episode=1)
    assert (terminated, truncated, info["ended_by"]) == (False, True, "budget")
    assert rewards[1] == -0.125
    for ended_by in ("error", "unknown"):
        table = table_of([run_of([0.0], signals={"Nov": [1.0]}, ended_by=ended_by)])
        _, _, terminated, truncated, info = play(ReplayEnv(table, SPEC), [CONTINUE])
        assert (terminated, truncated, info["ended_by"]) == (False, True, ended_by)


def test_intervening_is_masked_where_no_model_allows_it(table):
    env = ReplayEnv(table, SPEC, reward=PRICES, intervention=Forbidden())
    _, info = env.reset(options={"episode": 0})
    assert info["action_mask"].tolist() == [1, 0, 1]
    observation, reward, _, _, info = env.step(INTERVENE)
    assert (info["action"], info["interventions"], info["intervention_model"]) == (CONTINUE, 0, "forbidden")
    assert reward == -0.375
    assert observation[-2:].tolist() == [0, 0]


def test_noop_charges_and_changes_nothing_else(env):
    assert env.reset(options={"episode": 0})[1]["action_mask"].tolist() == [1, 1, 1]
    going, observed, _, _, info = play(env, [CONTINUE, CONTINUE])
    nudged, other, _, _, _ = play(env, [INTERVENE, CONTINUE])
    assert nudged[0] == going[0] - 0.5
    assert other[:-2].tolist() == observed[:-2].tolist()
    assert info["intervention_model"] == "noop"


def test_steps_since_the_last_intervention_are_counted_as_controllers_count_them(env):
    env.reset(options={"episode": 0})
    assert env.step(INTERVENE)[0][-2:].tolist() == [1, 1]  # one search step after it
    assert env.step(CONTINUE)[0][-2:].tolist() == [1, 2]
    env.reset(options={"episode": 0})
    env.step(INTERVENE)
    assert env.step(INTERVENE)[0][-2:].tolist() == [2, 1]
    assert env.reset(options={"episode": 0})[0][-2:].tolist() == [0, 0]


def test_an_observation_holds_features_masks_and_interventions(env):
    observation, _ = env.reset(options={"episode": 0})
    names = SPEC.names
    there = dict(zip(names, observation[len(names) : 2 * len(names)], strict=True))
    values = dict(zip(names, observation, strict=False))
    assert values["t"] == 1
    assert values["Nov.value"] == 1
    assert there == {name: float(name != "Nov.change") for name in names}  # no step before the first
    assert values["Nov.change"] == 0
    env.step(CONTINUE)
    observation = env.step(CONTINUE)[0]
    position = names.index("Nov.value")
    assert (observation[position], observation[len(names) + position]) == (0, 0)  # null is 0 with mask 0
    assert observation.dtype == np.float32
    assert env.observation_space.contains(observation)


def test_what_it_returns_can_be_changed_without_changing_it(env):
    observation, info = env.reset(options={"episode": 0})
    kept = observation.copy()
    observation[:] = 9
    info["action_mask"][:] = 0
    env.signal_row.values.clear()  # type: ignore[attr-defined]
    again, info = env.reset(options={"episode": 0})
    assert again.tolist() == kept.tolist()
    assert info["action_mask"].all()
    assert env.signal_row.values == {"Nov": 1.0}


@given(st.integers(0, 2), st.integers(0, 2**32))
def test_observations_know_neither_the_future_nor_the_gold(table, at, seed):
    """Rows after t, every label, how the run ended and how long it was: all changed, and nothing at t differs."""
    rng = np.random.default_rng(seed)
    values, labels = table.values.copy(), rng.random(table.labels.shape)
    values[at + 1 : 3] = rng.random()
    ends = replace(table.episodes[0], ended_by="budget", gold=9.0, final_recall=0.1, correct=0.0, final_seen=77.0)
    other = replace(table, values=values, labels=labels, episodes=(ends, *table.episodes[1:]))
    shorter = np.arange(at + 1)
    cut = replace(
        table,
        values=table.values[shorter],
        reasons=table.reasons[shorter],
        labels=table.labels[shorter],
        offsets=np.array([0, at + 1]),
        episodes=table.episodes[:1],
    )
    seen = []
    for version in (table, other, cut):
        env = ReplayEnv(version, SPEC, reward=PRICES)
        observation, _ = env.reset(options={"episode": 0})
        for _ in range(at):
            observation = env.step(CONTINUE)[0]
        seen.append(observation.tolist())
    assert seen[0] == seen[1] == seen[2]


def test_hindsight_is_unknown_without_gold(env):
    env.reset(options={"episode": 4})
    assert math.isnan(env.hindsight.stop_value)
    assert math.isnan(env.hindsight.continue_value)
    assert math.isnan(env.hindsight.recall)
    assert math.isnan(env.hindsight.gold_left)
    env.reset(options={"episode": 0})
    assert env.hindsight.stop_value == -0.125


def test_hindsight_holds_the_gold_that_is_left(run_of, table_of):
    env = ReplayEnv(table_of([run_of([0.0, 0.75, 0.75], gold=4.0)], signals=("Nov",)), SPEC)
    env.reset(options={"episode": 0})
    found = []
    for _ in range(3):
        found.append((env.hindsight.recall, env.hindsight.gold_left))
        env.step(CONTINUE)
    assert found == [(0.0, 4.0), (0.75, 1.0), (0.75, 1.0)]


def test_wrong_calls_are_named(table, env, run_of, table_of):
    with pytest.raises(UsageError, match=r"call reset\(\) first"):
        ReplayEnv(table, SPEC).step(CONTINUE)
    for episode in (3, -1, 5, "q0", 1.5):
        with pytest.raises(UsageError, match=r"episode .* does not exist or has no search step"):
            env.reset(options={"episode": episode})
    env.reset(options={"episode": 2})
    for action in (3, -1, 1.5, "stop", None):
        with pytest.raises(UsageError, match=r"expected 0 \(continue\), 1 \(intervene\) or 2 \(stop\)"):
            env.step(action)
    env.step(np.array(2))
    with pytest.raises(UsageError, match=r"call reset\(\) first"):
        env.step(STOP)
    with pytest.raises(DataError, match="no run has a search step"):
        ReplayEnv(table.select([3]), SPEC)
    with pytest.raises(DataError, match="no column 'Sim'"):
        ReplayEnv(table, FeatureSpec(("Sim",)))
    with pytest.raises(UsageError, match="is not one of forbidden, noop"):
        intervention_model("retrieve")


def test_coverage_by_gold_is_refused_unless_asked_for(run_of, table_of):
    from stopwise.signals.tracker import SignalConfig

    runs = [run_of([0.5], signals={"Cov": [0.5]})]
    table = table_of(runs, config=SignalConfig(signals=("Cov",), coverage_judge="gold"))
    with pytest.raises(UsageError, match="judge `gold`"):
        ReplayEnv(table, FeatureSpec(("Cov",)))
    assert ReplayEnv(table, FeatureSpec(("Cov",)), privileged=True).episode_count == 1


def test_it_is_a_gymnasium_environment_of_three_actions(env):
    assert isinstance(env, gymnasium.Env)
    assert env.action_space == gymnasium.spaces.Discrete(3)
