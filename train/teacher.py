"""What boosted trees say of each row, from trees that never saw its question: labels without the noise of returns.

A realised return is one draw, and most states' stakes are hundredths: a large learner fits the draws. Strongly
regularised trees average over the rows that are alike, and a student learns what they found (Hinton et al.,
*Distilling the Knowledge in a Neural Network*, 2015, with labels for the training rows themselves made by
cross-fitting).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import check_number, softmax
from stopwise.controllers.boosted import tree_scores
from stopwise.train.targets import question_folds
from stopwise.train.trees import TreeOptions, fit_trees

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TeacherOptions(TreeOptions):
    """How the teacher is grown; nothing of it is chosen on validation questions."""

    leaves: int = 4
    min_leaf: int = 200
    rounds: int = 50

    def __post_init__(self) -> None:
        check_number("teacher.rounds", self.rounds, low=1, whole=True)
        check_number("teacher.leaves", self.leaves, low=2, whole=True)
        check_number("teacher.min_leaf", self.min_leaf, low=1, whole=True)
        check_number("teacher.rate", self.rate, low=1e-9)


def teacher_probabilities(
    columns: Floats, values: Floats, questions: NDArray[np.int64], options: TeacherOptions, *, folds: int, seed: int
) -> Floats:
    """Probability of each action at each row, shape (N, 3); NaN where the action has no value.

    An action's probability is its share of what the actions are better than the row's worst on average, as of
    `cost_sensitive`: the most probable one is the best.

    Args:
        columns: what a controller sees at each row, shape (N, F), NaN for null.
        values: realised returns of the actions, shape (N, 3); NaN for an action that is not available.
        questions: of each row, shape (N,).
        options: of the trees.
        folds: of questions; a row's probabilities are of trees grown on the other folds.
        seed: deals questions into folds.

    Raises:
        DataError: fewer questions than folds, or rows without any advantage.
    """
    fold = question_folds(questions, folds, seed)
    found = np.full(values.shape, np.nan)
    for number in range(folds):
        held = fold == number
        arrays = fit_trees(columns[~held], values[~held], options.rounds, options, seed)
        found[held] = softmax(tree_scores(arrays, columns[held]))
    return np.where(np.isnan(values), np.nan, found)
