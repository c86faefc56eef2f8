import math

import pytest

from stopwise.data.importers.token_logprobs import parse_logprobs
from stopwise.data.records import Logprobs

TOP = [
    {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -2.0}, {"token": "a", "logprob": -0.5}]},
    {"token": "c", "logprob": -0.25, "top_logprobs": []},
    {
        "token": "d",
        "logprob": -math.inf,
        "top_logprobs": [{"logprob": -0.1}, {"logprob": -math.inf}, {"logprob": None}],
    },
]


@pytest.mark.parametrize(
    ("value", "top"),
    [
        ({"content": TOP}, ((-0.5, -2.0), (-0.25,), (-0.1, -math.inf))),
        (TOP[:1], ((-0.5, -2.0),)),
        ([-0.5, -1, None], ((-0.5,), (-1.0,))),
        ({"token_logprobs": [None, -1.0], "top_logprobs": [None, {"x": -1.0, "y": -0.5}]}, ((-0.5, -1.0),)),
        ({"token_logprobs": [-1.0]}, ((-1.0,),)),
    ],
)
def test_chosen_tokens_and_top_k_of_each_position(value, top):
    assert parse_logprobs(value) == Logprobs(top=top)


@pytest.mark.parametrize("value", [None, {}, [], {"content": []}, {"content": None}, "x", [{}], {"token_logprobs": []}])
def test_nothing_is_none(value):
    assert parse_logprobs(value) is None
