"""DR-Tulu: ``full_traces.tool_calls`` with one record a call, its documents, its error and its time.

``generated_text`` holds the same run as text; the prose before the n-th ``<call_tool>`` is the thought of the n-th
call, and its body is the query where the record has none. The documents' ids are made anew for each call, so a
document's id is made from its url, else its title, else its text.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stopwise.data.importers.conversation import final_answer, opened_page
from stopwise.data.importers.results import parse_results
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.sources import read_rows
from stopwise.data.importers.toolbox import (
    ImportProblem,
    Sample,
    describe,
    make_document,
    optional_finite,
    optional_text,
    question_id,
)
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import Document, EndedBy, Step, Trajectory

PICTURE = (
    '{"problem": .., "final_response": .., "full_traces": {"generated_text": .., "tool_calls": [{"documents": [..]}]}}'
)

_CALL = re.compile(r"<call_tool(?P<head>[^>]*)>(?P<body>.*?)(?:</call_tool>|$)", re.DOTALL)
_OUTPUT = re.compile(r"<tool_output>.*?(?:</tool_output>|$)", re.DOTALL)
_TAGS = re.compile(r"</?(?:think|answer)>")


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    return 1.0 if any(isinstance(row.get("full_traces"), dict) for row in sample.objects) else 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of DR-Tulu result files: one object, a list, or one a line."""
    yield from read_rows(path, lambda row, number: _row(row, number, tools))


def _row(row: Any, number: int, tools: Tools) -> Trajectory | str:
    traces = row.get("full_traces") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(traces, dict):
        return f"found {describe(traces if isinstance(row, dict) else row)}; expected an object with full_traces"
    facts = row_facts(row)
    question = optional_text(row.get("problem")) or facts.question
    if not question:
        return "problem: found no question"
    calls = traces.get("tool_calls")
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    text = optional_text(traces.get("generated_text")) or ""
    written = list(_written_calls(text))
    steps: list[Step] = []
    for i, call in enumerate(calls):
        thought, body = written[i] if i < len(written) else (None, None)
        steps.append(_step(call, thought, body, tools))
    response = optional_text(row.get("final_response"))
    answer, confidence = final_answer(response) if response else (None, None)
    if response:
        steps.append(Step("answer", thought=_last_thought(text), queries=(response,)))
    if not steps:
        return "full_traces: found neither a tool call nor a final response"
    meta: dict[str, Any] = facts.meta
    reason = optional_text(traces.get("stopped_reason"))
    if reason:
        meta["stop_reason"] = reason
    if confidence is not None:
        meta["confidence"] = confidence
    ended_by: EndedBy = "answer" if answer else "unknown"
    if reason and reason != "natural":
        ended_by = "error" if "error" in reason else "budget"
    return Trajectory(
        id=facts.id or facts.question_id or f"row-{number}",
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=tuple(steps),
        answer=answer,
        correct=facts.correct,
        agent=facts.agent,
        dataset=facts.dataset,
        ended_by=ended_by,
        meta=meta,
    )


def _written_calls(text: str) -> Iterator[tuple[str | None, str | None]]:
    """The thought before each call of the text, and the call's body."""
    position = 0
    for call in _CALL.finditer(text):
        yield _prose(text[position : call.start()]), optional_text(call["body"])
        position = call.end()


def _last_thought(text: str) -> str | None:
    calls = list(_CALL.finditer(text))
    rest = text[calls[-1].end() :] if calls else text
    thought, closing, _ = rest.partition("</think>")
    return _prose(thought) if closing else None


def _prose(text: str) -> str | None:
    return optional_text(_TAGS.sub("", _OUTPUT.sub("", text)))


def _step(call: Mapping[str, Any], thought: str | None, body: str | None, tools: Tools) -> Step:
    kind = tools.kind(optional_text(call.get("tool_name")) or "")
    query = optional_text(call.get("query")) or body
    queries = (query,) if query else ()
    seconds = optional_finite(call.get("runtime"), low=0)
    error = optional_text(call.get("error"))
    if call.get("called") is False:
        error = error or "was not executed"
    if call.get("timeout"):
        error = error or "timed out"
    if error:
        return Step(kind, thought=thought, queries=queries, error=error, seconds=seconds)
    documents = _documents(call.get("documents"))
    if not documents:
        output = optional_text(call.get("output")) or ""
        documents, error = opened_page(output, queries) if kind == "open" else parse_results(output)
    if kind == "other":
        documents = ()
    return Step(kind, thought=thought, queries=queries, documents=documents, error=error, seconds=seconds)


def _documents(items: Any) -> tuple[Document, ...]:
    found: list[Document] = []
    for rank, item in enumerate(items if isinstance(items, list) else (), 1):
        if not isinstance(item, dict) or item.get("error"):
            continue
        text = next((text for key in ("text", "snippet", "summary") if (text := optional_text(item.get(key)))), None)
        document = make_document(
            text=text, title=item.get("title"), url=item.get("url"), score=item.get("score"), rank=rank
        )
        if document:
            found.append(document)
    return tuple(found)
