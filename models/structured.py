"""JSON by schema: what is asked for is a frozen dataclass, and what comes back is one, or a named failure.

The rule by which a reply is read:

1. What stands between ``<think>`` and ``</think>`` is left out.
2. If the reply has fenced blocks (three backticks, with or without a word after them), the last block that is a JSON
   object counts: models show examples first and the answer last.
3. Else the last JSON object in the text counts, objects inside others apart.
4. That object must hold every field of the dataclass with its type; further keys are ignored.
"""

import json
import re
from dataclasses import fields
from typing import Any, TypeVar

from stopwise.models.chat import ChatFailure

Answer = TypeVar("Answer")

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON schema of a frozen dataclass, closed (no further keys) as strict servers want it."""
    from pydantic import TypeAdapter

    return _close(TypeAdapter(kind).json_schema())


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


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    return repr(plain if len(plain) <= 120 else f"{plain[:117]}...")
