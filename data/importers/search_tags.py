"""Generations with the searches inline, between tags: R1-Searcher, Search-R1, ReSearch, Search-o1, DR-Tulu.

``<think>`` prose, a query between tags, the documents that came back between tags, more prose, and ``<answer>``. JSON
rows hold the generation beside ``question``; text files hold whole chats, whose instructions quote the same tags.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stopwise.data.importers.conversation import opened_page
from stopwise.data.importers.results import split_results
from stopwise.data.importers.sources import open_text, read_rows, read_text
from stopwise.data.importers.toolbox import (
    ImportProblem,
    Sample,
    answer_texts,
    clean_text,
    describe,
    error_text,
    optional_text,
    question_id,
    verdict,
)
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import EndedBy, Step, StepKind, Trajectory

PICTURE = "<search> query </search> <information>Doc 1(Title: ..) ..</information> <answer> .. </answer>"

# opening tag: (closing tag, what it holds)
TAGS = {
    "<|begin_of_query|>": ("<|end_of_query|>", "query"),
    "<|begin_of_documents|>": ("<|end_of_documents|>", "documents"),
    "<search>": ("</search>", "query"),
    "<information>": ("</information>", "documents"),
    "<result>": ("</result>", "documents"),
    "<|begin_search_query|>": ("<|end_search_query|>", "query"),
    "<|begin_search_result|>": ("<|end_search_result|>", "documents"),
    "<tool_output>": ("</tool_output>", "documents"),
    "<answer>": ("</answer>", "answer"),
}
_CALL_TOOL = ("</call_tool>", "query")  # its opening tag names the tool: <call_tool name="google_search">
_OPENING = re.compile("|".join([*map(re.escape, TAGS), r"<call_tool\b[^>]*>"]))
_TOOL_NAME = re.compile(r"<call_tool\b[^>]*\bname=[\"']?([\w.-]+)")
_QUERY_OPENING = (*(tag for tag, (_, holds) in TAGS.items() if holds == "query"), "<call_tool ")
_THINK = re.compile(r"</?think(ing)?>")
_TURN = re.compile(r"<\|im_start\|>(system|user|assistant)[ \t]*\n?")
_QUESTION = re.compile(r"Question:[ \t]*(.+)")
_GENERATION_KEYS = ("gen_text_store", "generated_text", "generation", "response", "output", "completion", "text")
_ANSWER_KEYS = ("pred_ans", "pred", "prediction", "predicted_answer")
_REFERENCE_KEYS = ("answer", "golden_answers", "ground_truth", "gold", "reference")
_VERDICT_KEYS = ("gpt4o_output", "correct", "is_correct", "em")
_ENDED: dict[str, EndedBy] = {
    "finished": "answer",
    "many_retrieve": "budget",
    "length": "budget",
    "query_inst_error": "error",
}


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    if not sample.values:
        return 1.0 if any(tag in sample.text for tag in _QUERY_OPENING) else 0.0
    for row in sample.objects:
        if isinstance(row.get("gen_text_store"), str):
            return 1.0
        if "question" in row and any(tag in (_generation(row) or "") for tag in _QUERY_OPENING):
            return 0.9
    return 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of JSON rows with a generation, or of a text file of chats."""
    with open_text(path) as source:
        first = source.read(4096).lstrip()[:1]
    if first in ("{", "["):
        yield from read_rows(path, lambda row, number: _row(row, number, tools))
    else:
        yield from _read_text(path, tools)


def _generation(row: dict[str, Any]) -> str | None:
    """The row's generated text: a known key, else the text that holds most tags."""
    for key in _GENERATION_KEYS:
        if isinstance(row.get(key), str):
            return row[key]
    texts = [value for value in row.values() if isinstance(value, str) and _OPENING.search(value)]
    return max(texts, key=lambda text: len(_OPENING.findall(text)), default=None)


def _row(row: Any, number: int, tools: Tools) -> Trajectory | str:
    if not isinstance(row, dict):
        return f"found {describe(row)}; expected an object"
    text = _generation(row)
    if text is None:
        return "found no generated text (gen_text_store, generated_text, response, ..)"
    question = optional_text(row.get("question"))
    steps = tuple(tagged_steps(text, tools))
    written = next((step.queries[0] for step in reversed(steps) if step.kind == "answer" and step.queries), None)
    if question is None:
        return f"question: found {describe(row.get('question'))}; expected text"
    answer = next((found for key in _ANSWER_KEYS if (found := optional_text(row.get(key)))), None) or written
    references = next((found for key in _REFERENCE_KEYS if (found := answer_texts(row.get(key)))), [])
    correct = next((verdict(row[key]) for key in _VERDICT_KEYS if row.get(key) is not None), None)
    reason = optional_text(row.get("stop_reason_final"))
    ended_by: EndedBy = "answer" if written else "unknown"
    if reason and (written is None or reason != "finished"):
        ended_by = _ENDED.get(reason, ended_by)
    if ended_by == "answer" and answer is None:
        ended_by = "unknown"
    meta: dict[str, Any] = {"stop_reason": reason} if reason else {}
    if references:
        meta["reference_answer"] = references[0]
    if len(references) > 1:
        meta["reference_answers"] = references
    return Trajectory(
        id=optional_text(row.get("id")) or f"row-{number}",
        question_id=question_id(question),
        question=question,
        steps=steps,
        answer=answer,
        correct=correct,
        ended_by=ended_by,
        meta=meta,
    )


def _read_text(path: Path, tools: Tools) -> Iterator[Trajectory | ImportProblem]:
    text = read_text(path)
    turns = list(_TURN.finditer(text))
    generations: list[tuple[int, str, str]] = []  # where it begins, the asking turn, the generation
    asked = ""
    ends = [turn.start() for turn in turns[1:]] + [len(text)]
    for turn, end in zip(turns, ends, strict=False):  # no turn, one end
        body = text[turn.end() : end].replace("<|im_end|>", "").strip()
        if turn[1] == "user":
            asked = body
        elif turn[1] == "assistant":
            generations.append((turn.start(), asked, body))
    if not turns:  # a bare generation, perhaps under its question
        start = _OPENING.search(text)
        generations.append((0, text[: start.start() if start else len(text)], text))
    counted, lines = 0, 1
    for number, (start, asked, body) in enumerate(generations, 1):
        lines += text.count("\n", counted, start)
        counted = start
        where = f"line {lines}"
        named = _QUESTION.findall(asked)
        question = optional_text(named[-1] if named else (asked if turns else None))
        steps = tuple(tagged_steps(body, tools)) if _OPENING.search(body) else ()
        if question is None or not steps:
            missing = "search or answer between tags" if question else "line that begins with Question:"
            yield ImportProblem(str(path), where, f"found no {missing}")
            continue
        written = next((step.queries[0] for step in reversed(steps) if step.kind == "answer" and step.queries), None)
        yield Trajectory(
            id=f"case-{number}",
            question_id=question_id(question),
            question=question,
            steps=steps,
            answer=written,
            ended_by="answer" if written else "unknown",
        )


def tagged_steps(text: str, tools: Tools = TOOLS) -> Iterator[Step]:
    """The steps of one generation; a tag that is never closed holds the text up to the next tag."""
    text = clean_text(text)
    position = 0
    prose: list[str] = []  # written since the last query; belongs to the next one
    asked: Step | None = None  # a query that waits for its documents
    answered = False
    while opening := _OPENING.search(text, position):
        prose.append(text[position : opening.start()])
        closing, holds = TAGS.get(opening[0], _CALL_TOOL)
        end = text.find(closing, opening.end())
        following = _OPENING.search(text, opening.end())
        if end < 0 or (holds != "documents" and following and following.start() < end):
            position = end = following.start() if following else len(text)
        else:
            position = end + len(closing)
        body = text[opening.end() : end].strip()
        if holds == "documents":
            yield _brought(asked or Step("other"), body)  # documents that nobody asked for are no decision point
            asked = None
            continue
        if asked is not None:
            yield replace(asked, error="no documents in the log")
        queries = (body,) if body else ()
        asked = Step(_kind(opening[0], holds, tools), thought=_prose(prose), queries=queries)
        if holds == "answer":
            yield asked
            asked, answered = None, True
    if asked is not None:
        yield replace(asked, error="no documents in the log")
    prose.append(text[position:])
    if not answered and (rest := _prose(prose)):
        yield Step("other", thought=rest)


def _kind(tag: str, holds: str, tools: Tools) -> StepKind:
    if holds == "answer":
        return "answer"
    name = _TOOL_NAME.search(tag)
    return tools.kind(name[1]) if name else "search"


def _brought(asked: Step, body: str) -> Step:
    """A step with the documents that came back."""
    if asked.kind == "open":
        documents, error = opened_page(body, asked.queries)
    else:
        error = error_text(body) if body else "no documents came back"
        documents = () if error else split_results(body)
    return replace(asked, documents=documents, error=error)


def _prose(parts: list[str]) -> str | None:
    """The collected prose without thinking tags; empties `parts`."""
    text = _THINK.sub("", "".join(parts)).strip()
    parts.clear()
    return text or None
