"""Labels of RAAC 3.2 and 4.3 (arXiv 2608.15191): recall, new-item recall, document types, probes."""

import math
from dataclasses import astuple

import pytest

from stopwise.data.records import AnswerProbe, Document, Step, StepKind, Trajectory
from stopwise.signals.compute import run_labels
from stopwise.signals.labels import LABELS, LabelTracker, label_tracker


def _step(*documents, kind: StepKind = "search", **rest):
    made = [Document(d) if isinstance(d, str) else Document(d[0], text=d[1]) for d in documents]
    return Step(kind, documents=tuple(made), **rest)


def _labels(*steps, gold=("a", "b", "c", "d"), answer=None):
    """Labels of the search steps, and the final ones."""
    tracker = LabelTracker(gold, answer)
    return [row for step in steps if (row := tracker.observe(step)) is not None], tracker.finish()


def test_recall_and_new_item_recall_by_hand():
    rows, final = _labels(_step("a", "x"), _step("a", "b", "c"), _step(), _step("b", "y"))
    assert [row.recall for row in rows] == [0.25, 0.75, 0.75, 0.75]
    assert [row.nir for row in rows] == [0.25, 0.5, 0.0, 0.0]
    assert [row.documents_seen for row in rows] == [2, 4, 4, 5]
    assert astuple(final)[:3] == (0.75, 5.0, 3.0)


def test_document_types_by_hand():
    rows, _ = _labels(_step("a", "x"), _step("a", "b", "c", "x", "y"))
    types = [(r.relevant_new, r.relevant_seen, r.irrelevant_new, r.irrelevant_seen) for r in rows]
    assert types == [(1, 0, 1, 0), (2, 1, 1, 1)]


def test_a_document_that_comes_twice_in_a_step_counts_once():
    rows, _ = _labels(_step("a", "a", "x", "x"), gold=("a", "a", "b"))
    assert (rows[0].recall, rows[0].nir, rows[0].relevant_new, rows[0].irrelevant_new) == (0.5, 0.5, 1, 1)


def test_opened_pages_join_at_the_next_search_step_and_are_not_its_gain():
    rows, final = _labels(
        _step("x"), _step("a", kind="open"), _step("b", kind="other"), _step("a", "c"), _step("d", kind="open")
    )
    assert [row.recall for row in rows] == [0.0, 0.75]
    assert [row.nir for row in rows] == [0.0, 0.25]
    assert [row.pages_opened for row in rows] == [0.0, 2.0]
    assert rows[1].relevant_seen == 1.0
    assert final.recall == 1.0  # the page opened last is in the final state only


def test_without_gold_every_label_of_it_is_nan():
    for gold in (None, ()):
        rows, final = _labels(_step("a"), gold=gold)
        names = ("recall", "nir", "relevant_new", "relevant_seen", "irrelevant_new", "irrelevant_seen")
        assert all(math.isnan(getattr(rows[0], name)) for name in names)
        assert rows[0].documents_seen == 1.0
        assert math.isnan(final.recall)
        assert math.isnan(final.relevant_seen)
        assert final.documents_seen == 1.0


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (None, math.nan),
        (AnswerProbe(None), 0.0),  # no candidate: wrong if the run had to stop here
        (AnswerProbe(None, correct=True), 0.0),
        (AnswerProbe("Tarn", correct=True), 1.0),
        (AnswerProbe("Lenn", correct=False), 0.0),
        (AnswerProbe("Lenn"), math.nan),
    ],
)
def test_probes(probe, expected):
    rows, _ = _labels(_step("a", answer_probe=probe))
    assert rows[0].probe_correct == pytest.approx(expected, nan_ok=True)


def test_costs_belong_to_the_interval_between_two_decisions():
    rows, _ = _labels(
        _step("a", tokens_in=10, tokens_out=1, seconds=0.5),
        _step("b", kind="open", tokens_in=20, tokens_out=2, seconds=1.0),
        _step("c", tokens_in=30, tokens_out=3, seconds=2.0),
        _step("d", kind="open", tokens_in=1000, tokens_out=1000, seconds=9.0),
    )
    assert [row.tokens for row in rows] == [11.0, 55.0]
    assert [row.seconds for row in rows] == [0.5, 3.0]


def test_an_unknown_part_of_a_cost_makes_it_unknown():
    known = {"tokens_in": 10, "tokens_out": 1, "seconds": 1.0}
    for gap in known:
        rows, _ = _labels(_step("a", kind="open", **{**known, gap: None}), _step("b", **known), _step("c", **known))
        assert math.isnan(rows[0].seconds if gap == "seconds" else rows[0].tokens)
        assert rows[1].tokens == 11.0


# --- the reference answer in what was seen --------------------------------------------------------------------------


def _visible(*steps, answer="Old Mill"):
    rows, final = _labels(*steps, answer=answer)
    return [row.answer_visible for row in rows] + [final.answer_visible]


def test_the_answer_is_visible_from_the_step_on_that_shows_it():
    steps = [_step(("a", "A mill.")), _step(("b", "See the (old-mill)!")), _step(("c", "nothing"))]
    assert _visible(*steps) == [0.0, 1.0, 1.0, 1.0]


def test_the_answer_is_visible_as_whole_words_only():
    assert _visible(_step(("a", "the gold miller"))) == [0.0, 0.0]
    assert _visible(_step(("a", "They met in 1066."), ("b", "In 106 they met.")), answer="106") == [1.0, 1.0]
    assert _visible(_step(("a", "They met in 1066.")), answer="106") == [0.0, 0.0]


def test_a_title_shows_it_too_and_an_opened_page_at_the_next_decision():
    assert _visible(Step("search", documents=(Document("a", title="The Old Mill"),))) == [1.0, 1.0]
    page = _step(("a", "old mill"), kind="open")
    assert _visible(_step(("x", "y")), page, _step(("z", "w")), page) == [0.0, 1.0, 1.0]
    assert _visible(_step(("x", "y")), page) == [0.0, 1.0]


@pytest.mark.parametrize("answer", [None, "", "?!"])
def test_without_a_reference_visibility_is_unknown(answer):
    assert all(map(math.isnan, _visible(_step("a"), _step(("b", "text")), answer=answer)))


def test_without_texts_visibility_is_unknown():
    found = _visible(_step(), _step("a", "b"), _step(("c", "a text")))
    assert found == [0.0, pytest.approx(math.nan, nan_ok=True), 0.0, 0.0]
    assert math.isnan(_visible(_step("a"))[-1])


# --- from the records ---------------------------------------------------------------------------------------------


def test_a_trajectory_brings_its_own_gold_and_answer():
    run = Trajectory("r", "q", "?", steps=(_step(("a", "Tarn")),), gold_ids=("a",), meta={"reference_answer": "tarn"})
    row = label_tracker(run).observe(run.steps[0])
    assert row is not None
    assert (row.recall, row.answer_visible) == (1.0, 1.0)
    other = Trajectory("r", "q", "?", steps=run.steps, meta={"reference_answer": ["tarn"]})
    row = label_tracker(other).observe(run.steps[0])
    assert row is not None
    assert math.isnan(row.answer_visible)


def test_the_episode_holds_what_was_seen_at_the_end():
    run = Trajectory(
        "r", "q", "?", steps=(_step("x"), _step("a", kind="open")), gold_ids=("a", "b", "a"), correct=True,
        agent="blue", dataset="small", ended_by="budget",
    )  # fmt: skip
    episode, labels = run_labels(run)
    assert labels.shape == (1, len(LABELS))
    assert (episode.gold, episode.final_recall, episode.final_seen, episode.final_relevant) == (2.0, 0.5, 2.0, 1.0)
    assert (episode.correct, episode.outcome, episode.ended_by) == (1.0, "halted", "budget")
    assert (episode.id, episode.question_id, episode.agent, episode.dataset) == ("r", "q", "blue", "small")


def test_a_run_without_searches_has_no_labels():
    episode, labels = run_labels(Trajectory("r", "q", "?", steps=(_step("a", kind="open"),), gold_ids=("a",)))
    assert labels.shape == (0, len(LABELS))
    assert episode.final_recall == 1.0
    assert math.isnan(episode.correct)
