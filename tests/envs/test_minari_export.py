import json
import math

import numpy as np
import pytest

from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action, Step, Trajectory
from stopwise.envs.minari_export import ExportReport, decision_episodes, happened, write_minari
from stopwise.envs.rewards import Reward
from stopwise.signals.features import FeatureSpec

CONTINUE, INTERVENE, STOP = Action
SPEC = FeatureSpec(("Nov",))
PRICES = Reward(recall=2.0, search=0.25, intervention=0.5, controller=0.125)


def run(id, actions, *others, propensities=None):
    steps = [Step("search", logged_action=action) for action in actions]
    return Trajectory(id, "q", "?", steps=(*steps, *others))


@pytest.fixture(scope="module")
def table(run_of, table_of):
    """A run that intervened and answered, one that was stopped, one that a budget cut, and two without a worth."""
    return table_of(
        [
            run_of([0.25, 0.75], id="a", signals={"Nov": [1.0, "no documents"]}, final_recall=1.0, correct=1.0),
            run_of([0.5, 0.5], id="b", signals={"Nov": [1.0, 0.0]}, correct=1.0, probes=[0.0, math.nan]),
            run_of([0.5], id="c", signals={"Nov": [0.5]}, ended_by="budget"),
            run_of([], id="d", ended_by="error"),
            run_of(None, id="e", steps=1, signals={"Nov": [0.5]}, agent="bot"),
        ]
    )


LOGS = [
    run("a", [INTERVENE, CONTINUE], Step("answer")),
    run("b", [None, STOP], Step("answer")),
    run("c", [None]),
    run("d", []),
    run("e", [None], Step("answer")),
]


def episodes(table, reward=PRICES, logs=LOGS):
    report = ExportReport()
    return {found.trajectory: found for found in decision_episodes(table, logs, SPEC, reward, report)}, report


def test_what_happened_without_a_controller_is_to_continue():
    actions, propensities = happened(run("a", [None, None], Step("answer")))
    assert actions == [CONTINUE, CONTINUE]
    assert np.isnan(propensities).all()


def test_a_stop_that_searches_followed_was_advice():
    steps = (Step("search", logged_action=STOP, propensity=0.5), Step("search", logged_action=STOP, propensity=0.25))
    actions, propensities = happened(Trajectory("a", "q", "?", steps=steps))
    assert actions == [CONTINUE, STOP]
    np.testing.assert_array_equal(propensities, [math.nan, 0.25])


def test_an_attempt_that_was_sent_on_is_an_intervention():
    steps = (
        Step("search", logged_action=CONTINUE, propensity=0.9),
        Step("other", logged_action=INTERVENE, propensity=0.3),
        Step("search", logged_action=CONTINUE, propensity=0.8),
        Step("answer", logged_action=STOP),
    )
    actions, propensities = happened(Trajectory("a", "q", "?", steps=steps))
    assert actions == [INTERVENE, CONTINUE]
    np.testing.assert_array_equal(propensities, [math.nan, 0.8])


def test_episodes_are_the_environments(table):
    found, report = episodes(table)
    assert list(found) == ["a", "b", "c"]
    assert (report.episodes, report.decisions, report.without_search, report.without_gold) == (3, 5, 1, 1)
    a, b, c = found.values()
    assert a.actions.tolist() == [INTERVENE, CONTINUE]
    # 2 * 0.5 new recall, minus search, intervention and decision; then a page opened after the last search brought 0.25
    assert a.rewards.tolist() == [1.0 - 0.25 - 0.5 - 0.125, 0.5 - 0.125]
    assert (a.terminations.tolist(), a.truncations.tolist()) == ([False, True], [False, False])
    assert a.observations.shape == (3, 2 * len(SPEC) + 2)
    assert a.observations.dtype == np.float32
    assert a.observations[:, -2:].tolist() == [[0, 0], [1, 1], [1, 1]]  # interventions, and steps since the last
    nov = SPEC.names.index("Nov.value")
    assert a.observations[:, [nov, nov + len(SPEC)]].tolist() == [[1, 1], [0, 0], [0, 0]]  # null as 0, and its mask
    assert b.actions.tolist() == [CONTINUE, STOP]
    assert b.rewards.tolist() == [-0.375, -0.125]
    assert (c.terminations.tolist(), c.truncations.tolist()) == ([False], [True])


def test_a_stop_is_worth_what_the_run_then_answered(table):
    found, report = episodes(table, Reward(recall=0, correct=3.0, search=0.25))
    assert report.without_verdict == 1  # nobody judged the answer of e
    assert found["b"].rewards.tolist() == [-0.25, 3.0]


def test_logs_of_other_runs_are_refused(table):
    for logs in (LOGS[:-1], [*LOGS, LOGS[0]], [LOGS[1], LOGS[0], *LOGS[2:]], [run("a", [None]), *LOGS[1:]]):
        with pytest.raises(DataError, match="compute"):
            episodes(table, logs=logs)


@pytest.mark.filterwarnings("ignore")  # minari's own
def test_minari_reads_it_back(table, tmp_path):
    minari = pytest.importorskip("minari")
    found = decision_episodes(table, LOGS, SPEC, PRICES, ExportReport())
    assert write_minari(tmp_path, found, name="mine-v0", table=table, features=SPEC, reward=PRICES) == 3
    dataset = minari.MinariDataset(tmp_path / "data")
    assert (dataset.id, dataset.total_episodes, dataset.total_steps) == ("mine-v0", 3, 5)
    expected, _ = episodes(table)
    for read, written in zip(dataset.iterate_episodes(), expected.values(), strict=True):
        np.testing.assert_array_equal(read.observations, written.observations)
        np.testing.assert_array_equal(read.actions, written.actions)
        np.testing.assert_array_equal(read.rewards, written.rewards)
        np.testing.assert_array_equal(read.terminations, written.terminations)
        np.testing.assert_array_equal(read.truncations, written.truncations)
        np.testing.assert_array_equal(read.infos["propensity"], written.propensities)
        assert all(dataset.observation_space.contains(row) for row in read.observations)
        assert all(dataset.action_space.contains(action) for action in read.actions)
    first = next(iter(dataset.storage.get_episode_metadata([0])))
    assert {key: first[key] for key in ("trajectory", "question", "split", "agent")} == {
        "trajectory": "a",
        "question": "q0",
        "split": expected["a"].split,
        "agent": "",
    }
    origin = json.loads(dataset.storage.metadata["stopwise"])
    assert origin["features"] == list(SPEC.names)
    assert origin["reward"]["search"] == 0.25


def test_without_minari(table, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(UsageError, match=r"pip install 'stopwise\[minari\]'"):
        write_minari(tmp_path, [], name="mine-v0", table=table, features=SPEC, reward=PRICES)
    assert not list(tmp_path.iterdir())
