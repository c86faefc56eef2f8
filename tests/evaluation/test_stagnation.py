import json

import pytest

from stopwise.data.errors import DataError
from stopwise.evaluation.stagnation import analyze, by_agent, by_turn
from stopwise.signals.tracker import SignalConfig


@pytest.fixture(scope="module")
def table(run_of, table_of):
    """Nov is 1 exactly where a step brings gold; RE is missing; one run has no gold, one no step."""
    runs = []
    for number, gains in enumerate([(1, 0, 1), (0, 1), (1, 1, 0, 0)]):
        recall = [sum(gains[: t + 1]) / 4 for t in range(len(gains))]
        signals = {"Nov": [float(gain) for gain in gains], "RE": ["no logprobs"] * len(gains)}
        runs.append(run_of(recall, question=f"q{number}", signals=signals, agent="ann" if number else "bob"))
    runs.append(run_of(None, question="q8", steps=2, signals={"Nov": [0.0, 0.0], "RE": [1.0, 1.0]}))
    runs.append(run_of([], question="q9"))
    return table_of(runs, signals=("Nov", "RE"))


def test_auroc_of_a_signal_that_knows_and_of_one_that_is_missing(table):
    result = analyze(table, resamples=50)
    assert result["auroc"]["Nov"]["pooled"]["value"] == 1
    assert result["auroc"]["Nov"]["within_question"]["value"] == 1
    for kind in ("pooled", "turn_matched", "within_question"):
        assert result["auroc"]["RE"][kind]["value"] is None
        assert result["auroc"]["RE"][kind]["reason"]
        assert {"value", "ci", "pairs"} <= result["auroc"]["Nov"][kind].keys()
    assert result["nulls"] == {"Nov": {}, "RE": {"no logprobs": 9}}
    assert (result["runs"], result["runs_without_gold"], result["questions"], result["steps"]) == (3, 1, 3, 9)
    assert result["productive_share"] == pytest.approx(5 / 9)
    json.dumps(result, allow_nan=False)


def test_the_seed_decides_the_intervals(table):
    first = analyze(table, resamples=50)
    assert analyze(table, resamples=50) == first
    assert first["horizon"] == 3


def test_recall_by_turn_over_all_runs_and_over_those_alive(table):
    curves = analyze(table, resamples=10)["by_turn"]
    first, second, third, fourth = curves["all"]
    assert [turn["runs"] for turn in curves["all"]] == [3, 3, 2, 1]
    assert first["recall"] == pytest.approx((1 + 0 + 1) / 4 / 3)
    assert second["recall"] == second["recall_alive"] == pytest.approx((1 + 1 + 2) / 4 / 3)
    assert third["recall"] == pytest.approx((2 + 1 + 2) / 4 / 3)  # the second run is over and keeps its last
    assert third["recall_alive"] == pytest.approx((2 + 2) / 4 / 2)
    assert (fourth["relevant_new"], fourth["irrelevant_new"], fourth["Nov"]) == (0, 5, 0)
    assert set(curves) == {"all", "ann", "bob"}
    assert len(curves["ann"]) == 4
    assert len(by_turn(table, turns=2)) == 2


def test_runs_without_an_agent_are_unnamed(table):
    assert sorted(by_agent(table)) == ["ann", "bob", "unnamed"]
    assert len(by_agent(table)["unnamed"]) == 2


def test_no_gold_no_label(table):
    with pytest.raises(DataError, match="no run has gold"):
        analyze(table.select([3, 4]))


def test_coverage_by_gold_is_marked(run_of, table_of):
    runs = [run_of([0.25, 0.25], question=f"q{n}", signals={"Cov": [1.0, 0.5]}) for n in range(2)]
    assert analyze(table_of(runs), resamples=10)["privileged"] is False
    gold = table_of(runs, config=SignalConfig(("Cov",), coverage_judge="gold"))
    assert analyze(gold, resamples=10)["privileged"] is True
