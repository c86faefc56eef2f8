import json
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.models.chat import ChatFailure
from stopwise.models.structured import bounded, find_object, read_answer, schema_of


@dataclass(frozen=True)
class Item:
    title: str
    share: float


@dataclass(frozen=True)
class Judgement:
    action: Literal["continue", "stop"]
    items: tuple[Item, ...]
    note: str | None = None


RIGHT = '{"action": "stop", "items": [{"title": "a", "share": 1}], "note": null}'
WANTED = Judgement("stop", (Item("a", 1.0),))


def test_the_schema_is_closed_and_names_every_field():
    schema = schema_of(Judgement)
    assert schema["required"] == ["action", "items", "note"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["action"]["enum"] == ["continue", "stop"]
    item = schema["$defs"]["Item"]
    assert item["required"] == ["title", "share"]
    assert item["properties"]["title"] == {"type": "string"}


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"Sure! Here is my answer:\n{RIGHT}\nI hope that helps.",
        f"```json\n{RIGHT}\n```",
        f"```\n{RIGHT}\n```\nAll the best {{}}",  # a fenced object counts before one in the text
        f"For example ```json\n{{}}\n``` but really\n```json\n{RIGHT}\n```",
        f"<think>maybe {{}} or ```json\n{{}}\n```</think>{RIGHT}",
        f"{{broken}} {RIGHT}",
        f"{{}} {RIGHT}",
        RIGHT[:-1] + ', "surplus": 3}',
    ],
)
def test_an_answer_is_found_in_chatter(text):
    assert read_answer(text, Judgement) == WANTED


@pytest.mark.parametrize("note", ["<think>no", "```\n{}\n```", "{}"])
def test_a_reply_that_is_one_object_is_that_whatever_its_texts_hold(note):
    text = json.dumps({"action": "stop", "items": [{"title": "a", "share": 1}], "note": note})
    assert read_answer(text, Judgement) == replace(WANTED, note=note)


def test_bounds_are_added_where_there_are_none():
    """Twelve titles and a note share two characters for each of 300 tokens."""
    schema = bounded(schema_of(Judgement), 300)
    assert schema["properties"]["action"] == schema_of(Judgement)["properties"]["action"]
    assert schema["properties"]["items"]["maxItems"] == 12
    assert schema["properties"]["note"]["anyOf"] == [{"type": "string", "maxLength": 600 // 13}, {"type": "null"}]
    item = schema["$defs"]["Item"]["properties"]
    assert item["title"]["maxLength"] == 600 // 13
    assert item["share"] == {"type": "number", "minimum": -999999999, "maximum": 999999999, "multipleOf": 1e-6}


def test_bounds_that_are_there_are_kept():
    given = {
        "type": "array", "maxItems": 20, "items": {"anyOf": [
            {"type": "string", "maxLength": 3}, {"type": "string", "pattern": "a+"}, {"const": 3, "type": "integer"},
            {"type": "integer", "exclusiveMinimum": 0, "maximum": 5}, {"type": "number", "enum": [0.5]},
        ]},
    }  # fmt: skip
    assert bounded(given, 100) == given


@pytest.mark.parametrize(("max_tokens", "length"), [(1000, 240), (50, 100), (1, 16)])
def test_one_text_has_room_for_two_sentences_at_most(max_tokens, length):
    assert bounded({"type": "string"}, max_tokens)["maxLength"] == length


def test_a_schema_that_contains_itself_has_bounds_too():
    node = {"type": "object", "properties": {"text": {"type": "string"}, "below": {"$ref": "#/$defs/Node"}}}
    assert bounded({"$defs": {"Node": node}, "$ref": "#/$defs/Node"}, 100)["$defs"]["Node"]["properties"]["text"] == {
        "type": "string", "maxLength": 200,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "stop", "[1, 2]", '{"action": "stop"', "<think>" + RIGHT, "```json\nnone\n```"])
def test_a_reply_without_an_object(text):
    with pytest.raises(ChatFailure, match="the reply holds no JSON object; found") as caught:
        read_answer(text, Judgement)
    assert caught.value.kind == "no JSON in reply"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "key action: Field required; found '{}'; expected an object with action, items, note"),
        ('{"action": "halt", "items": []}', "key action: Input should be 'continue' or 'stop'"),
        (
            '{"action": "stop", "items": [{"title": 1, "share": 2}]}',
            r"key items.0.title: Input should be a valid string",
        ),
        ('{"action": "stop", "items": [{"title": "a", "share": "2"}]}', "key items.0.share: .*valid number"),
    ],
)
def test_an_object_of_another_shape(text, message):
    with pytest.raises(ChatFailure, match=message) as caught:
        read_answer(text, Judgement)
    assert caught.value.kind == "wrong schema"


@given(st.text(alphabet='{}[]":,ab1 \n`<think>/', max_size=80))
def test_any_text_is_an_answer_or_a_named_failure(text):
    found = find_object(text)
    assert found is None or isinstance(found, dict)
    with pytest.raises(ChatFailure):
        read_answer(text, Judgement)


def test_deeply_nested_text_does_no_harm():
    assert find_object('{"a":' * 5000) is None
