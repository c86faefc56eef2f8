"""OpenTelemetry traces of agents: Monocle events, OpenInference attributes, the GenAI semantic conventions.

A trace is one trajectory. Model spans open a turn; the tool and retriever spans up to the next model span are its
calls, in the order of their start. Spans come as a list, as OTLP JSON (``resourceSpans``) or one a line. The
outermost agent span tells question and answer.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from stopwise.data.importers.chat import message_text
from stopwise.data.importers.conversation import Call, Message, read_conversation
from stopwise.data.importers.results import literal
from stopwise.data.importers.sources import guarded, json_values
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

PICTURE = '[{"name": .., "context": {"trace_id": ..}, "attributes": {..}, "events": [{"name": "data.input", ..}]}, ..]'

_RETRIEVED = re.compile(r"retrieval\.documents\.(\d+)\.document\.(\w+)")
_MODEL, _TOOL, _RETRIEVER, _AGENT = "model", "tool", "retriever", "agent"
_ROLES = {
    # Monocle's span.type
    "inference.framework": _MODEL,
    "inference": _MODEL,
    "agentic.tool.invocation": _TOOL,
    "retrieval": _RETRIEVER,
    "agentic.turn": _AGENT,
    "agentic.invocation": _AGENT,
    # OpenInference's openinference.span.kind
    "LLM": _MODEL,
    "TOOL": _TOOL,
    "RETRIEVER": _RETRIEVER,
    "AGENT": _AGENT,
    "CHAIN": _AGENT,
    # GenAI's gen_ai.operation.name
    "chat": _MODEL,
    "text_completion": _MODEL,
    "generate_content": _MODEL,
    "execute_tool": _TOOL,
    "invoke_agent": _AGENT,
}


@dataclass(slots=True)
class Span:
    """One span, in whatever convention it was written."""

    id: str
    parent: str | None
    trace: str
    name: str
    start: float  # seconds since 1970
    end: float | None
    role: str | None  # of `_ROLES`
    attributes: dict[str, Any]
    input: Any = None
    output: Any = None
    error: str | None = None
    tokens: dict[str, Any] = field(default_factory=dict)


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    if isinstance(sample.whole, dict) and ("resourceSpans" in sample.whole or "resource_spans" in sample.whole):
        return 1.0
    likely = [row for row in sample.objects if "attributes" in row and ("context" in row or _first(row, _TRACE_IDS))]
    return 1.0 if likely else 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of the traces in a file. All spans are held: those of one trace may lie anywhere."""
    traces: dict[str, list[Span]] = {}
    for value in json_values(path):
        if isinstance(value, ImportProblem):
            yield value
            continue
        for number, item in enumerate(_raw_spans(value.value), 1):
            where = f"{value.where}, span {number}" if value.where else f"span {number}"
            span = guarded(lambda item=item: _span(item))
            if isinstance(span, str):
                yield ImportProblem(str(path), where, span)
            else:
                traces.setdefault(span.trace, []).append(span)
    for trace, spans in traces.items():
        found = guarded(lambda trace=trace, spans=spans: _trajectory(trace, spans, tools))
        yield ImportProblem(str(path), f"trace {trace}", found) if isinstance(found, str) else found


_TRACE_IDS = ("traceId", "trace_id")
_SPAN_IDS = ("spanId", "span_id")
_PARENTS = ("parentSpanId", "parent_span_id", "parent_id")
_STARTS = ("startTimeUnixNano", "start_time", "startTime", "start_time_unix_nano")
_ENDS = ("endTimeUnixNano", "end_time", "endTime", "end_time_unix_nano")


def _first(item: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((item[key] for key in keys if item.get(key) not in (None, "")), None)


def _raw_spans(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _raw_spans(item) if isinstance(item, list) else (item,)
        return
    if isinstance(value, dict):
        for key in ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans"):
            if isinstance(value.get(key), list):
                for item in value[key]:
                    yield from _raw_spans(item) if key != "spans" else (item,)
                return
    yield value


def _span(item: Any) -> Span | str:
    if not isinstance(item, dict):
        return f"found {describe(item)}; expected a span"
    context = item.get("context")
    ids = {**item, **context} if isinstance(context, dict) else item
    span_id = optional_text(_first(ids, _SPAN_IDS))
    if not span_id:
        return "found no span id"
    attributes = _attributes(item.get("attributes"))
    kind = _first(attributes, ("openinference.span.kind", "gen_ai.operation.name", "span.type"))
    role = _ROLES.get(str(kind)) or _ROLES.get(str(kind).upper()) or _ROLES.get(str(attributes.get("span.type")))
    span = Span(
        id=span_id,
        parent=optional_text(_first(item, _PARENTS)),
        trace=optional_text(_first(ids, _TRACE_IDS)) or "",
        name=optional_text(item.get("name")) or "",
        start=_seconds(_first(item, _STARTS)) or 0.0,
        end=_seconds(_first(item, _ENDS)),
        role=role,
        attributes=attributes,
        input=_first(attributes, ("input.value", "gen_ai.tool.call.arguments", "gen_ai.input.messages")),
        output=_first(attributes, ("output.value", "gen_ai.tool.call.result", "gen_ai.output.messages")),
        tokens={
            "in": _first(attributes, ("gen_ai.usage.input_tokens", "llm.token_count.prompt")),
            "out": _first(attributes, ("gen_ai.usage.output_tokens", "llm.token_count.completion")),
        },
    )
    if isinstance(item.get("events"), list):
        for event in item["events"]:
            if isinstance(event, dict):
                _add_event(span, str(event.get("name")), _attributes(event.get("attributes")))
    status = item.get("status")
    status = status if isinstance(status, dict) else {}
    if str(status.get("code", status.get("status_code"))) in ("2", "ERROR", "STATUS_CODE_ERROR"):
        span.error = span.error or optional_text(status.get("message") or status.get("description")) or "error"
    return span


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes as a flat object; OTLP writes them as a list of keys and typed values."""
    if isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            typed = item.get("value")
            found[item["key"]] = next(iter(typed.values()), None) if isinstance(typed, dict) else typed
    return found


def _add_event(span: Span, name: str, attributes: dict[str, Any]) -> None:
    if name == "data.input":
        span.input = _first(attributes, ("input", "question")) or span.input
    elif name == "data.output":
        span.output = _first(attributes, ("response", "output")) or span.output
    elif name == "metadata":
        span.tokens = {"in": attributes.get("prompt_tokens"), "out": attributes.get("completion_tokens")}
    elif name == "exception":
        span.error = optional_text(attributes.get("exception.message")) or "exception"
    elif name == "gen_ai.user.message":
        span.input = attributes.get("content") or span.input
    elif name in ("gen_ai.choice", "gen_ai.assistant.message"):
        span.output = attributes.get("message") or attributes.get("content") or span.output


def _seconds(value: Any) -> float | None:
    if isinstance(value, str) and not value.isdigit():
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            return None
    count = optional_count(int(value) if isinstance(value, str) and len(value) < 20 else value)
    if count is None:
        return None
    return count / 1e9 if count > 1e17 else (count / 1e6 if count > 1e14 else (count / 1e3 if count > 1e11 else count))


def _trajectory(trace: str, spans: list[Span], tools: Tools) -> Trajectory | str:
    spans = sorted(spans, key=lambda span: span.start)
    by_id = {span.id: span for span in spans}
    roots = [span for span in spans if span.role == _AGENT and not _above(span, by_id, _AGENT)]
    question = next((text for span in roots if (text := _asked(span.input))), None)
    answer = next((text for span in roots if (text := _said(span.output))), None)
    messages = list(_messages(spans, by_id))
    if question is None:
        question = next((text for span in spans if span.role == _MODEL and (text := _asked(span.input))), None)
    if question is None:
        return "found no question: no agent span or model span with an input"
    run = read_conversation(messages, tools)
    if not run.steps:
        return "found no span of a model, a tool or a retriever"
    answer = run.answer or answer
    workflow = _first(spans[0].attributes, ("gen_ai.agent.name", "workflow.name", "service.name"))
    return Trajectory(
        id=trace or spans[0].id,
        question_id=question_id(question),
        question=question,
        steps=run.steps,
        answer=answer,
        agent=optional_text(workflow),
        ended_by="answer" if answer else "unknown",
    )


def _above(span: Span, by_id: Mapping[str, Span], role: str) -> Span | None:
    """The nearest span of a role that a span lies in."""
    seen = {span.id}
    while span.parent and span.parent in by_id and span.parent not in seen:
        seen.add(span.parent)
        span = by_id[span.parent]
        if span.role == role:
            return span
    return None


def _messages(spans: list[Span], by_id: Mapping[str, Span]) -> Iterator[Message]:
    turn: Message | None = None
    retrieved = {  # documents of a retriever inside a tool are the tool's result
        outer.id: span for span in spans if span.role == _RETRIEVER and (outer := _above(span, by_id, _TOOL))
    }
    for span in spans:
        if span.role == _MODEL:
            if _above(span, by_id, _MODEL) or _above(span, by_id, _TOOL):
                continue  # the same call on a lower level, or a tool's own model
            if turn is not None:
                yield turn
            turn = Message("assistant", text=_said(span.output), **_cost(span))
        elif span.role == _TOOL or (span.role == _RETRIEVER and not _above(span, by_id, _TOOL)):
            turn = turn or Message("assistant")
            turn.calls.append(_call(span, retrieved.get(span.id)))
    if turn is not None:
        yield turn


def _cost(span: Span) -> dict[str, Any]:
    seconds = None if span.end is None or span.end < span.start else span.end - span.start
    tokens_in, tokens_out = (optional_count(_number(span.tokens.get(key))) for key in ("in", "out"))
    return {"tokens_in": tokens_in, "tokens_out": tokens_out, "seconds": seconds}


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < 20 else value


def _call(span: Span, retriever: Span | None) -> Call:
    given = span.attributes
    name = _first(given, ("gen_ai.tool.name", "tool.name", "tool_call.function.name")) or (
        _first(given, ("entity.1.name",)) or span.name if span.role == _TOOL else "retriever"
    )
    documents = _retrieved(given) or (_retrieved(retriever.attributes) if retriever else [])
    result = documents or (span.output if span.output is not None else retriever and retriever.output)
    if span.error and result is None:
        result = {"error": span.error}
    arguments = span.input if span.input is not None else given.get("tool.parameters")
    return Call(str(name), arguments, result=result, answered=result is not None)


def _retrieved(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """OpenInference's flattened documents, in their order."""
    found: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if match := _RETRIEVED.fullmatch(str(key)):
            if match[2] == "metadata" and isinstance(value, str):
                value = literal(value) or {}
            found.setdefault(int(match[1]), {})[match[2]] = value
    return [found[number] for number in sorted(found)]


def _asked(value: Any) -> str | None:
    """The user's words in an input: text, a list of texts, or messages."""
    return _words(value, ("user", "human"))


def _said(value: Any) -> str | None:
    """The model's words in an output: text, an object that holds it, or messages; None for tool calls."""
    return _words(value, ("assistant", "ai", "model"))


def _words(value: Any, roles: tuple[str, ...]) -> str | None:
    if isinstance(value, str):
        inner = literal(value)
        return optional_text(value) if inner is None else _words(inner, roles)
    if isinstance(value, list):
        spoken = [item for item in value if isinstance(item, dict) and item.get("role", item.get("type")) in roles]
        # the first thing that was asked, the last thing that was said
        ordered = (spoken or value) if "user" in roles else list(reversed(spoken or value))
        return next((text for item in ordered if (text := _words(item, roles))), None)
    if not isinstance(value, Mapping):
        return None
    for role in roles:
        if role in value:
            return _words(value[role], roles) if isinstance(value[role], str | list) else None
    for key in ("messages", "content", "parts", "text", "input", "question", "query", "output", "answer"):
        if key in value and (text := message_text(value[key]) or _words(value[key], roles)):
            return text
    return None
