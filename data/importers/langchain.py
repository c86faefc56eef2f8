"""LangChain and LangGraph: messages of a thread's state, and replays of a streamed run.

- Thread state: ``values.messages`` (or ``messages``) with ``type`` human, ai, tool, system; also LangChain's own
  serialisation, where the fields lie in ``data`` or ``kwargs``.
- Replay (server-sent events, as DeerFlow records them): text arrives in ``message_chunk`` events, a call's name in
  ``tool_calls`` and its arguments piece by piece in ``tool_call_chunks``, results in ``tool_call_result``.

A thread is one trajectory: its question is the first human message, its answer the agent's last words. A replay that
ends in an ``interrupt`` waits for its user and has no answer.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stopwise.data.importers.chat import message_calls, message_text
from stopwise.data.importers.conversation import Call, Message, parse_arguments, read_conversation
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.sources import load_json, open_text, read_rows
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
    '{"values": {"messages": [{"type": "human", ..}, {"type": "ai", ..}, {"type": "tool", ..}]}}, or event: data: lines'
)

_TYPES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system", "AIMessageChunk": "assistant"}
_TASK_KEYS = ("research_topic", "task_title", "question", "query", "topic", "task")


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    if not sample.values:
        lines = sample.text.lstrip().split("\n", 2)
        return 1.0 if len(lines) > 1 and lines[0].startswith("event:") and lines[1].startswith("data:") else 0.0
    if isinstance(sample.whole, list) and _typed(sample.whole):
        return 1.0
    return 1.0 if any(_typed(_items(row)) for row in sample.objects) else 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of thread states (one object, a list, or one a line) or of a replay."""
    with open_text(path) as source:
        first = source.read(4096).lstrip()[:1]
    if first not in ("{", "["):
        yield from _read_replay(path, tools)
        return
    yield from read_rows(path, lambda row, number: _thread(row, path, number, tools), is_one=_typed)


def _typed(items: Any) -> bool:
    fields = [_fields(item) for item in items[:5] if isinstance(item, dict)] if isinstance(items, list) else []
    return bool(fields) and all(str(item.get("type")) in _TYPES for item in fields)


def _items(row: Any) -> Any:
    values = row.get("values") if isinstance(row, dict) else None
    return (values if isinstance(values, dict) else row).get("messages") if isinstance(row, dict) else row


def _fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """A message's fields, wherever LangChain's serialisation put them."""
    if isinstance(item.get("data"), dict):
        return {**item["data"], "type": item.get("type")}
    if isinstance(item.get("kwargs"), dict) and isinstance(item.get("id"), list) and item["id"]:
        name = str(item["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower()
        return {**item["kwargs"], "type": name}
    return dict(item)


def _thread(row: Any, path: Path, number: int, tools: Tools) -> Trajectory | str:
    items = _items(row)
    if not isinstance(items, list):
        return f"messages: found {describe(items)}; expected a list"
    run = read_conversation([m for item in items if isinstance(item, dict) and (m := _message(_fields(item)))], tools)
    facts = row_facts(row if isinstance(row, dict) else {})
    question = run.question or facts.question
    if not question:
        return "found no human message"
    if not run.steps:
        return "found no message of the model"
    checkpoint = row.get("checkpoint") if isinstance(row, dict) else None
    thread = checkpoint.get("thread_id") if isinstance(checkpoint, dict) else None
    return Trajectory(
        id=facts.id or optional_text(thread) or (path.stem if number == 1 else f"row-{number}"),
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=run.steps,
        answer=run.answer,
        correct=facts.correct,
        agent=facts.agent,
        dataset=facts.dataset,
        ended_by=run.ended_by,
        meta=facts.meta | ({"unpaired_results": run.unpaired} if run.unpaired else {}),
    )


def _message(item: dict[str, Any]) -> Message | None:
    role = _TYPES.get(str(item.get("type")))
    extra = item.get("additional_kwargs")
    extra = extra if isinstance(extra, dict) else {}
    if role == "tool":
        content = item.get("content")
        if item.get("status") == "error":
            content = {"error": message_text(content) or "tool error"}
        return Message(
            "tool",
            content=content,
            call_id=optional_text(item.get("tool_call_id")),
            name=optional_text(item.get("name")),
        )
    if role != "assistant":
        return Message(role, text=message_text(item.get("content"))) if role else None
    usage, response = item.get("usage_metadata"), item.get("response_metadata")
    usage = usage if isinstance(usage, dict) else {}
    return Message(
        "assistant",
        text=message_text(item.get("content")),
        thought=message_text(extra.get("reasoning_content")),
        calls=message_calls(item.get("tool_calls") or extra.get("tool_calls")),
        logprobs=parse_logprobs(response.get("logprobs")) if isinstance(response, dict) else None,
        tokens_in=optional_count(usage.get("input_tokens")),
        tokens_out=optional_count(usage.get("output_tokens")),
    )


def _read_replay(path: Path, tools: Tools) -> Iterator[Trajectory | ImportProblem]:
    messages: dict[str, Message] = {}  # by the message's id, in order of arrival
    waiting = False  # the last event asked the user something
    agents: list[str] = []
    for number, name, data in _events(path):
        if isinstance(data, str):
            yield ImportProblem(str(path), f"line {number}", data)
            continue
        waiting = name == "interrupt"
        if waiting:
            continue
        agent = optional_text(data.get("agent"))
        if agent and agent not in agents:
            agents.append(agent)
        _collect(messages, name, data)
    run = read_conversation(messages.values(), tools, finished=not waiting)
    question = run.question or _task(messages.values())
    if not question or not run.steps:
        missing = "message of a model" if question else "question: no message of a user, no task handed on"
        yield ImportProblem(str(path), "", f"found no {missing}")
        return
    yield Trajectory(
        id=path.name.split(".")[0],
        question_id=question_id(question),
        question=question,
        steps=run.steps,
        answer=run.answer,
        ended_by=run.ended_by,
        meta={"agents": agents} if agents else {},
    )


def _events(path: Path) -> Iterator[tuple[int, str, dict[str, Any] | str]]:
    """Line, name and data of each server-sent event; a reason as text where the data is no JSON object."""
    with open_text(path) as source:
        name, data, start = "", [], 1
        for number, line in enumerate(source, 1):
            if line.startswith("event:"):
                name, start = line[6:].strip(), number
            elif line.startswith("data:"):
                data.append(line[5:].strip())
            elif not line.strip() and data:
                yield start, name, _event_data("\n".join(data))
                name, data = "", []
        if data:
            yield start, name, _event_data("\n".join(data))


def _event_data(text: str) -> dict[str, Any] | str:
    try:
        value = load_json(text)
    except (ValueError, RecursionError) as error:
        return f"data: not JSON ({error})"
    return value if isinstance(value, dict) else f"data: found {describe(value)}; expected an object"


def _collect(messages: dict[str, Message], name: str, data: dict[str, Any]) -> None:
    """Add one event to the message that it is a piece of."""
    key = optional_text(data.get("id")) or f"#{len(messages)}"
    content = data.get("content")
    text = content if isinstance(content, str) else ""
    if name == "tool_call_result":
        call_id = optional_text(data.get("tool_call_id"))
        messages[f"{key}/{len(messages)}"] = Message("tool", content=text, call_id=call_id)
        return
    role = data.get("role")
    message = messages.setdefault(key, Message("user" if role == "user" else "assistant"))
    message.text = (message.text or "") + text
    reasoning = data.get("reasoning_content")
    if isinstance(reasoning, str):
        message.thought = (message.thought or "") + reasoning
    chunks = data.get("tool_call_chunks")
    if isinstance(chunks, list) and chunks:
        for chunk in chunks:
            _add_chunk(message, chunk)
    elif name == "tool_calls":
        message.calls.extend(message_calls(data.get("tool_calls")))


def _add_chunk(message: Message, chunk: Any) -> None:
    if not isinstance(chunk, dict):
        return
    name, arguments = optional_text(chunk.get("name")), chunk.get("args")
    arguments = arguments if isinstance(arguments, str) else ""
    if name:
        message.calls.append(Call(name, arguments, optional_text(chunk.get("id"))))
    elif message.calls:
        index = optional_count(chunk.get("index"))
        call = message.calls[index if index is not None and index < len(message.calls) else -1]
        call.arguments = (call.arguments or "") + arguments


def _task(messages: Any) -> str | None:
    """The task that a coordinator handed on, where a replay lacks its user's message."""
    for message in messages:
        for call in message.calls:
            arguments = parse_arguments(call.arguments)
            if isinstance(arguments, dict):
                for key in _TASK_KEYS:
                    if task := optional_text(arguments.get(key)):
                        return task
    return None
