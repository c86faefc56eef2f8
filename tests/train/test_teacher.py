"""Labels by trees that never saw the row's question."""

import numpy as np
import pytest

from stopwise.data.errors import DataError
from stopwise.train.teacher import TeacherOptions, teacher_probabilities

SMALL = TeacherOptions(rounds=40, leaves=2, min_leaf=5, rate=0.2)


@pytest.fixture
def rows():
    """400 rows of 40 questions: where the column is 1, stopping is better by .3 on average, else worse by .1."""
    chance = np.random.default_rng(0)
    columns = (np.arange(400) % 2).astype(float)[:, None]
    values = np.full((400, 3), np.nan)
    values[:, 0] = 0.0
    values[:, 2] = np.where(columns[:, 0] == 1, 0.3, -0.1) + chance.normal(size=400) * 0.2
    return columns, values, np.repeat(np.arange(40), 10)


def test_it_finds_what_is_better_on_average(rows):
    """By hand: P(stop) is E[lead of stop] / E[|lead|] of the rows that are alike."""
    columns, values, questions = rows
    found = teacher_probabilities(columns, values, questions, SMALL, folds=4, seed=0)
    assert np.isnan(found[:, 1]).all()  # never available
    assert found[:, [0, 2]].sum(axis=1) == pytest.approx(np.ones(400))
    for level in (0, 1):
        alike = columns[:, 0] == level
        lead = values[alike, 2]
        wanted = np.maximum(lead, 0).sum() / np.abs(lead).sum()
        assert found[alike, 2].mean() == pytest.approx(wanted, abs=0.05)


def test_a_question_says_nothing_about_its_own_labels(rows):
    columns, values, questions = rows
    before = teacher_probabilities(columns, values, questions, SMALL, folds=4, seed=0)
    changed = values.copy()
    changed[questions == 7, 2] += 100.0
    after = teacher_probabilities(columns, changed, questions, SMALL, folds=4, seed=0)
    assert (after[questions == 7, 2] == before[questions == 7, 2]).all()
    assert (after[:, 2] != before[:, 2]).any()


def test_too_few_questions_are_refused(rows):
    columns, values, questions = rows
    with pytest.raises(DataError, match="at least 4 questions"):
        teacher_probabilities(columns, values, questions % 3, SMALL, folds=4, seed=0)
