from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopwise.models.chat import ChatFailure
from stopwise.models.structured import find_object, read_answer, schema_of


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
