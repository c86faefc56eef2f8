"""OpenAI Responses API: items ``reasoning``, ``function_call``, ``function_call_output``, ``message``.

A response object (``output``), the input items with it (``input``), a bare list of items, or a row that holds either.
The calls between two outputs are one turn. Log-probabilities stand on the output texts, where they were asked for; the
built-in ``web_search_call`` names its query but returns no documents.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stopwise.data.importers.chat import message_text
from stopwise.data.importers.conversation import Call, Message, Run, read_conversation
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.sources import read_rows
from stopwise.data.importers.token_logprobs import parse_logprobs
from stopwise.data.importers.toolbox import (
    ImportProblem,
    Sample,
    describe,
    optional_count,
    optional_text,
    question_id,
)
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import EndedBy, Trajectory

PICTURE = (
    '{"output": [{"type": "function_call", "call_id": ..}, {"type": "function_call_output", ..}, {"type": "message"}]}'
)

_ITEM_TYPES = frozenset({"function_call", "function_call_output", "web_search_call", "file_search_call", "reasoning"})
_LISTS = ("items", "output", "messages", "trajectory", "response")


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    if isinstance(sample.whole, list) and _is_items(sample.whole):
        return 0.9
    return 0.9 if any(_is_items(_items(row)) for row in sample.objects) else 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of responses: one object, a list of objects, one a line, or one list of items."""
    yield from read_rows(path, lambda row, number: _row(row, number, tools), is_one=_is_items)


def _is_items(items: Any) -> bool:
    return isinstance(items, list) and any(
        isinstance(item, dict) and str(item.get("type")) in _ITEM_TYPES for item in items
    )


def _items(row: Any) -> Any:
    """A row's items, those of its input first."""
    if not isinstance(row, dict):
        return row
    for key in _LISTS:
        inner = row.get(key)
        if isinstance(inner, dict):
            return _items(inner)
        if isinstance(inner, list):
            given = row.get("input") if key == "output" else None
            if isinstance(given, str):
                given = [{"role": "user", "content": given}]
            return (given if isinstance(given, list) else []) + inner
    return None


def _row(row: Any, number: int, tools: Tools) -> Trajectory | str:
    items = _items(row)
    if not isinstance(items, list):
        return f"found {describe(row)}; expected an object with output items"
    fields: Mapping[str, Any] = row if isinstance(row, dict) else {}
    facts = row_facts(fields)
    run = read_conversation(_messages([item for item in items if isinstance(item, dict)], fields.get("usage")), tools)
    question = run.question or facts.question
    if not question:
        return "found no question: no message of a user"
    if not run.steps:
        return "found no item of the model"
    return Trajectory(
        id=facts.id or f"row-{number}",
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=run.steps,
        answer=run.answer,
        correct=facts.correct,
        agent=facts.agent,
        dataset=facts.dataset,
        ended_by=_ended_by(fields, run),
        meta=facts.meta | ({"confidence": run.confidence} if run.confidence is not None else {}),
    )


def _ended_by(row: Mapping[str, Any], run: Run) -> EndedBy:
    status = row.get("status")
    if status == "incomplete":
        return "budget"
    return "error" if status == "failed" else run.ended_by


def _messages(items: list[dict[str, Any]], usage: Any) -> Iterator[Message]:
    turn: Message | None = None
    usage = usage if isinstance(usage, dict) else {}
    tokens = {
        "tokens_in": optional_count(usage.get("input_tokens")),
        "tokens_out": optional_count(usage.get("output_tokens")),
    }
    for i, item in enumerate(items):
        kind, role = item.get("type"), item.get("role")
        if kind == "function_call_output" or (role in ("user", "system", "developer")):
            if turn is not None:
                yield turn
                turn = None
            if kind == "function_call_output":
                yield Message("tool", content=item.get("output"), call_id=optional_text(item.get("call_id")))
            else:
                yield Message("user" if role == "user" else "system", text=message_text(item.get("content")))
            continue
        said = kind == "message" or (kind is None and role == "assistant")
        if turn is not None and (said or kind == "reasoning") and (turn.calls or (said and turn.text)):
            yield turn
            turn = None
        turn = turn or Message("assistant")
        if kind == "reasoning":
            thought = message_text(item.get("content")) or message_text(item.get("summary"))
            turn.thought = "\n".join(filter(None, (turn.thought, thought))) or None
        elif said:
            turn.text = message_text(item.get("content"))
            turn.logprobs = _logprobs(item.get("content"))
        elif call := _call(item):
            turn.calls.append(call)
        if i == len(items) - 1 and not any("usage" in other for other in items):
            turn.tokens_in, turn.tokens_out = tokens["tokens_in"], tokens["tokens_out"]
    if turn is not None:
        yield turn


def _call(item: dict[str, Any]) -> Call | None:
    kind = str(item.get("type"))
    if kind == "function_call":
        name = optional_text(item.get("name"))
        return Call(name, item.get("arguments"), optional_text(item.get("call_id") or item.get("id"))) if name else None
    if not kind.endswith("_call"):
        return None
    action = item.get("action")
    action = action if isinstance(action, dict) else {}
    if kind == "web_search_call" and action.get("type") in ("open_page", "find_in_page", "find"):
        return Call("open_page", {"url": action.get("url")}, result={"error": "page not in the log"}, answered=True)
    arguments = {"query": action.get("query") or item.get("queries")}
    result = item.get("results") or action.get("sources")
    return Call(
        kind.removesuffix("_call"), arguments, result=result or {"error": "results not in the log"}, answered=True
    )


def _logprobs(content: Any) -> Any:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("logprobs"):
            return parse_logprobs(part["logprobs"])
    return None
