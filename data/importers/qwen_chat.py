"""Qwen-style chats of web agents (WebDancer, WebSailor, Tongyi DeepResearch): calls and results between tags.

The assistant writes ``<think>``, then ``<tool_call>{"name": "search", "arguments": {..}}</tool_call>`` or
``<answer>``; the next user turn holds ``<tool_response>``. A call carries one or several queries. Tongyi's
``termination`` says how the run ended; at a limit, its last observation is overwritten by an instruction to answer.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stopwise.data.importers.chat import message_text
from stopwise.data.importers.conversation import Call, Message, parse_arguments, read_conversation
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.sources import read_rows
from stopwise.data.importers.toolbox import (
    ImportProblem,
    Sample,
    clean_text,
    describe,
    optional_text,
    question_id,
)
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import EndedBy, Trajectory

PICTURE = '{"messages": [{"role": "assistant", "content": "<think>..</think><tool_call>{..}</tool_call>"}, ..]}'

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>(.*?)(?:</tool_response>|$)", re.DOTALL)
_CODE = re.compile(r"<code>(.*?)(?:</code>|$)", re.DOTALL)
_NAME = re.compile(r"[\"']name[\"']\s*:\s*[\"']([\w.:-]+)[\"']")
_ASKED = re.compile(r"^(?:User|Question):[ \t]*", re.MULTILINE)


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    for row in sample.objects:
        messages = row.get("messages")
        for message in messages if isinstance(messages, list) else ():
            text = message_text(message.get("content")) if isinstance(message, dict) else None
            if text and message.get("role") == "assistant" and ("<tool_call>" in text or "<answer>" in text):
                return 1.0
    return 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of rows with ``messages``."""
    yield from read_rows(path, lambda row, number: _row(row, number, tools))


def _row(row: Any, number: int, tools: Tools) -> Trajectory | str:
    if not isinstance(row, dict):
        return f"found {describe(row)}; expected an object with messages"
    items = row.get("messages")
    if not isinstance(items, list):
        return f"messages: found {describe(items)}; expected a list"
    messages = [message for item in items if isinstance(item, dict) for message in _messages(item)]
    run = read_conversation(messages, tools)
    facts = row_facts(row)
    question = optional_text(row.get("question")) or (_question(run.question) if run.question else None)
    if not question:
        return "found no question: no message of a user"
    if not run.steps:
        return "found no message of an assistant"
    meta: dict[str, Any] = facts.meta
    termination = optional_text(row.get("termination"))
    if termination:
        meta["termination"] = termination
    predicted = optional_text(row.get("prediction"))
    answered = any(step.kind == "answer" for step in run.steps)
    return Trajectory(
        id=facts.id or f"row-{number}",
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=run.steps,
        answer=run.answer or (predicted if answered else None),
        correct=facts.correct,
        agent=facts.agent,
        dataset=facts.dataset,
        ended_by=_ended_by(termination, run.ended_by),
        meta=meta,
    )


def _question(text: str) -> str | None:
    """The question behind the instructions of the first user turn."""
    return optional_text(_ASKED.split(text)[-1])


def _ended_by(termination: str | None, found: EndedBy) -> EndedBy:
    """Tongyi's word for the end, where it is clearer than the messages."""
    word = (termination or "").lower()
    if word == "answer" and found != "budget":
        return "answer"
    if any(part in word for part in ("limit", "exceed", "no answer found", "time")):
        return "budget"
    return "error" if "error" in word else found


def _messages(item: dict[str, Any]) -> Iterator[Message]:
    role, text = item.get("role"), message_text(item.get("content"))
    if role == "assistant":
        yield _assistant(text or "", item)
    elif text and "<tool_response>" in text and text.lstrip().startswith("<tool_response>"):
        for response in _RESPONSE.findall(text):
            yield Message("tool", content=response.strip())
    elif role in ("tool", "function"):
        yield Message("tool", content=text)
    elif text:
        yield Message("user" if role == "user" else "system", text=text)


def _assistant(text: str, item: dict[str, Any]) -> Message:
    thinking, closing, rest = text.rpartition("</think>")  # a call that is only thought of is none
    calls = [_call(body) for body in _CALL.findall(rest)]
    said = thinking + closing + _CALL.sub("", rest)
    answer = re.search(r"<answer>(.*?)(?:</answer>|$)", rest, re.DOTALL)
    message = Message("assistant", text=said, thought=message_text(item.get("reasoning_content")), calls=calls)
    if answer and not calls:
        message = replace(message, text=thinking + closing + answer[1])
    return message


def _call(body: str) -> Call:
    body = clean_text(body).strip()
    if code := _CODE.search(body):  # a call of the Python interpreter: its source is not JSON
        return Call("python", {"code": code[1]})
    value = parse_arguments(body)
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return Call(value["name"], value.get("arguments", value.get("parameters")))
    named = _NAME.search(body)  # invalid JSON: the name may still be legible
    return Call(named[1] if named else "unknown", body)
