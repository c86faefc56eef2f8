"""Who&When failure logs: conversations of several agents, with the step and the agent that made the mistake.

Each entry of ``history`` is one step, so that ``meta["mistake_step"]`` (from 0, a text in the files) is an index into
the steps. Calls are not logged as such; an entry is

- a search, where a web surfer typed words into a search page (Magentic-One), or where an agent wrote Python that calls
  a search function; the page, or what the code printed in the next entry, are its documents;
- ``open``, where the surfer clicked, scrolled or typed an address: the page it then saw;
- ``other`` in every other case, planning and instructions included. The entry's words are the step's thought.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stopwise.data.importers.chat import message_text
from stopwise.data.importers.code_searches import searches_in_code
from stopwise.data.importers.results import parse_results
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.sources import read_rows
from stopwise.data.importers.toolbox import (
    ImportProblem,
    Sample,
    clean_text,
    describe,
    make_document,
    optional_text,
    question_id,
)
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import Document, Step, Trajectory

PICTURE = '{"question": .., "history": [{"role": .., "content": ..}], "mistake_agent": .., "mistake_step": "8"}'

_TYPED = re.compile(r"I (?:typed|input) '(?P<words>.*?)' into (?P<where>[^\n]*?)\.\s*(?:\n|$)", re.DOTALL)
_ACTED = re.compile(r"I (?:typed|input|clicked|scrolled|visited|hovered|pressed)\b")
_SCREEN = re.compile(r"\[(?P<title>[^\n]*?)\]\((?P<url>https?://[^\s]+)\)")
_SEARCH_PAGE = re.compile(r"https?://(?:www\.)?(?:bing|google|duckduckgo)\.\w+/(?:search|\?q=)|[?&](?:q|query|search)=")
_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|$)", re.DOTALL)
_PRINTED = re.compile(r"\s*exitcode: (\d+)[^\n]*\n(?:Code output:)?", re.IGNORECASE)
_FINAL = re.compile(r"FINAL ANSWER:[ \t]*([^\n]+)")


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    return 1.0 if any("mistake_step" in row and "history" in row for row in sample.objects) else 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of Who&When files: one object, a list, or one a line."""
    yield from read_rows(path, lambda row, number: _row(row, path.stem if number == 1 else f"row-{number}", tools))


def _row(row: Any, name: str, tools: Tools) -> Trajectory | str:
    if not isinstance(row, dict):
        return f"found {describe(row)}; expected an object with history"
    facts = row_facts(row)
    history, question = row.get("history"), optional_text(row.get("question"))
    if not question:
        return "question: found none"
    if history is not None and not isinstance(history, list):
        return f"history: found {describe(history)}; expected a list"
    entries = [entry if isinstance(entry, dict) else {} for entry in history or ()]
    steps = tuple(_step(entries, i, tools) for i in range(len(entries)))
    texts = [_text(entry) for entry in entries]
    answer = next((found[-1].strip() for text in reversed(texts) if (found := _FINAL.findall(text))), None)
    meta = facts.meta
    mistake = optional_text(row.get("mistake_step"))
    if mistake and mistake.isascii() and mistake.isdigit():
        meta["mistake_step"] = int(mistake)
    for key in ("mistake_agent", "mistake_reason", "level"):
        if text := optional_text(row.get(key)):
            meta[key] = text
    return Trajectory(
        id=facts.id or name,
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=steps,
        answer=answer,
        correct=facts.correct,
        agent=facts.agent,
        dataset=facts.dataset,
        ended_by="error" if history is None else ("answer" if answer else "unknown"),
        meta=meta,
    )


def _text(entry: Mapping[str, Any]) -> str:
    return clean_text(message_text(entry.get("content")) or "")


def _speaker(entry: Mapping[str, Any]) -> str:
    return optional_text(entry.get("name")) or optional_text(entry.get("role")) or ""


def _step(entries: Sequence[Mapping[str, Any]], i: int, tools: Tools) -> Step:
    text = _text(entries[i])
    if "surfer" in _speaker(entries[i]).lower() and _ACTED.match(text):
        return _surfed(text)
    queries = tuple(query for code in _CODE.findall(text) for query in searches_in_code(code, tools))
    if queries:
        documents, error = _printed(_text(entries[i + 1]) if i + 1 < len(entries) else "")
        return Step("search", thought=text, queries=queries, documents=documents, error=error)
    return Step("other", thought=text or None)


def _surfed(text: str) -> Step:
    """A web surfer's action, and the page that it led to."""
    screen = _SCREEN.search(text)
    url = screen["url"] if screen else None
    document = make_document(title=screen["title"], url=url, text=text[screen.end() :], rank=1) if screen else None
    documents = (document,) if document else ()
    error = None if documents else "no page in the log"
    typed = _TYPED.match(text)
    words = clean_text(typed["words"]).strip() if typed else ""
    if typed and words and not re.match(r"https?://|www\.", words) and _SEARCH_PAGE.search(url or ""):
        return Step("search", queries=(words,), documents=documents, error=error)
    opened = words or url
    return Step("open", queries=(opened,) if opened else (), documents=documents, error=error)


def _printed(text: str) -> tuple[tuple[Document, ...], str | None]:
    """What code printed, as documents, or the error it ended with."""
    status = _PRINTED.match(text)
    if status is None:
        return (), "not executed"
    if status[1] != "0":
        return (), text[:500]
    return parse_results(text[status.end() :])
