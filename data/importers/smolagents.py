"""smolagents runs: ``intermediate_steps`` with roles ``assistant``, ``tool-call`` and ``tool-response``.

A call is a Python repr in the text of a ``tool-call`` turn (``Calling tools: [{..}]``); a code agent's call is Python
source, whose search calls are looked for there. A response begins with ``Observation:`` or ``Call id:``.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stopwise.data.importers.chat import message_calls, message_text
from stopwise.data.importers.conversation import Call, Message, read_conversation
from stopwise.data.importers.results import literal
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.sources import read_rows
from stopwise.data.importers.toolbox import ImportProblem, Sample, describe, optional_text, question_id
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import Trajectory

PICTURE = '{"question": .., "intermediate_steps": [{"role": "tool-call", "content": [{"type": "text", "text": ..}]}]}'

_LISTS = ("intermediate_steps", "steps", "messages", "memory")
_CALLING = re.compile(r"^\s*Calling tools?:\s*")
_RESPONSE = re.compile(r"^\s*(?:Call id:[ \t]*(?P<id>\S+)\s*)?(?:Observation:\s*)?")
_TASK = re.compile(r"(?:New task:|^Task:|here is (?:your|the) (?:task|question):)\s*", re.IGNORECASE | re.MULTILINE)
_CODE = re.compile(r"(?:```(?:py|python)?|<code>)\s*\n?(.*?)(?:```|</code>|<end_code>|$)", re.DOTALL)
_RETRY = re.compile(r"\s*Now let's retry:.*", re.DOTALL)


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    for row in sample.objects:
        if isinstance(row.get("intermediate_steps"), list):
            return 1.0
        if any(isinstance(item, dict) and item.get("role") in ("tool-call", "tool-response") for item in _items(row)):
            return 1.0
    return 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of rows with ``intermediate_steps``."""
    yield from read_rows(path, lambda row, number: _row(row, number, tools))


def _items(row: dict[str, Any]) -> list[Any]:
    return next((row[key] for key in _LISTS if isinstance(row.get(key), list)), [])


def _row(row: Any, number: int, tools: Tools) -> Trajectory | str:
    if not isinstance(row, dict):
        return f"found {describe(row)}; expected an object with intermediate_steps"
    facts = row_facts(row, ("true_answer", "reference_answer", "ground_truth", "answer"))
    run = read_conversation(_merged(_message(item) for item in _items(row) if isinstance(item, dict)), tools)
    question = optional_text(row.get("question")) or _task(run.question) or facts.question
    if not question:
        return "found no question"
    predicted = optional_text(row.get("prediction") if "prediction" in row else row.get("output"))
    failed = optional_text(row.get("agent_error"))
    if not run.steps and not failed:
        return "intermediate_steps: found no step"
    answer = run.answer or predicted
    meta = facts.meta | ({"agent_error": failed} if failed else {})
    stopped = bool(row.get("iteration_limit_exceeded"))
    return Trajectory(
        id=facts.id or f"row-{number}",
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=run.steps,
        answer=answer,
        correct=facts.correct,
        agent=facts.agent or optional_text(row.get("model_id")),
        dataset=facts.dataset,
        ended_by="budget" if stopped else "error" if failed else "answer" if answer else run.ended_by,
        meta=meta,
    )


def _task(text: str | None) -> str | None:
    return optional_text(_TASK.split(text)[-1]) if text else None


def _merged(messages: Iterable[Message]) -> Iterator[Message]:
    """Messages, an assistant's words and the calls logged after them as one turn."""
    held: Message | None = None
    for message in messages:
        follows = held is not None and held.role == message.role == "assistant"
        if held is not None and follows and message.calls and not message.text:
            held.calls.extend(message.calls)
            continue
        if held is not None:
            yield held
        held = message
    if held is not None:
        yield held


def _message(item: dict[str, Any]) -> Message:
    role = str(item.get("role")).lower().removeprefix("messagerole.").replace("_", "-")
    text = message_text(item.get("content")) or ""
    if role == "tool-call":
        return Message("assistant", calls=_calls(text, item))
    if role in ("tool-response", "tool"):
        head = _RESPONSE.match(text)
        content = text[head.end() :] if head else text
        return Message("tool", content=_RETRY.sub("", content).strip(), call_id=head["id"] if head else None)
    if role == "assistant":
        return Message("assistant", text=text, calls=message_calls(item.get("tool_calls")))
    return Message("user" if role == "user" else "system", text=optional_text(text))


def _calls(text: str, item: dict[str, Any]) -> list[Call]:
    """The calls of a ``tool-call`` turn: a Python repr, JSON, or source code."""
    body = _CALLING.sub("", text).strip()
    value = literal(body)
    calls = message_calls(value if isinstance(value, list) else [value]) or message_calls(item.get("tool_calls"))
    if calls:
        return calls
    code = _CODE.search(body)
    if code and code[1].strip():
        return [Call("python_interpreter", {"code": code[1]})]
    return [Call("python_interpreter", {"code": body})] if body else []
