"""JSON by schema: what is asked for is a frozen dataclass, and what comes back is one, or a named failure.

The rule by which a reply is read:

1. A reply that is a JSON object and nothing else is that object, whatever its texts hold.
2. Else what stands between ``<think>`` and ``</think>`` is left out.
3. If the reply has fenced blocks (three backticks, with or without a word after them), the last block that is a JSON
   object counts: models show examples first and the answer last.
4. Else the last JSON object in the text counts, objects inside others apart.
5. That object must hold every field of the dataclass with its type; further keys are ignored.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar

from stopwise.models.chat import ChatFailure

Answer = TypeVar("Answer")

# What `bounded` adds: a text of 240 characters is some 60 tokens, two sentences.
LONGEST_TEXT, SHORTEST_TEXT = 240, 16  # characters
MOST_ITEMS = 12
LARGEST_NUMBER, FINEST_NUMBER = 10**9 - 1, 1e-6

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON schema of a frozen dataclass, closed (no further keys) as strict servers want it."""
    from pydantic import TypeAdapter

    return _close(TypeAdapter(kind).json_schema())


def bounded(schema: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """The same schema, with bounds where it has none, so that a reply that is held to it comes to its end.

    A list gets at most `MOST_ITEMS` items, a number 9 digits before and 6 behind the point. All free texts together get
    two characters for each token (English has some four a token, which leaves room for the rest of the JSON and for
    text that is cut into smaller pieces), and each at most `LONGEST_TEXT`. Bounds that the schema has are kept.

    Args:
        schema: JSON schema, as `schema_of` makes them.
        max_tokens: of the reply.
    """
    definitions = schema.get("$defs", {})
    texts = max(1, _free_texts(schema, definitions))
    return _bound(schema, max(SHORTEST_TEXT, min(LONGEST_TEXT, 2 * max_tokens // texts)))


def read_answer(text: str, kind: type[Answer]) -> Answer:
    """Read a reply by the rule above.

    Args:
        text: the reply.
        kind: a frozen dataclass.

    Raises:
        ChatFailure: ``no JSON in reply`` or ``wrong schema``; the message says what is wrong in words that the model
            itself may be told.
    """
    from pydantic import TypeAdapter, ValidationError

    found = find_object(text)
    if found is None:
        raise ChatFailure("no JSON in reply", f"the reply holds no JSON object; found {_shown(text)}")
    try:
        # strict, but as JSON has it: lists are tuples, and 1 is a float
        return TypeAdapter(kind).validate_json(json.dumps(found), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ChatFailure(
            "wrong schema",
            f"key {place}: {first['msg']}; found {_shown(json.dumps(found, ensure_ascii=False))}; "
            f"expected an object with {', '.join(field.name for field in fields(kind))}",  # pyright: ignore[reportArgumentType]
        ) from None


def find_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a reply means, by the rule above; None when there is none."""
    with suppress(ValueError, RecursionError):
        whole = json.loads(text)
        if isinstance(whole, dict):
            return whole
    text = _THINKING.sub("", text)
    for block in reversed(_FENCE.findall(text)):
        found = _last_object(block)
        if found is not None:
            return found
    return _last_object(text)


def _last_object(text: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder()
    last = None
    position = text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position = text.find("{", position + 1)
            continue
        if isinstance(value, dict):
            last = value
        position = text.find("{", end)
    return last


def _close(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_close(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _close(value) for key, value in schema.items() if key not in ("title", "default")}
    if closed.get("type") == "object" and "properties" in closed:
        closed["properties"] = {key: _close(value) for key, value in schema["properties"].items()}
        closed |= {"additionalProperties": False, "required": list(closed["properties"])}
    return closed


def _free_texts(schema: Any, definitions: Mapping[str, Any], inside: tuple[str, ...] = ()) -> int:
    """Texts without a bound that a reply may hold; a definition that contains itself counts once."""
    if not isinstance(schema, Mapping):
        return 0
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and name not in inside:
        return _free_texts(definitions[name], definitions, (*inside, name))
    choice = (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
    parts = (*schema.get("properties", {}).values(), *schema.get("prefixItems", ()))
    return (
        int(_is_free_text(schema))
        + max((_free_texts(part, definitions, inside) for part in choice), default=0)
        + sum(_free_texts(part, definitions, inside) for part in parts)
        + _most_items(schema) * _free_texts(schema.get("items"), definitions, inside)
    )


def _bound(schema: Any, text: int) -> Any:
    if isinstance(schema, list):
        return [_bound(part, text) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    bound = {key: _bound(value, text) for key, value in schema.items()}
    if _is_free_text(schema):
        bound["maxLength"] = max(text, schema.get("minLength", 0))
    if schema.get("type") == "array":
        bound["maxItems"] = _most_items(schema)
    if schema.get("type") in ("integer", "number") and not {"enum", "const"} & set(schema):
        if not {"minimum", "exclusiveMinimum"} & set(schema):
            bound["minimum"] = -LARGEST_NUMBER
        if not {"maximum", "exclusiveMaximum"} & set(schema):
            bound["maximum"] = LARGEST_NUMBER
        if schema["type"] == "number":
            bound.setdefault("multipleOf", FINEST_NUMBER)
    return bound


def _most_items(schema: Mapping[str, Any]) -> int:
    return schema.get("maxItems", max(MOST_ITEMS, schema.get("minItems", 0)))


def _is_free_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" and not {"enum", "const", "maxLength", "pattern", "format"} & set(schema)


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    return repr(plain if len(plain) <= 120 else f"{plain[:117]}...")
