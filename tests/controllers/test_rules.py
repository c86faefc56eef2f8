import math

import numpy as np
import pytest

from stopwise.controllers.base import certain, mask
from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.kinds import RULES, make_learned, make_rule
from stopwise.controllers.oracle import Oracle
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.signals.features import FeatureSpec

NO_NUDGE = (True, False, True)
STALE = {"Nov": 0.0, "Div": 0.0}


def test_never_stop_goes_on(see):
    decision = NeverStop().decide(see(t=99, Nov=0.0))
    assert (decision.action, decision.probabilities) == (Action.CONTINUE, (1, 0, 0))


def test_fixed_budget_stops_when_it_is_used(see):
    budget = FixedBudget(3)
    assert [budget.decide(see(t)).action.name for t in (1, 2, 3, 4)] == ["CONTINUE", "CONTINUE", "STOP", "STOP"]
    assert budget.decide(see(3)).message == "the budget of 3 searches is used"
    assert FixedBudget(1).decide(see(1)).action is Action.STOP


def test_random_follows_its_rates_and_its_seed(see):
    random = Random(stop=0.2, intervene=0.3)

    def draws(seed, legal=(True, True, True), n=4000):
        random.reset(seed)
        return [int(random.decide(see(legal=legal)).action) for _ in range(n)]

    shares = np.bincount(draws(0), minlength=3) / 4000
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)  # 4 standard errors
    masked = np.bincount(draws(0, NO_NUDGE), minlength=3) / 4000
    assert masked == pytest.approx([5 / 7, 0, 2 / 7], abs=0.03)
    assert draws(1, n=50) == draws(1, n=50) != draws(2, n=50)
    assert random.decide(see(legal=NO_NUDGE)).probabilities == pytest.approx((5 / 7, 0, 2 / 7))


def test_random_never_draws_past_a_sum_below_one(see):
    class Top:
        def random(self):
            return 1 - 2**-53

    random = Random(stop=0.0, intervene=0.1)
    random._generator = Top()  # type: ignore[assignment]
    probabilities = np.array([0.9, 0.1 - 2e-16, 0.0])
    assert probabilities.sum() < 1 - 2**-53
    assert random.choose(probabilities, np.array([True, True, False])) is Action.INTERVENE


def test_ds_mcm_flags_both_sides_strictly_above_k(run_through, see):
    rows = [{"residual_z": z} for z in (0.0, 2.0, 2.1, -2.0, -2.1)] + [{"residual_z": "no logprobs"}]
    assert run_through(DsMcm(k=2, on_flag="stop"), rows) == [
        "CONTINUE",
        "CONTINUE",
        "STOP",
        "CONTINUE",
        "STOP",
        "CONTINUE",
    ]
    nudged = run_through(DsMcm(k=2, on_flag="intervene"), rows)
    assert nudged == ["CONTINUE", "CONTINUE", "INTERVENE", "CONTINUE", "INTERVENE", "CONTINUE"]
    assert "less certain" in (DsMcm().decide(see(residual_z=3.0)).message or "")
    assert "more certain" in (DsMcm().decide(see(residual_z=-3.0)).message or "")
    # where it cannot intervene a flag changes nothing
    assert run_through(DsMcm(), rows, legal=NO_NUDGE) == ["CONTINUE"] * 6


class TestHeuristic:
    """Each branch of the rules, with windows of two steps."""

    @pytest.fixture
    def rule(self):
        return Heuristic(window=2, nov_low=0.25, div_low=0.1, sim_low=0.2, cov_done=1.0, patience=2)

    def test_it_waits_for_a_full_window(self, rule, run_through):
        assert run_through(rule, [STALE]) == ["CONTINUE"]

    def test_new_documents_keep_it_going(self, rule, run_through):
        assert run_through(rule, [{"Nov": 0.2}, {"Nov": 0.4}]) == ["CONTINUE"] * 2  # mean .3 is above .25

    def test_a_stagnant_run_is_nudged_first(self, rule, run_through):
        assert run_through(rule, [STALE] * 2) == ["CONTINUE", "INTERVENE"]
        assert run_through(rule, [{"Nov": 0.0, "Div": 0.9}] * 2) == ["CONTINUE", "INTERVENE"]  # even if it moves

    def test_and_stopped_where_nudges_are_impossible(self, rule, run_through):
        assert run_through(rule, [STALE] * 2, legal=NO_NUDGE) == ["CONTINUE", "STOP"]

    def test_rising_coverage_is_no_stagnation(self, rule, run_through):
        rows = [STALE | {"Cov": 0.5, "coverage_gain": 0.5}, STALE | {"Cov": 0.5, "coverage_gain": 0.0}]
        assert run_through(rule, rows) == ["CONTINUE"] * 2
        assert run_through(rule, [*rows, rows[1]]) == ["CONTINUE", "CONTINUE", "INTERVENE"]

    def test_a_covered_stagnant_run_is_stopped(self, rule, run_through):
        rows = [STALE | {"Cov": 1.0, "coverage_gain": 0.0}] * 2
        assert run_through(rule, rows) == ["CONTINUE", "STOP"]

    def test_a_run_that_circles_is_stagnant_though_documents_are_new(self, rule, run_through):
        rows = [{"Nov": 0.8, "Div": 0.05}] * 2
        assert run_through(rule, rows) == ["CONTINUE", "INTERVENE"]
        assert run_through(rule, [{"Nov": 0.8, "Div": 0.3}] * 2) == ["CONTINUE"] * 2

    def test_a_nudge_is_given_time_and_then_another(self, rule, see):
        rule.decide(see(1, **STALE))
        waiting = see(2, interventions=1, since=2, legal=NO_NUDGE, **STALE)
        assert rule.decide(waiting).action is Action.CONTINUE  # it once stopped a run in the cool-down of its own nudge
        assert rule.decide(see(3, interventions=1, since=3, **STALE)).action is Action.INTERVENE

    def test_patience_ends(self, rule, run_through):
        assert run_through(rule, [STALE] * 2, interventions=2) == ["CONTINUE", "STOP"]

    def test_a_run_that_drifted_is_nudged(self, rule, run_through):
        rows = [{"Nov": 1.0, "Sim": 0.1}] * 2
        assert run_through(rule, rows) == ["CONTINUE", "INTERVENE"]
        assert run_through(rule, rows, legal=NO_NUDGE) == ["CONTINUE"] * 2
        assert run_through(rule, [rows[0], {"Nov": 1.0, "Sim": 0.3}]) == ["CONTINUE"] * 2
        assert run_through(rule, [rows[0], {"Nov": 1.0, "Sim": "no query"}]) == ["CONTINUE"] * 2

    def test_no_documents_are_no_new_documents_but_unknown_is_not_zero(self, rule, run_through):
        assert run_through(rule, [{"Nov": "no documents"}] * 2, legal=NO_NUDGE) == ["CONTINUE", "STOP"]
        assert run_through(rule, [{}] * 4, legal=NO_NUDGE) == ["CONTINUE"] * 4  # the signals failed

    def test_the_last_run_is_forgotten(self, rule, see):
        rule.decide(see(1, **STALE))
        rule.reset()
        assert rule.decide(see(1, **STALE)).action is Action.CONTINUE
        twin = rule.copy()
        assert twin.decide(see(1, **STALE)).action is Action.CONTINUE
        assert rule.decide(see(2, **STALE)).action is Action.INTERVENE


def test_the_oracle_compares_hindsight(see):
    assert Oracle().decide(see(hindsight=(0.0, 0.1))).action is Action.CONTINUE
    assert Oracle().decide(see(hindsight=(0.1, 0.1))).action is Action.STOP  # of equals the earlier
    assert Oracle().decide(see(hindsight=(0.2, 0.1))).action is Action.STOP
    assert Oracle().decide(see(hindsight=(math.nan, math.nan))).action is Action.CONTINUE
    with pytest.raises(ValueError, match="needs hindsight"):
        Oracle().decide(see())


def test_masking_renormalises_or_falls_to_the_mildest():
    assert mask(np.array([0.5, 0.25, 0.25]), np.array([True, False, True])) == pytest.approx([2 / 3, 0, 1 / 3])
    assert mask(certain(Action.STOP), np.array([True, True, False])).tolist() == [1, 0, 0]
    assert mask(certain(Action.CONTINUE), np.array([False, False, True])).tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="no action is legal"):
        mask(certain(Action.STOP), np.zeros(3, dtype=bool))


@pytest.mark.parametrize("kind", RULES)
def test_parameters_make_an_equal_controller(kind):
    controller = make_rule(kind, {})
    assert type(make_rule(kind, controller.params)) is type(controller)
    assert make_rule(kind, controller.params).params == controller.params
    assert controller.kind == kind


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("never", {}, "'never' is not one of never_stop"),
        ("logistic", {}, "train it and name its run as `policy`"),
        ("never_stop", {"budget": 3}, "never_stop.*budget"),
        ("fixed_budget", {"budjet": 3}, "budjet"),
        ("fixed_budget", {"budget": 0}, "budget: 0; expected a whole number of 1 or more"),
        ("fixed_budget", {"budget": 2.5}, "expected a whole number"),
        ("fixed_budget", {"budget": "3"}, "'3'; expected a whole number"),
        ("random", {"stop": 1.5}, "stop: 1.5; expected a number of 0 or more, 1 or less"),
        ("random", {"stop": math.nan}, "stop: nan"),
        ("random", {"stop": 0.7, "intervene": 0.7}, "a sum up to 1"),
        ("ds_mcm", {"k": 0}, "above 0"),
        ("ds_mcm", {"k": math.nan}, "k: nan"),
        ("ds_mcm", {"k": "1e-3"}, "k: '1e-3'; expected a number"),
        ("ds_mcm", {"on_flag": "continue"}, "expected one of stop, intervene"),
        ("heuristic", {"window": 0}, "window: 0; expected a whole number of 1 or more"),
        ("heuristic", {"patience": 1.5}, "patience: 1.5"),
        ("heuristic", {"nov_low": "1e-3"}, "nov_low: '1e-3'; expected a number"),
        ("heuristic", {"novlow": 1}, "novlow"),
    ],
)
def test_wrong_kinds_and_parameters_are_named(kind, params, message):
    with pytest.raises(UsageError, match=message):
        make_rule(kind, params)


def test_rules_have_no_weights():
    with pytest.raises(UsageError, match="is not one of logistic"):
        make_learned("heuristic", {}, FeatureSpec(()), {})


def test_what_a_controller_reads():
    assert Heuristic().reads == ("Nov", "Cov", "coverage_gain", "Div", "Sim")
    assert DsMcm().reads == ("residual_z",)
    assert NeverStop().reads == ()
