import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopwise.controllers.baselines import FixedBudget
from stopwise.controllers.guards import Guards
from stopwise.controllers.oracle import Oracle
from stopwise.controllers.package import read_package, write_package
from stopwise.data.errors import DataError, StopwiseError, UsageError
from stopwise.data.records import Action
from stopwise.data.splits import split_of
from stopwise.envs.arena.branch_store import read_branches, write_branches
from stopwise.envs.arena.branching import BranchOutcome
from stopwise.envs.logged import Logged
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.envs.uplift import Uplift, UpliftFit, read_fit, write_fit
from stopwise.evaluation.benchmark import Arm, benchmark
from stopwise.evaluation.rollout import rollout
from stopwise.evaluation.statistics import question_means
from stopwise.runtime import load
from stopwise.signals.features import FeatureSpec, build_features
from stopwise.signals.tracker import SignalConfig
from stopwise.train.targets import TargetOptions
from stopwise.train.train import TrainConfig, default_features, run_folder, train, uplift_file
from stopwise.train.tune import Objective, choose_threshold, stop_rows, stopping_figures, thresholds

REWARD = Reward(search=0.05)
FAST: dict[str, Any] = {"grid": {"C": (0.1, 1.0)}, "reward": REWARD, "targets": TargetOptions(min_rows=40, folds=3)}


TREES: dict[str, Any] = {"grid": {"rounds": (5, 20), "leaves": (4,), "min_leaf": (20,), "rate": (0.2,)}}


def config(kind="logistic", **changes: Any):
    fast: dict[str, Any] = FAST if kind == "logistic" else {"reward": REWARD}
    if kind in ("boosted", "privileged"):
        fast = FAST | TREES
    return TrainConfig(kind, "table", **fast | changes)


@pytest.fixture(scope="module")
def trained(knowing):
    return train(config(), knowing)


def figures(table, *controllers, guards=Guards()):
    env = ReplayEnv(table, FeatureSpec(()), reward=REWARD)
    return benchmark(env, [Arm(str(number), one, guards) for number, one in enumerate(controllers)])


def test_a_signal_that_knows_is_learned_and_the_step_index_is_not_enough(knowing, trained):
    package, _ = trained
    clock, _ = train(config(features=(), name="step_index"), knowing)
    learned, index, oracle = figures(knowing.split("test"), package.controller, clock.controller, Oracle())
    assert learned["searches"] == oracle["searches"]
    assert learned["return"] == oracle["return"]
    assert learned["recall"] == 1
    assert index["return"] < learned["return"] - 0.05
    assert clock.name == "step_index"
    assert clock.controller.features == FeatureSpec(())
    assert package.controller.features == FeatureSpec(("Cov", "Sim"))  # RE is nowhere there


def bytes_of(package, folder):
    write_package(folder, package)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes(knowing, trained, tmp_path):
    first, again = bytes_of(trained[0], tmp_path / "a"), bytes_of(train(config(), knowing)[0], tmp_path / "b")
    assert first == again
    assert read_package(tmp_path / "a").training["seed"] == 0
    rule = [bytes_of(train(config("heuristic"), knowing_nov(knowing))[0], tmp_path / name) for name in "cd"]
    assert rule[0] == rule[1]


def knowing_nov(table):
    """The table with Cov's column called Nov, for rules that need that."""
    names = tuple("Nov" if name == "Cov" else name for name in table.names)
    return replace(table, names=names, info=replace(table.info, config=SignalConfig(signals=names)))


def test_test_and_cal_runs_change_nothing(knowing, trained, tmp_path):
    """Whatever stands in the runs of the other splits, the policy is the same to the byte."""
    poisoned_runs = np.array([split_of(e.question_id) in ("test", "cal") for e in knowing.episodes])
    rows = poisoned_runs[knowing.episode_of_row]
    values, labels = knowing.values.copy(), knowing.labels.copy()
    values[rows], labels[rows] = 1e9, math.inf
    episodes = tuple(
        replace(episode, final_recall=math.inf, correct=math.inf) if bad else episode
        for episode, bad in zip(knowing.episodes, poisoned_runs, strict=True)
    )
    poisoned = replace(knowing, values=values, labels=labels, episodes=episodes)
    assert poisoned_runs.sum() > 20
    assert bytes_of(train(config(), poisoned)[0], tmp_path / "a") == bytes_of(trained[0], tmp_path / "b")
    for kind in ("fixed_budget", "logistic"):
        changes = {"grid": {"budget": (2, 5)}} if kind == "fixed_budget" else {}
        assert (
            train(config(kind, **changes), poisoned)[1]["tried"] == train(config(kind, **changes), knowing)[1]["tried"]
        )


def test_only_validation_runs_decide_the_threshold(knowing, trained):
    package, record = trained
    validation = knowing.split("val")
    features = build_features(validation, package.controller.features)
    stop = package.controller.probabilities(features)[:, 2]
    chosen = choose_threshold(stop, validation, REWARD, Guards(), Objective())
    assert chosen.threshold == package.controller.threshold
    # brute force: no threshold at all does better
    best = max(
        question_means(stopping_figures(validation, stop_rows(stop, validation, t, Guards()), REWARD)[0], codes)[
            1
        ].mean()
        for codes in [validation.question_codes]
        for t in [2.0, *np.unique(stop)]
    )
    assert chosen.value >= best - 1e-12
    assert record["questions"] == {"train": 40, "val": 20}


@pytest.mark.parametrize("guards", [Guards(), Guards(min_steps=6), Guards(min_steps=2, max_steps=9)])
def test_what_was_promised_on_validation_is_what_the_controller_does_there(knowing, guards):
    package, record = train(config(guards=guards), knowing)
    best = max(record["tried"], key=lambda row: row["value"])
    found = figures(knowing.split("val"), package.controller, guards=guards)[0]
    for mine, theirs in (("value", "return"), ("recall", "recall"), ("searches", "searches")):
        assert best[mine] == pytest.approx(record["validation"][theirs])
        assert best[mine] == pytest.approx(found[theirs])
    assert record["chosen"]["threshold"] == best["threshold"] == package.controller.params["threshold"]
    assert package.guards == guards
    assert package.training["validation"]["return"] == record["validation"]["return"]
    json.dumps(record, allow_nan=False)


def test_fewest_searches_at_a_bounded_loss_of_recall(knowing):
    kept = [train(config(objective=Objective(loss)), knowing)[1]["validation"] for loss in (0.0, 0.3)]
    assert kept[0]["recall"] == 1
    assert 0.7 <= kept[1]["recall"] < 1
    assert kept[1]["searches"] < kept[0]["searches"]
    budgets = {"budget": (20, 12, 8, 6, 4, 2)}
    for loss in (0.0, 0.1, 0.4):
        _, record = train(config("fixed_budget", grid=budgets, objective=Objective(loss)), knowing)
        fine = [row for row in record["tried"] if row["recall"] >= 1 - loss - 1e-12]
        assert record["validation"]["searches"] == min(row["searches"] for row in fine)
    with pytest.raises(UsageError, match="no candidate keeps that"):
        train(config("fixed_budget", grid={"budget": (2,)}, objective=Objective(0.0)), knowing)


def test_a_rules_parameters_are_the_best_of_the_grid(knowing):
    package, record = train(config("fixed_budget", grid={"budget": tuple(range(3, 14))}), knowing)
    validation = knowing.split("val")
    brute = figures(validation, *(FixedBudget(budget) for budget in range(3, 14)))
    assert package.controller.params["budget"] == 3 + int(np.argmax([row["return"] for row in brute]))
    assert [row["params"]["budget"] for row in record["tried"]] == list(range(3, 14))
    assert [row["return"] for row in record["tried"]] == pytest.approx([row["return"] for row in brute])


def test_of_equal_candidates_the_first_is_taken_and_all_combinations_are_tried(knowing):
    grid = {"nov_low": (-1.0, -2.0), "window": (3, 2)}  # below 0 nothing is ever stagnant
    package, record = train(config("heuristic", grid=grid, params={"patience": 1}), knowing_nov(knowing))
    assert [tuple(row["params"].values()) for row in record["tried"]] == [(-1, 3), (-1, 2), (-2, 3), (-2, 2)]
    chosen = package.controller.params
    assert (chosen["nov_low"], chosen["window"], chosen["patience"]) == (-1, 3, 1)
    assert len(train(config("never_stop"), knowing)[1]["tried"]) == 1


def test_coverage_by_gold_is_not_learned_from_unless_asked(knowing):
    gold = replace(knowing, info=replace(knowing.info, config=replace(knowing.info.config, coverage_judge="gold")))
    assert default_features(gold, privileged=False) == ("Sim",)
    assert default_features(gold, privileged=True) == ("Cov", "Sim")
    with pytest.raises(UsageError, match="judge `gold`"):
        train(config(features=("Cov",)), gold)
    assert train(config(privileged=True, features=("Cov",)), gold)[0].controller.features == FeatureSpec(("Cov",))


def test_runs_without_gold_are_left_out(knowing, trained, questions_of, run_of, table_of, tmp_path):
    unknown = [
        run_of(
            None, question=question, steps=3, signals={"Cov": [1.0] * 3, "Sim": [0.0] * 3, "RE": ["no logprobs"] * 3}
        )
        for question in (*questions_of("train", 3), *questions_of("val", 3))
    ]
    extra = table_of(unknown, signals=knowing.names)
    together = replace(
        knowing,
        values=np.concatenate([knowing.values, extra.values]),
        reasons=np.concatenate([knowing.reasons, extra.reasons]),
        labels=np.concatenate([knowing.labels, extra.labels]),
        offsets=np.concatenate([knowing.offsets, knowing.offsets[-1] + extra.offsets[1:]]),
        episodes=knowing.episodes + extra.episodes,
    )
    assert bytes_of(train(config(), together)[0], tmp_path / "a") == bytes_of(trained[0], tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "forest"}, "kind 'forest'; expected one of logistic, boosted, privileged, never_stop"),
        ({"kind": "oracle"}, "kind 'oracle'"),
        ({"kind": "boosted", "grid": {"C": (1.0,)}}, "boosted has no parameter 'C'; expected grid.rounds, grid.leaves"),
        ({"kind": "boosted", "grid": {"leaves": (1,)}}, "grid.leaves: 1; expected a whole number of 2 or more"),
        ({"kind": "boosted", "grid": {"rounds": (2.5,)}}, "grid.rounds: 2.5; expected a whole number"),
        ({"kind": "boosted", "grid": {"rate": (0.0,)}}, "grid.rate: 0.0; expected a number"),
        ({"uplift": "runs/uplift"}, "uplift: is for intervention uplift, found intervention forbidden"),
        ({"intervention": "uplift"}, "intervention uplift: needs the key `uplift`"),
        ({"intervention": "uplift", "uplift": "nowhere"}, "nowhere: no such file"),
        ({"branches": "x.parquet"}, "branches: are for intervention uplift or logged, found intervention forbidden"),
        ({"intervention": "logged"}, "intervention logged: needs the key `branches`"),
        ({"intervention": "logged", "branches": "nowhere.parquet"}, "nowhere.parquet"),
        ({"params": {"threshold": 0.5}}, "logistic has no parameter 'threshold'"),
        ({"grid": {"c": (1.0,)}}, "logistic has no parameter 'c'; expected grid.C"),
        ({"grid": {"C": ()}}, "grid.C: is empty"),
        ({"grid": {"C": ("a",)}}, "grid.C: 'a'; expected a number"),
        ({"grid": {"C": (0.0,)}}, "grid.C: 0.0; expected a number"),
        ({"features": ("Now",)}, "unknown signal 'Now'"),
        ({"features": ("Nov",)}, "no column 'Nov'"),
        ({"intervention": "retrieve"}, "is not one of forbidden, noop"),
        ({"kind": "fixed_budget", "grid": {"budjet": (1,)}}, "budjet"),
        ({"kind": "fixed_budget", "grid": {"budget": ()}}, "grid.budget: is empty"),
        ({"kind": "fixed_budget", "grid": {"budget": (0,)}}, "budget: 0"),
        ({"kind": "fixed_budget", "params": {"budjet": 3}}, "budjet"),
        ({"kind": "fixed_budget", "features": ("Cov",)}, "takes no features"),
        ({"kind": "heuristic"}, "heuristic is not applicable to these logs: no Nov: not computed"),
        ({"kind": "ds_mcm"}, "no residual_z: not computed"),
        ({"targets": TargetOptions(folds=1000)}, "at least 1000 questions"),
    ],
)
def test_wrong_configs_are_named(knowing, changes, message):
    kind = changes.pop("kind", "logistic")
    try:
        with pytest.raises(StopwiseError, match=message):
            train(config(kind, **changes), knowing)
    finally:
        changes["kind"] = kind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: TargetOptions(folds=2), "targets.folds: 2; expected a whole number of 3 or more"),
        (lambda: TargetOptions(min_rows=0), "targets.min_rows"),
        (lambda: TargetOptions(ridge=0.0), "targets.ridge"),
        (lambda: Objective(-0.1), "objective.max_recall_loss"),
        (lambda: Objective(math.nan), "objective.max_recall_loss"),
        (lambda: config(seed=-1), "seed: -1"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        options()


def test_what_logs_must_hold(knowing, run_of, table_of, questions_of):
    train_only = knowing.split("train")
    with pytest.raises(DataError, match="no run of the split val"):
        train(config(), train_only)
    with pytest.raises(DataError, match="no run of the split train"):
        train(config(), knowing.split("val"))
    unknown = table_of([run_of(None, question=q, steps=2) for q in questions_of("train", 3)], signals=("Cov",))
    with pytest.raises(DataError, match="no run has gold"):
        train(config(), unknown)
    one = [run_of([0.5], question=q, signals={"Cov": [1.0]}) for s in ("train", "val") for q in questions_of(s, 5)]
    with pytest.raises(DataError, match="nothing to learn"):  # one step, and the run ends either way
        train(config(), table_of(one))


def test_stop_rows_and_figures_by_hand(run_of, table_of):
    table = table_of(
        [
            run_of([0.25, 0.5, 1.0], question="q0", probes=[1.0, 0.0, 0.0], correct=1.0),
            run_of([], question="q1", correct=1.0),
            run_of([0.5, 0.5], question="q2", probes=[math.nan, math.nan], final_recall=0.75),
        ],
        signals=("Nov",),
    )
    stop = np.array([0.9, 0.2, 0.6, 0.1, 0.5])
    assert stop_rows(stop, table, 0.5, Guards()).tolist() == [0, -1, 4]
    assert stop_rows(stop, table, 0.5, Guards(min_steps=2)).tolist() == [2, -1, 4]
    assert stop_rows(stop, table, 0.95, Guards(max_steps=2)).tolist() == [1, -1, 4]
    assert stop_rows(stop, table, 0.95, Guards()).tolist() == [-1, -1, -1]
    reward = Reward(correct=2.0, search=0.1, controller=0.01)
    returns, recall, searches = stopping_figures(table, np.array([0, -1, 4]), reward)
    assert recall.tolist() == [0.25, 0, 0.5]
    assert searches.tolist() == [1, 0, 2]
    assert returns == pytest.approx([0.25 + 2 - 0.01, 2.0, 0.5 - 0.1 - 0.02])
    returns, recall, _ = stopping_figures(table, np.array([-1, -1, -1]), reward)
    assert recall.tolist() == [1, 0, 0.75]
    assert returns == pytest.approx([1 + 2 - 0.2 - 0.03, 2.0, 0.75 - 0.1 - 0.02])


def test_thresholds_lie_between_probabilities():
    assert thresholds(np.array([0.5, 0.1, 0.5, 0.9])) == pytest.approx([1 + 1e-9, 0.7, 0.3, 0.0])
    assert thresholds(np.array([])) == [1 + 1e-9]
    many = thresholds(np.linspace(0.2, 0.8, 5000))
    assert len(many) == 201
    assert many == sorted(many, reverse=True)
    assert many[-1] == 0


def test_the_policy_of_a_run_folder(tmp_path):
    assert run_folder(tmp_path) == tmp_path
    (tmp_path / "policy").mkdir()
    assert run_folder(tmp_path) == tmp_path / "policy"


# what the other learners do with the same targets


def test_boosted_trees_learn_the_signal_that_knows(knowing, trained, tmp_path):
    package, record = train(config("boosted"), knowing)
    learned, linear, oracle = figures(knowing.split("test"), package.controller, trained[0].controller, Oracle())
    assert learned["return"] == linear["return"] == oracle["return"]
    assert [row["params"]["rounds"] for row in record["tried"]] == [5, 20]
    best = max(record["tried"], key=lambda row: row["value"])
    assert best["value"] == pytest.approx(record["validation"]["return"])
    again, _ = train(config("boosted"), knowing)
    assert bytes_of(package, tmp_path / "a") == bytes_of(again, tmp_path / "b")
    found = read_package(tmp_path / "a").controller
    assert figures(knowing.split("test"), found)[0]["return"] == learned["return"]


def test_privilege_is_knowing_what_is_left(knowing, tmp_path):
    """Cov is taken away: the signals know nothing more, and who is told the gold that is left knows all."""
    blind = config("boosted", features=("Sim",))
    told = config("privileged", features=("Sim",))
    (without, _), (with_gold, _) = train(blind, knowing), train(told, knowing)
    test = knowing.split("test")
    guessing, ceiling, oracle = figures(test, without.controller, with_gold.controller, Oracle())
    assert ceiling["return"] == oracle["return"]
    assert guessing["return"] < ceiling["return"] - 0.05
    write_package(tmp_path / "policy", with_gold)
    assert "a live agent refuses it" in (tmp_path / "policy" / "README.md").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="needs hindsight"):
        load(tmp_path / "policy")


@pytest.fixture(scope="module")
def stuck(questions_of, run_of, table_of):
    """Runs that find something at once, then are stuck for long before the next find; Nov says when they are stuck.

    In every other run the find is the last and what follows is idle: Sim says which kind it is.
    """
    rng = np.random.default_rng(3)
    runs = []
    for split, count in (("train", 40), ("val", 20), ("test", 15)):
        for number, question in enumerate(questions_of(split, count)):
            more, wait = number % 2 == 0, int(rng.integers(8, 12))
            recall = [0.5] * wait + [1.0 if more else 0.5] * 3
            nov = [0.0] * wait + [1.0] * 3
            signals = {"Nov": nov, "Sim": [float(more)] * len(recall)}
            runs.append(run_of(recall, id=question, question=question, signals=signals))
    return table_of(runs, signals=("Nov", "Sim"))


@pytest.fixture(scope="module")
def sure_uplift(tmp_path_factory):
    """A run folder with an uplift that always works."""
    folder = tmp_path_factory.mktemp("uplift")
    size = 2 * len(FeatureSpec(()))
    fit = UpliftFit(FeatureSpec(()), np.zeros(size), np.ones(size), np.zeros(size), 99.0, 100, 50, 2)
    write_fit(folder / "uplift.json", fit)
    return str(folder)


@pytest.mark.parametrize("kind", ["logistic", "boosted", "privileged"])
def test_under_uplift_it_learns_when_to_intervene(kind, stuck, sure_uplift, tmp_path):
    changes: dict[str, Any] = {"intervention": "uplift", "uplift": sure_uplift, "reward": REWARD}
    package, record = train(config(kind, **changes), stuck)
    assert set(record["chosen"]) == {"threshold", "intervene_threshold"}
    best = max(record["tried"], key=lambda row: row["value"])
    for promise, figure in (("value", "return"), ("recall", "recall"), ("interventions", "interventions")):
        assert best[promise] == pytest.approx(record["validation"][figure])  # the uplift is certain: nothing is drawn
    write_package(tmp_path / "policy", package)
    controller = read_package(tmp_path / "policy").controller
    env = ReplayEnv(stuck.split("test"), FeatureSpec(()), reward=REWARD, intervention=Uplift(read_fit_of(sure_uplift)))
    found = rollout(env, controller, Guards())
    for run in found:  # one jump to what is left, or a stop where nothing is
        more = env.table.episodes[run.episode].final_recall == 1.0
        assert (run.recall, run.interventions, run.searches) == ((1.0, 1, 2) if more else (0.5, 0, 1))


def read_fit_of(folder):
    return read_fit(uplift_file(folder))


@pytest.fixture(scope="module")
def branched(stuck, tmp_path_factory):
    """Branches at the first search of every run: intervening finds the rest at once, going on takes long."""
    outcomes = []
    for episode, length in zip(stuck.episodes, stuck.lengths, strict=True):
        gain = episode.final_recall - 0.5
        for action, gained, searches in (
            (Action.CONTINUE, gain, int(length) - 1),
            (Action.INTERVENE, gain, 1),
            (Action.STOP, 0.0, 0),
        ):
            outcomes.append(
                BranchOutcome(episode.id, episode.question_id, "x", 1, action, 0, 0.5, gained, searches, None, 0.1)
            )
    path = tmp_path_factory.mktemp("branches") / "branches.parquet"
    write_branches(path, outcomes)
    return str(path)


@pytest.mark.parametrize("kind", ["logistic", "boosted"])
def test_it_learns_from_branches(kind, stuck, branched):
    package, record = train(config(kind, intervention="logged", branches=branched), stuck)
    assert record["tried"][0]["value"] == pytest.approx((0.5 - 0.05) / 2)  # the best of each state
    assert record["tried"][0]["recall"] is None
    json.dumps(record, allow_nan=False)
    env = ReplayEnv(stuck.split("test"), FeatureSpec(()), reward=REWARD, intervention=Logged(read_branches(branched)))
    for run in rollout(env, package.controller, Guards()):
        more = env.table.episodes[run.episode].final_recall == 1.0
        assert (run.recall, run.interventions, run.searches) == ((1.0, 1, 2) if more else (0.5, 0, 1))
    with pytest.raises(UsageError, match="branches do not tell the recall"):
        train(config(kind, intervention="logged", branches=branched, objective=Objective(0.1)), stuck)


def test_branches_can_teach_what_uplift_then_weighs(stuck, branched, sure_uplift):
    changes: dict[str, Any] = {"intervention": "uplift", "uplift": sure_uplift, "branches": branched}
    package, record = train(config("logistic", **changes), stuck)
    assert record["validation"]["interventions"] == pytest.approx(0.5)
    assert package.controller.params["intervene_threshold"] <= 1


def test_branches_of_other_runs_are_refused(knowing, branched):
    with pytest.raises(DataError, match="none of 75 branched states is in the signal table"):
        train(config(intervention="logged", branches=branched), knowing)
