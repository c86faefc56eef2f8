from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.splits import SHARES, SPLITS, split_of


@given(st.text())
def test_every_question_has_one_split_and_keeps_it(question):
    assert split_of(question) in SPLITS
    assert split_of(question) == split_of(question)


def test_a_question_does_not_move_between_versions():
    # by sha256 as it stands today: a change here would leak test questions into training
    assert [split_of(question) for question in ("", "q1", "q2", "q3", "q4", "q5", "Wo?", "川", "\ud800")] == [
        "test", "test", "cal", "train", "train", "train", "train", "cal", "val",
    ]  # fmt: skip


def test_shares_are_about_right():
    counts = Counter(split_of(f"question {number}") for number in range(20_000))
    assert sum(SHARES.values()) == pytest.approx(1.0)
    for split in SPLITS:
        assert counts[split] / 20_000 == pytest.approx(SHARES[split], abs=0.01)


def test_neighbouring_ids_fall_independently():
    pairs = Counter((split_of(f"q{n}"), split_of(f"q{n + 1}")) for n in range(20_000))
    for one in SPLITS:
        for other in SPLITS:
            assert pairs[one, other] / 20_000 == pytest.approx(SHARES[one] * SHARES[other], abs=0.01)
