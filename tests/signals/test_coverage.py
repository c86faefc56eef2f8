import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopwise.data.records import Criterion, Document
from stopwise.signals.coverage import (
    MAX_SENTENCES,
    CoverageThresholds,
    EncoderJudge,
    GoldJudge,
    document_sentences,
    fit_thresholds,
)


def test_sentences_end_at_stops_and_lines():
    text = "One of 3.5 km. Two?  Three!\n\nFour\n \n五つ。 六つ"
    assert document_sentences(Document("a", text)) == ["One of 3.5 km.", "Two?", "Three!", "Four", "五つ。", "六つ"]


def test_a_title_stands_for_a_missing_text_and_a_page_is_cut():
    assert document_sentences(Document("a", title="Title")) == ["Title"]
    assert document_sentences(Document("a", text="", title="Title")) == ["Title"]
    assert document_sentences(Document("a")) == []
    assert len(document_sentences(Document("a", "word.\n" * 100))) == MAX_SENTENCES


def test_the_encoder_judge_keeps_the_best_and_reaches_a_threshold_by_equality(encoder):
    judge = EncoderJudge([Criterion("tarn"), Criterion("mill")], encoder, CoverageThresholds(0.5, 1.0))
    assert judge.update([]).tolist() == [0.0, 0.0]
    assert judge.update([Document("a", "mill bridge arden lenn")]).tolist() == [0.0, 0.5]  # one word of four: cos 0.5
    assert judge.update([Document("b", "tarn")]).tolist() == [1.0, 0.5]
    assert judge.update([Document("c", "bridge")]).tolist() == [1.0, 0.5]
    assert judge.best == pytest.approx([1.0, 0.5])


def test_the_gold_judge_gives_nothing_half_or_all():
    judge = GoldJudge([Criterion("x", ("a", "b", "c")), Criterion("y", ("d",)), Criterion("z", ())])
    assert judge.update([Document("d")]).tolist() == [0.0, 1.0, 0.0]
    assert judge.update([Document("a"), Document("b")]).tolist() == [0.5, 1.0, 0.0]
    assert judge.update([Document("c")]).tolist() == [1.0, 1.0, 0.0]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.floats(-1, 1), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=30))
def test_the_thresholds_have_the_least_error_by_brute_force(pairs):
    best, covered = np.array(pairs).T
    found = fit_thresholds(best, covered)
    assert found.partial <= found.full

    def error(partial, full):
        status = [0.5 * (value >= partial) + 0.5 * (value >= full) for value in best]
        return sum((one - other) ** 2 for one, other in zip(status, covered, strict=True))

    candidates = np.unique(np.quantile(best, np.linspace(0.02, 0.98, 49)))
    least = min(error(*pair) for pair in itertools.combinations_with_replacement(candidates, 2))
    assert error(found.partial, found.full) == pytest.approx(least, abs=1e-9)


def test_thresholds_stand_between_the_classes():
    best = np.repeat([0.1, 0.5, 0.9], 20)
    found = fit_thresholds(best, np.repeat([0.0, 0.5, 1.0], 20))
    assert 0.1 < found.partial <= 0.5 < found.full <= 0.9
