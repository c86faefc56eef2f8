"""Thresholds that are tried in whole runs."""

import numpy as np
import pytest

from stopwise.controllers.baselines import NeverStop
from stopwise.controllers.logistic import Logistic
from stopwise.controllers.thresholded import intervene_share
from stopwise.data.errors import UsageError
from stopwise.signals.features import FeatureSpec, build_features
from stopwise.train.closed_loop import Worth, levels, search_pairs, two_thresholds, with_thresholds


def policy(intervene_threshold: float | None = 0.4) -> Logistic:
    """Probabilities of continue, intervene and stop in the ratio 1 : e^t : e^(2t) at search t."""
    spec = FeatureSpec(())
    size = 2 * len(spec)
    coef = np.zeros((3, size))
    coef[1, 0], coef[2, 0] = 1.0, 2.0
    weights = {"mean": np.zeros(size), "scale": np.ones(size), "coef": coef, "intercept": np.zeros(3)}
    return Logistic(spec, weights, threshold=0.6, intervene_threshold=intervene_threshold)


def worth(value):
    return Worth(value, 0.5, 10.0, 1.0)


class TestSearch:
    def test_one_threshold_after_the_other_until_nothing_is_better(self):
        """By hand: from (9, 9) sweeps find stop 2, then intervene 1, then stop 3, then nothing."""
        table = {(2, 9): 0.2, (2, 1): 0.3, (3, 1): 0.4}
        asked = []

        def run(pair):
            asked.append(pair)
            return worth(table.get(pair, 0.1))

        tried = search_pairs((9, 9), [1, 2, 3], [1, 2], run)
        best = max(tried, key=lambda row: row.worth.value)
        assert (best.threshold, best.intervene_threshold) == (3, 1)
        assert asked[:6] == [(9, 9), (1, 9), (2, 9), (3, 9), (2, 1), (2, 2)]
        assert len(asked) == len(set(asked)) == len(tried)
        assert [(row.threshold, row.intervene_threshold) for row in tried] == asked

    def test_of_equals_the_policys_own_pair_is_kept(self):
        tried = search_pairs((0.5, 0.5), [0.1, 0.9], [0.2], lambda pair: worth(0.3))
        best = max(tried, key=lambda row: row.worth.value)
        assert (best.threshold, best.intervene_threshold) == (0.5, 0.5)


class TestLevels:
    def test_candidates_are_quantiles_of_what_the_policy_says(self, run_of, table_of):
        """It watches: a stop at the first row must not hide the others."""
        runs = [run_of([0.0, 0.5, 0.5, 1.0], question=f"q{n}", id=f"r{n}") for n in range(2)]
        table = table_of(runs)
        found = policy().probabilities(build_features(table, FeatureSpec(())))
        first = np.exp([0.0, 1.0, 2.0])
        assert found[0].tolist() == pytest.approx(first / first.sum())
        stops, nudges = levels(policy(), table, [0.0, 0.5, 1.0], [1.0, 1.0])
        assert stops == pytest.approx(np.quantile(found[:, 2], [0.0, 0.5, 1.0]))
        assert nudges == pytest.approx([intervene_share(found).max()])


class TestPair:
    def test_only_the_thresholds_change(self):
        before = policy()
        after = with_thresholds(before, (0.1, 0.2))
        assert two_thresholds(after) == (0.1, 0.2)
        assert two_thresholds(before) == (0.6, 0.4)
        assert isinstance(after, Logistic)
        assert after.weights is before.weights

    @pytest.mark.parametrize("other", [NeverStop(), policy(intervene_threshold=None)])
    def test_a_policy_without_two_thresholds_is_refused(self, other):
        with pytest.raises(UsageError, match="has no threshold of intervene to tune"):
            two_thresholds(other)
