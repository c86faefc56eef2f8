import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.data.codec import trajectory_from_dict, trajectory_to_dict
from stopwise.data.records import Document, Logprobs, Step, Trajectory

MINIMAL = {"id": "t", "question_id": "q", "question": "?"}


@given(data=st.data())
def test_there_and_back_through_strict_json(any_trajectory, data):
    trajectory = data.draw(any_trajectory)
    line = json.dumps(trajectory_to_dict(trajectory), allow_nan=False)
    assert trajectory_from_dict(json.loads(line)) == trajectory


def test_none_is_left_out_and_minus_infinity_is_a_text():
    step = Step("search", queries=("a",), logprobs=Logprobs(top=((-0.5, -math.inf),)), documents=(Document("d"),))
    assert trajectory_to_dict(Trajectory("t", "q", "?", steps=(step,))) == MINIMAL | {
        "ended_by": "unknown",
        "steps": [
            {
                "kind": "search",
                "queries": ["a"],
                "documents": [{"id": "d"}],
                "logprobs": {"top": [[-0.5, "-inf"]], "source": "logged"},
            }
        ],
    }


def test_null_and_empty_are_told_apart():
    empty = trajectory_from_dict(MINIMAL | {"gold_ids": [], "criteria": []})
    assert (empty.gold_ids, empty.criteria) == ((), ())
    assert trajectory_from_dict(MINIMAL | {"gold_ids": None}).gold_ids is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anser": "x"}, "anser: unknown key; did you mean 'answer'?"),
        ({"zzz": 1}, "zzz: unknown key; known keys: id, question_id"),
        ({"id": 7}, "id: found 7; expected text"),
        ({"id": None}, "id: missing; expected text"),
        ({"correct": "True"}, "correct: found 'True'; expected true or false"),
        ({"ended_by": "tired"}, "ended_by: found 'tired'; expected one of answer, budget, error, unknown"),
        ({"steps": [{"kind": "search"}, {"kind": "walk"}]}, r"steps\[1\].kind: found 'walk'; expected one of search"),
        ({"steps": [7]}, r"steps\[0\]: found 7; expected an object"),
        ({"steps": [{"kind": "search", "queries": ["a", 1]}]}, r"steps\[0\].queries\[1\]: found 1; expected text"),
        ({"steps": [{"kind": "search", "tokens_in": True}]}, r"steps\[0\].tokens_in: found True; expected a whole"),
        ({"steps": [{"kind": "search", "tokens_in": 2**70}]}, "a whole number that 64 bits hold"),
        ({"steps": [{"kind": "search", "logged_action": 3}]}, "found 3; expected 0 continue, 1 intervene or 2 stop"),
        ({"steps": [{"kind": "search", "seconds": "long"}]}, r"seconds: found 'long'; expected a number of 0 or more"),
        ({"steps": [{"kind": "search", "documents": [{}]}]}, r"steps\[0\].documents\[0\].id: missing; expected text"),
        ({"steps": [{"kind": "search", "logprobs": {}}]}, "found neither of top and entropies; expected one"),
        ({"steps": [{"kind": "search", "logprobs": {"top": [[None]]}}]}, r"top\[0\]\[0\]: found None; expected a num"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(change, message):
    with pytest.raises(ValueError, match=message):
        trajectory_from_dict(MINIMAL | change)


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("propensity", [1.2, -0.1, 0, 0.0, 2, math.nan, "nan", "inf"], "a probability above 0, up to 1"),
        ("seconds", [-0.5, -1, math.nan, math.inf, "-inf"], "a number of 0 or more"),
        ("tokens_in", [-1], "a whole number of 0 or more"),
        ("tokens_out", [-7], "a whole number of 0 or more"),
    ],
)
def test_what_no_run_can_have_is_refused(key, values, expected):
    for value in values:
        message = rf"steps\[0\].{key}: found {value!r}; expected {expected}; leave out what is not known"
        with pytest.raises(ValueError, match=message):
            trajectory_from_dict(MINIMAL | {"steps": [{"kind": "search", key: value}]})


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, "nan", "-inf", "high"])
def test_a_score_is_a_finite_number(score):
    step = {"kind": "search", "documents": [{"id": "a", "score": -3}, {"id": "b", "score": score}]}
    with pytest.raises(ValueError, match=r"documents\[1\].score: found .*; expected a finite number; leave out what"):
        trajectory_from_dict(MINIMAL | {"steps": [step]})


def test_the_ends_of_what_is_allowed():
    step = {"kind": "search", "propensity": 1, "seconds": 0, "tokens_in": 0, "tokens_out": 0}
    [found] = trajectory_from_dict(MINIMAL | {"steps": [step]}).steps
    assert (found.propensity, found.seconds, found.tokens_in, found.tokens_out) == (1.0, 0.0, 0, 0)


def test_no_object_at_all():
    with pytest.raises(ValueError, match="value: found \\[\\]; expected an object"):
        trajectory_from_dict([])
