"""BrowseComp-Plus runs: one JSON object a question, its trace in ``result``.

``search`` returned ``[{docid, score?, snippet}]``, ``get_document`` ``{docid, text}``. ``retrieved_docids`` is a set
over the whole run, so it is used for nothing but a check. A run that holds only its last ``output_text`` although it
searched has no step that could be rebuilt: that is a problem, not a trajectory. Questions are not in the run; they
come from a ``queries.tsv`` or ``queries.jsonl`` beside it or above it, else the query's id stands for the text.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from stopwise.data.importers.conversation import Call, Message, read_conversation
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.sources import json_values, open_text, read_rows
from stopwise.data.importers.toolbox import (
    ImportProblem,
    Sample,
    clean_text,
    describe,
    optional_count,
    optional_text,
    question_id,
)
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import EndedBy, Trajectory

PICTURE = '{"query_id": .., "tool_call_counts": {..}, "retrieved_docids": [..], "status": .., "result": [{"type": ..}]}'

_QUERY_FILES = ("queries.tsv", "queries.jsonl", "topics.tsv")
_FORCED = ("incomplete", "length", "max", "limit", "budget", "exceed", "timeout", "time out")


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    for row in sample.objects:
        if isinstance(row.get("result"), list) and ("retrieved_docids" in row or "tool_call_counts" in row):
            return 1.0
    return 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of run files: one object, a list, or one a line."""
    yield from read_rows(path, lambda row, number: _run(row, path, number, tools))


def _run(row: Any, path: Path, number: int, tools: Tools) -> Trajectory | str:
    if not isinstance(row, dict):
        return f"found {describe(row)}; expected a run object"
    items = row.get("result")
    if not isinstance(items, list):
        return f"result: found {describe(items)}; expected a list"
    facts = row_facts(row)
    query = facts.question_id
    question = optional_text(row.get("query")) or optional_text(row.get("question"))
    if question is None and query is not None:
        question = _questions(path.parent).get(query, f"query {query}")
    if question is None:
        return "query_id: found null, and no query text"
    counts = row.get("tool_call_counts")
    called = sum(optional_count(count) or 0 for count in counts.values()) if isinstance(counts, dict) else 0
    traced = [item for item in items if isinstance(item, dict)]
    if called and not any(item.get("type") == "tool_call" for item in traced):
        return f"its trace is missing: {called} tool calls were made, result holds none of them"
    run = read_conversation(_messages(traced), tools)
    meta = facts.meta
    status = optional_text(row.get("status"))
    if status:
        meta["status"] = status
    if run.confidence is not None:
        meta["confidence"] = run.confidence
    return Trajectory(
        id=facts.id or (path.stem if number == 1 else f"row-{number}"),
        question_id=question_id(question, query),
        question=question,
        steps=run.steps,
        answer=run.answer,
        correct=facts.correct,
        agent=facts.agent,
        dataset=facts.dataset or "browsecomp_plus",
        ended_by=_ended_by(status, run.ended_by),
        meta=meta,
    )


def _ended_by(status: str | None, found: EndedBy) -> EndedBy:
    word = (status or "").lower()
    if any(part in word for part in _FORCED):
        return "budget"
    if "error" in word or "fail" in word:
        return "error"
    return found  # "completed" with an empty answer has not answered


def _messages(items: list[dict[str, Any]]) -> Iterator[Message]:
    thought: list[str] = []
    for item in items:
        kind, output = item.get("type"), item.get("output")
        if kind == "reasoning":
            thought.extend(_texts(output))
        elif kind == "tool_call":
            name = optional_text(item.get("tool_name")) or "unknown"
            result = json.dumps(output, ensure_ascii=False) if isinstance(output, list | dict) else output
            call = Call(name, item.get("arguments"), result=result, answered=output is not None)
            yield Message("assistant", thought="\n".join(thought) or None, calls=[call])
            thought = []
        elif kind == "output_text":
            text = "\n".join(_texts(output)) or None
            yield Message("assistant", text=text, thought="\n".join(thought) or None)
            thought = []
    if thought:
        yield Message("assistant", thought="\n".join(thought))


def _texts(value: Any) -> list[str]:
    """The texts of an output: a text, a list of texts, or a list of typed parts."""
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    text = optional_text(value.get("text") if isinstance(value, Mapping) else value)
    return [text] if text else []


@lru_cache(maxsize=8)
def _questions(folder: Path) -> dict[str, str]:
    """Question texts by query id, from the first query file in a folder or above it."""
    for place in (folder, folder.parent, folder.parent.parent):
        for name in _QUERY_FILES:
            file = place / name
            if file.is_file():
                return dict(_read_queries(file))
    return {}


def _read_queries(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix == ".tsv":
        with open_text(path) as source:
            for line in source:
                query, tab, text = line.rstrip("\r\n").partition("\t")
                if tab and text.strip():
                    yield query.strip(), clean_text(text).strip()
        return
    for value in json_values(path):
        row = value.value if not isinstance(value, ImportProblem) else None
        if isinstance(row, dict):
            query = optional_text(next((row[key] for key in ("_id", "query_id", "id") if key in row), None))
            text = optional_text(row.get("text") or row.get("query"))
            if query and text:
                yield query, text
