import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.controllers.base import Observation, RunSoFar
from stopwise.controllers.kinds import make_rule
from stopwise.controllers.review_stopping import Chao1, Knee, Target, chao1, knee, slope_ratio, times_seen
from stopwise.data.errors import UsageError
from stopwise.data.records import Action, Document, Step
from stopwise.signals.tracker import SignalRow


def test_knee_lies_farthest_above_the_line() -> None:
    # found 5, 9, 10, 10, 10: above the line 2 i by 3, 5, 4, 2, 0
    assert knee([5, 9, 10, 10, 10]) == 2
    assert knee([2, 4, 6]) == 1  # on the line everywhere
    assert knee([0, 0, 3]) == 3  # below it until the end


def test_slope_ratio() -> None:
    # batches of 5, knee after 2 of 5: (9 / 10) / ((1 + 10 - 9) / 15) = 6.75
    assert slope_ratio([5, 9, 10, 10, 10], 5) == pytest.approx(6.75)
    # knee after 2 of 3 again, above the line by 2.33: (9 / 10) / ((1 + 10 - 9) / 5) = 2.25
    assert slope_ratio([5, 9, 10], 5) == pytest.approx(2.25)
    assert slope_ratio([5], 5) == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_knee_is_the_farthest_point_by_geometry(new: list[int]) -> None:
    gains = np.cumsum(new).astype(float)
    at = knee(gains.tolist())
    # distance of (i, gain) from the line through (0, 0) and (s, gain_s), above it positive
    s, end = len(gains), gains[-1]
    i = np.arange(1, s + 1)
    distance = (s * gains - end * i) / math.hypot(s, end)
    assert distance[at - 1] == pytest.approx(distance.max(), abs=1e-9)


def test_knee_stops_at_the_bend(run_through) -> None:
    # shares 1, .8, .2, 0, 0 of lists of 5 are the curve above; one step earlier the ratio is (9/10) / (2/10) = 4.5
    rows = [{"Nov": share} for share in (1.0, 0.8, 0.2, 0.0, 0.0)]
    assert run_through(Knee(bound=6.7), rows) == ["CONTINUE"] * 4 + ["STOP"]
    assert run_through(Knee(bound=4.5), rows) == ["CONTINUE"] * 3 + ["STOP"] * 2
    assert run_through(Knee(bound=4.5, min_searches=5), rows) == ["CONTINUE"] * 4 + ["STOP"]
    assert run_through(Knee(bound=6.8), rows) == ["CONTINUE"] * 5


def test_knee_takes_an_empty_list_as_nothing_new_and_an_unknown_one_as_no_reason(run_through) -> None:
    rows = [{"Nov": share} for share in (1.0, 0.8, 0.2, "no documents", "no documents")]
    assert run_through(Knee(bound=6.7), rows)[-1] == "STOP"
    rows[-1] = {"Nov": "not asked for"}
    assert run_through(Knee(bound=4.5), rows)[-1] == "CONTINUE"


def test_knee_never_stops_an_agent_that_keeps_finding(run_through) -> None:
    assert set(run_through(Knee(), [{"Nov": 0.8}] * 40)) == {"CONTINUE"}


def test_target_waits_for_the_criteria(run_through) -> None:
    rows = [{"Cov": cov} for cov in (0.0, 0.5, 0.75, 1.0)] + [{"Cov": "no criteria"}]
    assert run_through(Target(), rows) == ["CONTINUE"] * 3 + ["STOP", "CONTINUE"]
    assert run_through(Target(0.75), rows) == ["CONTINUE"] * 2 + ["STOP"] * 2 + ["CONTINUE"]


@pytest.mark.parametrize(
    ("counts", "classes"),
    [
        ([1, 1, 1, 1, 2, 2, 3], 7 + 4 * 3 / (2 * 3)),  # f1 = 4, f2 = 2: 9
        ([1, 1, 1], 3 + 3 * 2 / 2),  # nothing twice: 6
        ([1, 2, 2, 5], 4),  # a single one seen once says nothing of more
        ([2, 2, 3], 3),
        ([], 0),
    ],
)
def test_chao1(counts: list[int], classes: float) -> None:
    assert chao1(counts) == pytest.approx(classes)


def test_chao1_of_draws_from_a_known_population() -> None:
    # 200 equally likely classes, 300 draws: some 155 seen; Chao's bound is tight where all are equally likely
    draws = np.random.default_rng(0).integers(200, size=300)
    counts = np.bincount(draws, minlength=200)
    assert (counts > 0).sum() < 170
    assert chao1(counts[counts > 0].tolist()) == pytest.approx(200, rel=0.1)


def search(*ids: str) -> Step:
    return Step("search", queries=("q",), documents=tuple(Document(id) for id in ids))


def after(*steps: Step) -> Observation:
    t = sum(step.kind == "search" for step in steps)
    return Observation(SignalRow(t, {}, {}), None, np.array([True] * 3), run=RunSoFar("?", tuple(steps)))


def test_times_seen_counts_a_document_once_a_search() -> None:
    steps = [search("a", "b", "a"), Step("open", queries=("c",), documents=(Document("c"),)), search("a")]
    assert sorted(times_seen(steps)) == [1, 2]


def test_chao1_stops_when_little_is_left() -> None:
    rule = Chao1(share=0.75, min_searches=2)
    # a, b, c, d: b twice, three once: 4 + 3 * 2 / (2 * 2) = 5.5, and 4 / 5.5 is .73
    assert rule.decide(after(search("a", "b"), search("b", "c", "d"))).action is Action.CONTINUE
    # then a and c twice as well: 4 + 0, and all are seen
    decision = rule.decide(after(search("a", "b"), search("b", "c", "d"), search("a", "c")))
    assert decision.action is Action.STOP
    assert decision.message == "4 documents seen of an estimated 4 within reach"
    assert Chao1(share=0.75, min_searches=4).decide(after(*[search("a")] * 3)).action is Action.CONTINUE


def test_chao1_without_documents_goes_on(see) -> None:
    assert Chao1().decide(see(9)).action is Action.CONTINUE
    assert Chao1(min_searches=1).decide(after(search(), search())).action is Action.CONTINUE


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("knee", {"bound": -1}, "knee: bound: -1; expected a number of 0 or more"),
        ("knee", {"list_size": 2.5}, "knee: list_size: 2.5; expected a whole number"),
        ("target", {"share": 0}, "target: share: 0; expected a number"),
        ("target", {"share": 1.5}, "target: share: 1.5; expected a number"),
        ("chao1", {"share": 2}, "chao1: share: 2; expected a number"),
        ("chao1", {"min_searches": 0}, "chao1: min_searches: 0; expected a whole number"),
    ],
)
def test_wrong_parameters(kind: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_rule(kind, params)


@pytest.mark.parametrize("kind", ["knee", "target", "chao1"])
def test_parameters_make_an_equal_rule(kind: str) -> None:
    rule = make_rule(kind, {})
    assert make_rule(kind, rule.params).params == rule.params
