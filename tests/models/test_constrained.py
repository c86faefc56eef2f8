"""Replies of a random network that are held to JSON schemas: whatever it would say, they follow the schema."""

import json
import sys
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopwise.data.errors import UsageError
from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.ledger import Ledger
from stopwise.models.response_cache import ResponseCache
from stopwise.models.structured import LONGEST_TEXT, bounded, read_answer, schema_of

pytest.importorskip("llguidance")

ASK = ChatRequest((Message("user", "Which river?"),), max_tokens=400)


@dataclass(frozen=True)
class Note:
    title: str
    share: float


@dataclass(frozen=True)
class Choice:
    reasoning: str
    action: Literal["continue", "stop"]


@dataclass(frozen=True)
class Update:
    notes: tuple[Note, ...]
    number: int
    level: Literal[0, 1]
    sure: bool
    remark: str | None = None


@pytest.fixture
def client(tiny_lm):
    cache = ResponseCache(":memory:")
    yield ChatClient(tiny_lm, cache, Ledger(), tries=1)
    cache.close()


def held(kind, max_tokens=400, **fields):
    return replace(ASK, schema=bounded(schema_of(kind), max_tokens), max_tokens=max_tokens, **fields)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("kind", [Choice, Note, Update])
def test_a_whole_reply_is_an_answer_and_a_cut_one_says_so(tiny_lm, kind, temperature):
    whole = 0
    for sample in range(2):
        reply = tiny_lm.complete(held(kind, temperature=temperature, sample=sample))
        if reply.finish == "length":  # a character can be four of this network's tokens
            assert reply.usage.completion == 400
            continue
        whole += 1
        assert isinstance(read_answer(reply.text, kind), kind)
        value = json.loads(reply.text)
        assert list(value) == list(schema_of(kind)["properties"])
        assert reply.text == json.dumps(value, ensure_ascii=False) or kind is not Choice  # numbers have several forms
    assert whole or kind is Update


PROPERTY = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda values: {"enum": values}, st.lists(st.text(max_size=4), min_size=1, max_size=3, unique=True)),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-50, 50),
        st.integers(0, 200),
    ),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 3),
        st.integers(0, 5),
    ),
)
VALUE = st.one_of(
    PROPERTY,
    st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, PROPERTY, st.integers(0, 3)),
    st.builds(lambda options: {"anyOf": options}, st.lists(PROPERTY, min_size=1, max_size=2)),
)


def follows(value, schema):
    """Whether a value is one that a schema of `VALUE` allows."""
    if "anyOf" in schema:
        return any(follows(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "object":
            properties = schema["properties"]
            return list(value) == list(properties) and all(follows(value[key], properties[key]) for key in value)
        case "array":
            return len(value) <= schema["maxItems"] and all(follows(item, schema["items"]) for item in value)
        case "string":
            return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "boolean":
            return isinstance(value, bool)
        case _:
            return value is None


@settings(max_examples=25)
@given(
    properties=st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUE, min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_any_reply_follows_its_schema(tiny_lm, properties, seed):
    schema = {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip
    reply = tiny_lm.complete(replace(ASK, schema=schema, temperature=2.0, seed=seed, max_tokens=800))
    assert reply.finish == "stop"
    assert follows(json.loads(reply.text), schema)


def test_seeds_decide_within_the_schema(tiny_lm):
    hot = held(Choice, temperature=1.0)
    texts = [tiny_lm.complete(replace(hot, sample=number)).text for number in range(4)]
    assert len(set(texts)) > 1
    assert [tiny_lm.complete(replace(hot, sample=number)).text for number in range(4)] == texts
    assert tiny_lm.complete(replace(hot, top_p=1e-6)).text == tiny_lm.complete(held(Choice)).text


def test_a_reply_cut_by_the_bound_is_reported_as_length(tiny_lm, client):
    reply = tiny_lm.complete(held(Choice, max_tokens=12))
    assert reply.finish == "length"
    assert reply.usage.completion == 12
    assert '{"reasoning": "'.startswith(reply.text[:15])
    with pytest.raises(ChatFailure) as caught:
        client.ask(replace(ASK, max_tokens=12), Choice, "controller")
    assert caught.value.kind == "no JSON in reply"


def test_log_probabilities_are_the_networks_own(tiny_lm):
    """The schema leaves one text open: all of it is forced, and none of it is certain to the network."""
    import torch

    schema = {"enum": ["river"]}
    reply = tiny_lm.complete(replace(ASK, schema=schema, top_logprobs=3))
    assert reply.text == '"river"'
    prompt = tiny_lm._encode(tiny_lm.render(ASK.messages, begin_reply=True))
    ids = tiny_lm._encode(reply.text)
    with torch.inference_mode():
        logits = tiny_lm._network(torch.tensor([prompt + ids])).logits[0].float().log_softmax(-1).numpy()
    rows = logits[len(prompt) - 1 : -1]
    found = [position.logprob for position in reply.logprobs]
    np.testing.assert_allclose(found, rows[np.arange(len(ids)), ids], atol=1e-4)
    assert max(found) < 0
    assert "".join(position.token for position in reply.logprobs) == reply.text


def test_the_client_holds_a_local_model_to_a_bounded_schema(client):
    asked = client.ask(ASK, Choice, "controller")
    assert asked.answer.action in ("continue", "stop")
    assert len(asked.answer.reasoning) <= LONGEST_TEXT
    assert client.ask(ASK, Choice, "controller") == asked


def test_held_and_free_replies_are_cached_apart(client, tiny_lm):
    free = client.complete(ASK, "controller")
    asked = client.ask(ASK, Choice, "controller")
    assert free.text != asked.replies[0].text
    assert client.complete(ASK, "controller") == free


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nonsense"}, "Invalid type: nonsense"),
        ({"not": {"type": "string"}}, r'Unimplemented keys: \["not"\]'),
        ({"type": "string", "format": "nobody knows"}, "Unknown format"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "Unsatisfiable schema"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"enum": [object()]}, "not JSON serializable"),
    ],
)
def test_a_schema_that_it_cannot_be_held_to_is_one_clear_error(tiny_lm, schema, message):
    with pytest.raises(
        UsageError, match=rf"model tiny@\w+: cannot be held to this JSON schema \(.*{message}"
    ) as caught:
        tiny_lm.complete(replace(ASK, schema=schema))
    assert "\n" not in str(caught.value)


def test_without_the_library_the_error_names_the_command(tiny_lm, monkeypatch):
    monkeypatch.setattr(tiny_lm, "_constraints", None)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"llguidance is not installed, .* run `pip install 'stopwise\[lm\]'`"):
        tiny_lm.complete(held(Choice))
    assert tiny_lm.complete(ASK).text  # without a schema nothing is missing
