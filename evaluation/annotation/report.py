"""What the raters found, method by method; this is where the study is unblinded.

A suggestion counts as correct when both raters say so ([DS-MCM] 4.8, table 6). Intervals are over questions; methods
are compared on the questions that they share.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from stopwise.data.errors import DataError, UsageError
from stopwise.evaluation.agreement import agreement
from stopwise.evaluation.annotation.answers import COMMENT, Answers, raters_of
from stopwise.evaluation.annotation.study import CRITERIA, KEY, Study, read_key
from stopwise.evaluation.bootstrap import QuestionBootstrap, percentile_interval
from stopwise.evaluation.statistics import compare

_OF_ITEM = {"method": str, "question_id": str, "trajectory": str, "step": int}  # what the key says of each
BOTH = "correct_by_both"  # the paper's measure


def open_raters(study: Study, names: Sequence[str] = (), *, partial: bool = False) -> list[Answers]:
    """The two raters' answers.

    Args:
        study: what they judged.
        names: two of those who have begun; empty takes all, who must then be two.
        partial: take what is there, also of one rater alone.

    Raises:
        UsageError: there are not two raters, or they are not finished and `partial` is not set.
        DataError: a file of answers is damaged, or to another study.
    """
    begun = raters_of(study)
    for name in names:
        if name not in begun:
            raise UsageError(f"--rater {name}: has not begun; found {', '.join(begun) or 'nobody'}")
    chosen = list(dict.fromkeys(names or begun))
    if len(chosen) > 2 or (len(chosen) < 2 and not (partial and chosen)):
        raise UsageError(
            f"{study.folder}: raters {', '.join(chosen) or 'none'}; expected two"
            + ("; choose by --rater" if len(chosen) > 2 else ", so that agreement can be told")
        )
    raters = [Answers(study, name) for name in chosen]
    open_ = ", ".join(f"{rater.rater} {len(rater.missing)}" for rater in raters if rater.missing)
    if open_ and not partial:
        raise UsageError(
            f"{study.folder}: suggestions are still to be judged ({open_}), and the methods stay hidden until then; "
            "finish with `stopwise annotate rate`, or say --partial"
        )
    return raters


def report(study: Study, raters: Sequence[Answers], *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """The result, JSON-able.

    Args:
        study: what was judged.
        raters: one or two.
        resamples: of the bootstrap.
        seed: of the bootstrap and of permutation tests.

    Raises:
        DataError: the key is missing, or of another study.
    """
    items = key_items(study)
    given = [rater.given for rater in raters]
    names = sorted({item["method"] for item in items.values()})
    methods: dict[str, Any] = {}
    scores: dict[str, dict[str, dict[int, float]]] = {}  # method, measure, item number
    for method in names:
        own = {number: item for number, item in items.items() if item["method"] == method}
        scores[method] = _scores(own, given)
        methods[method] = {
            "items": len(own),
            "missing": {
                rater.rater: sum(n not in some for n in own) for rater, some in zip(raters, given, strict=True)
            },
            **{measure: _mean(values, items, resamples, seed) for measure, values in scores[method].items()},
            "agreement": _agreement(own, given, resamples, seed),
        }
    return {
        "raters": [rater.rater for rater in raters],
        "items": len(items),
        "missing": {rater.rater: len(rater.missing) for rater in raters},
        "methods": methods,
        "agreement": _agreement(items, given, resamples, seed),
        "comparisons": [
            {"measure": measure, "treatment_method": one, "baseline_method": other}
            | _compare(scores[one][measure], scores[other][measure], items, resamples, seed)
            for one, other in combinations(names, 2)
            for measure in scores[one]
        ],
    }


def rows(study: Study, raters: Sequence[Answers]) -> list[dict[str, Any]]:
    """One row for each suggestion and rater; what was not judged is empty.

    Raises:
        DataError: the key is missing, or of another study.
    """
    found = []
    for number, item in key_items(study).items():
        for rater in raters:
            answer = rater.given.get(number, {})
            found.append(
                {"item": number, **{name: item[name] for name in ("method", "question_id", "trajectory", "step")}}
                | {"rater": rater.rater}
                | {criterion.name: answer.get(criterion.name) for criterion in CRITERIA}
                | {COMMENT: answer.get(COMMENT), "suggestion": study.items[number - 1]["suggestion"]}
            )
    return found


def key_items(study: Study) -> dict[int, dict[str, Any]]:
    """What the key says of each item, by number.

    Raises:
        DataError: the key is missing, or of another study.
    """
    items = read_key(study)["items"]
    if len(items) != len(study.items):
        raise DataError(f"{study.folder}: the key tells {len(items)} items, the study {len(study.items)}")
    for number, item in enumerate(items, start=1):
        for name, kind in _OF_ITEM.items():
            if not isinstance(item, dict) or type(item.get(name)) is not kind:
                raise DataError(f"{study.folder / KEY}: item {number}: has no {name}; put the file back that was made")
    return dict(enumerate(items, start=1))


def _scores(own: Mapping[int, Any], given: Sequence[Mapping[int, Any]]) -> dict[str, dict[int, float]]:
    """Of each item that all raters judged: whether all call it correct, and their mean for each criterion."""
    judged = [number for number in own if all(number in some for some in given)]
    found: dict[str, dict[int, float]] = {}
    if len(given) == 2:
        found[BOTH] = {n: float(all(some[n]["correct"] for some in given)) for n in judged}
    for criterion in CRITERIA:
        found[criterion.name] = {n: float(np.mean([some[n][criterion.name] for some in given])) for n in judged}
    return found


def _codes(numbers: Sequence[int], items: Mapping[int, Any]) -> np.ndarray:
    known: dict[str, int] = {}
    return np.array([known.setdefault(items[n]["question_id"], len(known)) for n in numbers], dtype=np.int64)


def _mean(values: Mapping[int, float], items: Mapping[int, Any], resamples: int, seed: int) -> dict[str, Any]:
    """Mean over items, with an interval over questions; null where nothing was judged."""
    numbers = list(values)
    if not numbers:
        return {"of": 0, "questions": 0, "mean": None, "ci": None}
    codes, scores = _codes(numbers, items), np.array([values[n] for n in numbers])
    count = int(codes.max()) + 1
    ci = None
    if count > 1:
        weights = QuestionBootstrap(count, resamples, seed).weights
        sums, sizes = np.bincount(codes, weights=scores), np.bincount(codes)
        ci = list(percentile_interval((weights @ sums) / (weights @ sizes)))
    return {"of": len(numbers), "questions": count, "mean": float(scores.mean()), "ci": ci}


def _agreement(
    own: Mapping[int, Any], given: Sequence[Mapping[int, Any]], resamples: int, seed: int
) -> dict[str, Any] | None:
    """Of two raters, for each criterion; None for one rater."""
    if len(given) != 2:
        return None
    numbers = [number for number in own if all(number in some for some in given)]
    codes = _codes(numbers, own)
    found = {}
    for criterion in CRITERIA:
        one, other = (np.array([some[n][criterion.name] for n in numbers], dtype=np.int64) for some in given)
        weights = "linear" if criterion.ordered else "none"
        values = list(criterion.answers)
        found[criterion.name] = agreement(one, other, codes, values, weights, resamples=resamples, seed=seed)
    return found


def _compare(
    treatment: Mapping[int, float], baseline: Mapping[int, float], items: Mapping[int, Any], resamples: int, seed: int
) -> dict[str, Any]:
    """Two methods on the questions for which both have judged suggestions."""
    asked = [{items[number]["question_id"] for number in arm} for arm in (treatment, baseline)]
    shared = sorted(asked[0] & asked[1])
    if not shared:
        return {"questions": 0, "reason": "no question has judged suggestions of both"}
    code = {question: place for place, question in enumerate(shared)}
    arms = []
    for arm in (treatment, baseline):
        pairs = [(value, code[q]) for n, value in arm.items() if (q := items[n]["question_id"]) in code]
        arms.append((np.array([value for value, _ in pairs]), np.array([place for _, place in pairs])))
    (one, one_codes), (other, other_codes) = arms
    return compare(one, other, one_codes, other_codes, resamples=resamples, seed=seed).to_json()
