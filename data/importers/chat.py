"""Chat transcripts: OpenAI messages with tool calls, FireAct's ReAct turns, OWL's rounds with inline results.

- OpenAI Chat Completions: ``messages`` with ``tool_calls`` and ``role: tool`` answers; a row, a list of rows, one
  conversation as a bare list, or a ``choices`` response. Log-probabilities where they were asked for.
- FireAct: ``traj`` as role/content turns, or as one text, in the words of ReAct (``Action: search[..]``). Its search
  gives one passage without title or id, or ``None``; of several actions in one message the first was executed.
- OWL: ``history`` of rounds ``{user, assistant, tool_calls: [{tool_name, args, result}]}``. The calls of a round were
  made one after the other, before the assistant's solution.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stopwise.data.importers.conversation import Call, Message, Run, read_conversation
from stopwise.data.importers.fireact import read_fireact
from stopwise.data.importers.row_facts import RowFacts, row_facts
from stopwise.data.importers.sources import JsonValue, guarded, json_values
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
from stopwise.data.records import Trajectory

PICTURE = (
    '{"messages": [{"role": "assistant", "tool_calls": [..]}, {"role": "tool", "tool_call_id": .., "content": ..}]}'
)

_MESSAGE_KEYS = ("messages", "conversation", "conversations", "history")
_SHAREGPT = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    if isinstance(sample.whole, list) and sample.whole and all(_is_message(item) for item in sample.whole[:5]):
        return 0.8
    for row in sample.objects:
        if isinstance(row.get("traj"), list | str) and ("pred" in row or "gt" in row):
            return 1.0
        history = row.get("history")
        if isinstance(history, list) and any(isinstance(item, dict) and "assistant" in item for item in history):
            return 0.9
        messages = _messages_of(row)
        if messages and any("tool_calls" in item or item.get("role") == "tool" for item in messages):
            return 0.9
        if messages:
            return 0.6
    if isinstance(sample.whole, list) and any("tool_calls" in row and "assistant" in row for row in sample.objects):
        return 0.9
    return 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of chat logs, one a conversation."""
    number = 0
    for value in json_values(path):
        if isinstance(value, ImportProblem):
            yield value
            continue
        for where, row in _rows(value):
            number += 1
            found = guarded(lambda row=row, number=number: read_row(row, number, tools))
            yield ImportProblem(str(path), where, found) if isinstance(found, str) else found


def _rows(value: JsonValue) -> Iterator[tuple[str, Any]]:
    """The conversations in one JSON value, each with its place."""
    whole = value.value
    if isinstance(whole, list) and whole and all(_is_message(item) for item in whole):
        yield value.where, {"messages": whole}
    elif isinstance(whole, list) and whole and all(_is_round(item) for item in whole):
        yield value.where, {"history": whole}
    elif isinstance(whole, list):
        for number, row in enumerate(whole, 1):
            yield value.where or f"record {number}", row
    elif isinstance(whole, dict) and whole and all(isinstance(row, dict) and "traj" in row for row in whole.values()):
        for key, row in whole.items():
            yield f"key {key}", {"id": key, **row}
    else:
        yield value.where, whole


def read_row(row: Any, number: int, tools: Tools) -> Trajectory | str:
    """The trajectory of one conversation, or the reason why there is none."""
    if not isinstance(row, dict):
        return f"found {describe(row)}; expected an object with messages"
    if "traj" in row:
        return read_fireact(row, number, tools)
    facts = row_facts(row)
    if any(key in row and row[key] is None for key in _MESSAGE_KEYS):
        if facts.question is None:
            return "its messages are null (a crashed run), and no question is given"
        return _trajectory(facts, number, Run(None, (), None, None, "error", 0))
    rounds = row.get("history")
    if isinstance(rounds, list) and rounds and all(_is_round(item) for item in rounds):
        run = read_conversation(_owl_messages(rounds), tools)
    else:
        messages = _messages_of(row)
        if not messages:
            return "found no list of messages"
        run = read_conversation([message for item in messages if (message := _message(item))], tools)
    if not run.steps:
        return "found no message of an assistant"
    if (facts.question or run.question) is None:
        return "found no question: no message of a user"
    return _trajectory(facts, number, run)


def _trajectory(facts: RowFacts, number: int, run: Run) -> Trajectory:
    question = facts.question or run.question or ""
    meta = facts.meta
    if run.confidence is not None:
        meta["confidence"] = run.confidence
    if run.unpaired:
        meta["unpaired_results"] = run.unpaired
    return Trajectory(
        id=facts.id or f"row-{number}",
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=run.steps,
        answer=run.answer,
        correct=facts.correct,
        agent=facts.agent,
        dataset=facts.dataset,
        ended_by=run.ended_by,
        meta=meta,
    )


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role", item.get("from")), str) and "assistant" not in item


def _is_round(item: Any) -> bool:
    return isinstance(item, dict) and "assistant" in item and "user" in item


def _messages_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a row: under a known key, in a response's choices added at the end."""
    for key in _MESSAGE_KEYS:
        items = row.get(key)
        if isinstance(items, list) and items and all(_is_message(item) for item in items):
            found = list(items)
            break
    else:
        found = []
    choices = row.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        last = choices[0].get("message")
        if isinstance(last, dict):
            found.append({**last, "logprobs": choices[0].get("logprobs"), "usage": row.get("usage")})
    return found


def message_text(content: Any) -> str | None:
    """The text of a message: a text, or the texts of its parts."""
    if isinstance(content, list):
        parts = [
            part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, str | dict)
        ]
        return optional_text("\n".join(part for part in parts if isinstance(part, str)))
    return optional_text(content)


def message_calls(items: Any) -> list[Call]:
    """The calls of a message's ``tool_calls``, OpenAI's nested shape or LangChain's flat one."""
    calls: list[Call] = []
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        function = item.get("function")
        function = function if isinstance(function, dict) else item
        name = optional_text(function.get("name")) or optional_text(item.get("tool_name"))
        arguments = next((function[key] for key in ("arguments", "args", "input") if key in function), None)
        if name:
            calls.append(Call(name, arguments, optional_text(item.get("id") or item.get("tool_call_id"))))
    return calls


def _message(item: dict[str, Any]) -> Message | None:
    role = item.get("role") or _SHAREGPT.get(str(item.get("from")), str(item.get("from")))
    content = item.get("content", item.get("value"))
    if role in ("tool", "function"):
        name, call_id = optional_text(item.get("name")), optional_text(item.get("tool_call_id"))
        return Message("tool", content=content, call_id=call_id, name=name)
    if role in ("user", "system", "developer"):
        return Message("user" if role == "user" else "system", text=message_text(content))
    if role != "assistant":
        return None
    calls = message_calls(item.get("tool_calls"))
    if not calls and isinstance(item.get("function_call"), dict):
        calls = message_calls([item["function_call"]])
    usage = item.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Message(
        "assistant",
        text=message_text(content),
        thought=message_text(item.get("reasoning_content") or item.get("reasoning") or item.get("thinking")),
        calls=calls,
        logprobs=parse_logprobs(item.get("logprobs")),
        tokens_in=optional_count(usage.get("prompt_tokens")),
        tokens_out=optional_count(usage.get("completion_tokens")),
    )


def _owl_messages(rounds: list[dict[str, Any]]) -> Iterator[Message]:
    for item in rounds:
        yield Message("user", text=message_text(item.get("user")))
        for call, logged in zip(message_calls(item.get("tool_calls")), _named(item.get("tool_calls")), strict=True):
            yield Message("assistant", calls=[replace(call, result=logged.get("result"), answered="result" in logged)])
        yield Message("assistant", text=message_text(item.get("assistant")))


def _named(items: Any) -> list[dict[str, Any]]:
    """The logged calls that `message_calls` takes."""
    return [item for item in items if message_calls([item])] if isinstance(items, list) else []
