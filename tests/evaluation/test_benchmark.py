import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.guards import Guards
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.logistic import Logistic
from stopwise.controllers.oracle import Oracle
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.interventions import Noop
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.evaluation.benchmark import (
    Arm,
    benchmark,
    matched_intervention_rate,
    matched_stop_rate,
    missing_signal,
)
from stopwise.evaluation.rollout import rollout
from stopwise.evaluation.statistics import power_of
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalConfig

ARMS = [
    Arm("never_stop", NeverStop()),
    Arm("one", FixedBudget(1), origin="runs/one"),
    Arm("oracle", Oracle()),
    Arm("ds_mcm", DsMcm()),
]


@pytest.fixture(scope="module")
def table(run_of, table_of):
    """Question A with two runs, B with one that was cut, C without gold; 4 gold documents, 5 new ones a step."""
    missing = {"Nov": "no documents", "residual_z": "no logprobs"}

    def run(recall, **arguments):
        steps = len(recall) if recall is not None else arguments["steps"]
        return run_of(recall, signals={name: [reason] * steps for name, reason in missing.items()}, **arguments)

    return table_of(
        [
            run([0.25, 0.5, 0.5], id="a1", question="A", correct=1.0),
            run([0.0], id="a2", question="A", correct=0.0),
            run([1.0, 1.0, 1.0], id="b", question="B", correct=1.0, ended_by="budget"),
            run(None, id="c", question="C", steps=2, correct=1.0),
        ],
        signals=("Nov", "residual_z"),
    )


@pytest.fixture(scope="module")
def rows(table):
    env = ReplayEnv(table, FeatureSpec(()), reward=Reward(search=0.1))
    return {row["controller"]: row for row in benchmark(env, ARMS)}


def test_figures_of_the_logs_as_they_are(rows):
    row = rows["never_stop"]
    assert row["searches"] == pytest.approx(((3 + 1) / 2 + 3 + 2) / 3)  # runs of one question are averaged first
    assert row["recall"] == pytest.approx((0.5 / 2 + 1) / 2)  # C has no gold
    assert row["precision"] == pytest.approx((2 / 15 / 2 + 4 / 15) / 2)
    assert row["f1"] == pytest.approx((4 / 19 / 2 + 8 / 19) / 2)
    assert (row["accuracy"], row["accuracy_runs"]) == (pytest.approx((0.5 + 1) / 2), 3)  # B was cut: not an answer
    assert (row["cut_runs"], row["stopped"], row["runs"], row["questions"]) == (1, 0, 4, 3)
    assert row["return"] == pytest.approx(((0.5 - 0.2) / 2 + (1 - 0.2)) / 2)
    assert row["documents_seen"] == pytest.approx((10 + 15 + 10) / 3)
    assert (row["saving"], row["versus_never_stop"]) == (0, None)
    assert (row["interventions"], row["controller_calls"], row["controller_tokens"]) == (0, 0, 0)
    assert (row["kind"], row["intervention_model"]) == ("never_stop", "forbidden")
    assert "policy" not in row


def test_rows_against_one_another(table):
    env = ReplayEnv(table, FeatureSpec(()), reward=Reward(search=0.1))
    arms = [
        Arm("one", FixedBudget(1), versus=("two", "ds_mcm")),
        Arm("two", FixedBudget(2)),
        Arm("ds_mcm", DsMcm()),
    ]
    one, two, _ = benchmark(env, arms)
    assert "versus" not in two
    assert one["versus"]["ds_mcm"] == {"reason": "not applicable"}
    figures = one["versus"]["two"]
    # A: one of its two runs makes a second search, which finds a quarter more; B and C make it for nothing
    assert figures["searches"]["difference"] == pytest.approx(-(1 / 2 + 1 + 1) / 3)
    assert figures["recall"]["difference"] == pytest.approx(-(0.25 / 2) / 2)
    assert figures["return"]["difference"] == pytest.approx((-(0.25 - 0.1) / 2 + 0.1) / 2)
    assert (figures["return"]["wins"], figures["return"]["losses"]) == (1, 1)


@pytest.mark.parametrize("other", ["nobody", "one"])
def test_a_row_to_compare_with_must_be_there(table, other):
    env = ReplayEnv(table, FeatureSpec(()), reward=Reward(search=0.1))
    with pytest.raises(UsageError, match=f"'one' is to be compared with '{other}', which is no other row; found two"):
        benchmark(env, [Arm("one", FixedBudget(1), versus=(other,)), Arm("two", FixedBudget(2))])


def test_figures_of_a_budget_of_one(rows):
    row = rows["one"]
    assert row["searches"] == 1
    assert row["recall"] == pytest.approx((0.25 / 2 + 1) / 2)
    assert row["precision"] == pytest.approx((1 / 5 / 2 + 4 / 5) / 2)
    assert (row["accuracy"], row["accuracy_runs"], row["cut_runs"], row["stopped"]) == (None, 0, 0, 4)
    assert row["answer_visible"] is None
    assert row["return"] == pytest.approx((0.25 / 2 + 1) / 2)
    assert row["saving"] == pytest.approx(4 / 7)
    assert row["oracle_saving_share"] == pytest.approx((7 / 3 - 1) / (7 / 3 - 1.5))
    assert row["policy"] == "runs/one"
    assert row["milliseconds_a_decision"] > 0


def test_paired_differences_by_question(rows):
    versus = rows["one"]["versus_never_stop"]
    recall = versus["recall"]
    assert (recall["questions"], recall["wins"], recall["ties"], recall["losses"]) == (2, 0, 1, 1)
    assert recall["difference"] == pytest.approx(-0.125 / 2)
    assert (recall["treatment"], recall["baseline"]) == (pytest.approx(0.5625), pytest.approx(0.625))
    assert recall["margin"] == 0.01
    assert recall["not_inferior"] is False
    assert recall["power"] == pytest.approx(power_of(2, 0.125 / math.sqrt(2), margin=0.01))
    assert versus["searches"]["difference"] == pytest.approx(-4 / 3)
    assert versus["searches"]["losses"] == 3
    assert versus["return"]["difference"] == pytest.approx(0.5625 - 0.475)
    assert versus["correct"] == {"difference": None, "reason": "unknown in every run"}


def test_the_oracle_stops_where_nothing_worthwhile_follows(rows):
    row = rows["oracle"]
    assert row["searches"] == pytest.approx(((2 + 1) / 2 + 1 + 2) / 3)  # without gold it cannot know: C goes on
    assert row["oracle_saving_share"] == 1
    assert row["recall"] == rows["never_stop"]["recall"]


def test_what_does_not_apply_has_a_reason_instead_of_figures(rows, table):
    assert rows["ds_mcm"] == {
        "controller": "ds_mcm",
        "kind": "ds_mcm",
        "intervention_model": "forbidden",
        "not_applicable": "no residual_z: no logprobs",
    }
    assert missing_signal(table, Heuristic()) == "no Nov: no documents"
    assert missing_signal(table, NeverStop()) is None
    assert missing_signal(table.select([]), Heuristic()) == "no Nov: no search steps"
    env = ReplayEnv(table, FeatureSpec(()))
    [row] = benchmark(env, [Arm("twin", NeverStop(), not_applicable="its reference is not there")])
    assert row["not_applicable"] == "its reference is not there"


def test_rows_are_json(rows):
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_without_gold_nothing_is_known_and_nothing_is_made_up(run_of, table_of):
    table = table_of([run_of(None, question=f"q{n}", steps=3, ended_by="unknown") for n in range(3)], signals=("Nov",))
    env = ReplayEnv(table, FeatureSpec(()))
    never, budget, oracle = benchmark(env, [Arm("never", NeverStop()), Arm("two", FixedBudget(2)), Arm("o", Oracle())])
    for row in (never, budget):
        for name in ("recall", "precision", "f1", "accuracy", "answer_visible", "return", "oracle_saving_share"):
            assert row[name] is None
    assert (never["searches"], budget["searches"], budget["saving"]) == (3, 2, pytest.approx(1 / 3))
    assert budget["versus_never_stop"]["recall"] == {"difference": None, "reason": "unknown in every run"}
    assert budget["versus_never_stop"]["searches"]["difference"] == -1
    assert oracle["not_applicable"].startswith("no gold")


def test_a_single_question_has_no_interval(run_of, table_of):
    env = ReplayEnv(table_of([run_of([0.5, 1.0])], signals=("Nov",)), FeatureSpec(()))
    [row] = benchmark(env, [Arm("one", FixedBudget(1))])
    recall = row["versus_never_stop"]["recall"]
    assert (recall["difference"], recall["ci"], recall["not_inferior"], recall["power"]) == (-0.5, None, None, None)


def test_a_run_without_a_search_step_counts_as_it_is(run_of, table_of):
    runs = [run_of([], question="q0", correct=1.0), run_of([0.5], question="q1", correct=0.0)]
    env = ReplayEnv(table_of(runs, signals=("Nov",)), FeatureSpec(()), reward=Reward(correct=2.0))
    [row] = benchmark(env, [Arm("never", NeverStop())])
    assert (row["searches"], row["recall"], row["accuracy"]) == (0.5, 0.25, 0.5)
    assert row["return"] == pytest.approx((2.0 + 0.5) / 2)  # its own answer is worth something
    assert row["precision"] == pytest.approx(2 / 5)  # nothing seen: no precision


def test_interventions_need_a_model(run_of, table_of):
    runs = [run_of([0.5] * 4, signals={"residual_z": [3.0] * 4})]
    arms = [Arm("ds_mcm", DsMcm(), Guards(cooldown=1))]
    [row] = benchmark(ReplayEnv(table_of(runs), FeatureSpec(())), arms)
    assert (row["intervention_model"], row["interventions"]) == ("forbidden", 0)
    [row] = benchmark(ReplayEnv(table_of(runs), FeatureSpec(()), intervention=Noop()), arms)
    assert (row["intervention_model"], row["interventions"]) == ("noop", 2)


def test_wrong_arms_are_refused(table, run_of, table_of):
    env = ReplayEnv(table, FeatureSpec(()))
    with pytest.raises(UsageError, match="two controllers are called 'x'"):
        benchmark(env, [Arm("x", NeverStop()), Arm("x", FixedBudget(2))])
    env.table = table.select([])
    with pytest.raises(DataError, match="no run belongs to this split"):
        benchmark(env, ARMS)

    def logistic(*signals):
        spec = FeatureSpec(signals)
        columns = 2 * len(spec)
        weights = {"mean": np.zeros(columns), "scale": np.ones(columns), "coef": np.zeros((3, columns))}
        return Logistic(spec, weights | {"intercept": np.zeros(3)})

    with pytest.raises(DataError, match="no column 'Sim'"):
        benchmark(ReplayEnv(table, FeatureSpec(())), [Arm("learned", logistic("Sim"))])
    gold = table_of([run_of([0.5], signals={"Cov": [0.5]})], config=SignalConfig(("Cov",), coverage_judge="gold"))
    env = ReplayEnv(gold, FeatureSpec(()))
    with pytest.raises(UsageError, match="judge `gold`"):
        benchmark(env, [Arm("ceiling", logistic("Cov"))])
    assert benchmark(env, [Arm("ceiling", logistic("Cov"))], privileged=True)[0]["recall"] == 0.5


LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=20)


@given(LENGTHS, st.floats(0.0, 1.2), st.integers(1, 5), st.integers(5, 40))
def test_the_matched_rate_gives_the_wanted_mean(lengths, share, low, high):
    guards = Guards(min_steps=low, max_steps=high)
    wanted = share * float(np.mean(lengths))
    rate = matched_stop_rate(np.array(lengths), wanted, guards)
    assert 0 <= rate <= 1

    def searches(length):  # by the definition: survive to search t, then stop or not
        alive = [(1 - rate) ** max(t - low, 0) for t in range(1, min(length, high) + 1)]
        return sum(alive)

    reached = np.mean([searches(length) for length in lengths])
    if 0 < rate < 1:
        assert reached == pytest.approx(wanted, abs=1e-6)
    else:
        assert reached <= wanted + 1e-6 if rate == 0 else reached >= wanted - 1e-6


def test_the_matched_rate_just_below_the_logs_own_mean():
    lengths = np.array([3, 8, 1])
    for gap in (0.0, 1e-15, 1e-12, 1e-9, 1e-6):
        assert matched_stop_rate(lengths, 4 - gap) == pytest.approx(0, abs=1e-6)


def test_a_rate_matched_controller_makes_as_many_searches_in_replay(run_of, table_of):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 12, 600)
    runs = [run_of([0.0] * length, id=f"r{n}", question=f"q{n}") for n, length in enumerate(lengths)]
    env = ReplayEnv(table_of(runs, signals=("Nov",)), FeatureSpec(()))
    for guards in (Guards(), Guards(min_steps=2, max_steps=9)):
        rate = matched_stop_rate(lengths, 3.0, guards)
        searches = [run.searches for run in rollout(env, Random(rate), guards)]
        assert np.mean(searches) == pytest.approx(3.0, abs=4 * float(np.std(searches)) / math.sqrt(600))


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.floats(0.01, 1.0),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(1, 15),
)
def test_the_matched_rate_of_interventions_gives_the_wanted_mean(decisions, rate, cooldown, most, last):
    guards = Guards(cooldown=cooldown, max_interventions=most, max_steps=last)

    def expected(length, rate, t=1, used=0, since=None):  # by the definition: at each decision, intervene or not
        if t > length:
            return 0.0
        since = None if since is None else since + 1
        allowed = guards.legal(t, used, since, can_intervene=True)[Action.INTERVENE]
        going_on = expected(length, rate, t + 1, used, since)
        return rate * (1 + expected(length, rate, t + 1, used + 1, 0)) + (1 - rate) * going_on if allowed else going_on

    wanted = float(np.mean([expected(length, rate) for length in decisions]))
    found = matched_intervention_rate(np.array(decisions), wanted, guards)
    assert 0 <= found <= 1
    assert np.mean([expected(length, found) for length in decisions]) == pytest.approx(wanted, abs=1e-6)


def test_a_mean_that_no_rate_reaches_gives_the_nearest_one():
    decisions = np.array([6, 6])
    assert matched_intervention_rate(decisions, 0.0, Guards()) == 0
    assert matched_intervention_rate(decisions, 2.0, Guards(cooldown=3)) == 1  # at the first and fifth of six
    assert matched_intervention_rate(decisions, 3.0, Guards(cooldown=3)) == 1


def test_a_random_row_makes_as_many_interventions_as_the_row_that_it_matches(run_of, table_of):
    """Its rate comes from that row's interventions and decisions, its guards are that row's, and the record says so."""
    flags = [3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0]  # two in each run of eight
    runs = [run_of([0.1] * 8, id=f"r{n}", question=f"q{n}", signals={"residual_z": flags}) for n in range(300)]
    guards = Guards(cooldown=1)
    arms = [
        Arm("by chance", Random(0.0), matches="ds_mcm", versus=("ds_mcm",)),  # before the row that it is made after
        Arm("ds_mcm", DsMcm(), guards),
        Arm("never", NeverStop()),
        Arm("none", Random(0.0), matches="never"),
    ]
    env = ReplayEnv(table_of(runs), FeatureSpec(()), intervention=Noop())
    chance, ds_mcm, _, none = benchmark(env, arms)
    assert [row["controller"] for row in (chance, ds_mcm, none)] == ["by chance", "ds_mcm", "none"]
    assert ds_mcm["interventions"] == 2
    assert chance["matched"] == {
        "row": "ds_mcm",
        "rate": pytest.approx(matched_intervention_rate(np.full(300, 8), 2.0, guards)),
        "interventions_of_row": 2,
        "interventions": chance["interventions"],
    }
    assert chance["interventions"] == pytest.approx(2, abs=4 / math.sqrt(300))
    assert chance["versus"]["ds_mcm"]["recall"]["difference"] == 0
    assert (none["matched"]["rate"], none["interventions"]) == (0, 0)
    assert "matched" not in ds_mcm


def test_a_row_that_cannot_be_matched_says_why(table):
    arms = [
        Arm("ds_mcm", DsMcm()),
        Arm("one", FixedBudget(1)),
        Arm("as ds_mcm", Random(0.0), matches="ds_mcm"),
        Arm("as one", Random(0.0), matches="one"),
    ]
    rows = {row["controller"]: row for row in benchmark(ReplayEnv(table, FeatureSpec(())), arms)}
    assert rows["as ds_mcm"]["not_applicable"] == "ds_mcm is not applicable"
    assert "one stops runs" in rows["as one"]["not_applicable"]
    assert "matched" not in rows["as one"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("nobody", "'x' is to be matched to 'nobody', which is no other row; found never, y"),
        ("x", "'x' is to be matched to 'x', which is no other row"),
        ("y", "'x' is to be matched to 'y', which is itself matched to 'never'; name 'never'"),
    ],
)
def test_a_row_to_match_must_be_there(table, other, message):
    arms = [
        Arm("x", Random(0.0), matches=other),
        Arm("never", NeverStop()),
        Arm("y", Random(0.0), matches="never"),
    ]
    with pytest.raises(UsageError, match=message):
        benchmark(ReplayEnv(table, FeatureSpec(())), arms)
