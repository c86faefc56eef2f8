"""ReAct transcripts: ``Thought i:``, ``Action i: Search[entity]``, ``Observation i:``, as text or in JSON rows.

Text files hold ``Question:`` blocks; Reflexion puts headings over them (``BEGIN TRIAL n`` and ``BEGIN CORRECT AGENTS``,
``INCORRECT`` or ``HALTED``). JSON rows (KnowAgent) hold the transcript at the end of ``prompt``, after few-shot ones.

What an action is:

- ``Search`` and ``Retrieve`` are searches: both ask for an entity or topic and get a page that was not at hand. The
  page has no id in the log; it is the document titled as the searched entity.
- ``Lookup`` is no decision point but an ``open`` step: it reads on in the page found last, under that page's title.
- ``Finish`` is the answer. Everything else (``Calculate``, no action at all) is ``other``.
- "Could not find", "No results", "Invalid Action" and the like are errors, without documents.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stopwise.data.importers.sources import open_text, read_rows
from stopwise.data.importers.toolbox import (
    ImportProblem,
    Sample,
    clean_text,
    describe,
    is_finite,
    make_document,
    optional_text,
    question_id,
    verdict,
)
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import EndedBy, Step, StepKind, Trajectory

PICTURE = "Question: .. / Thought 1: .. / Action 1: Search[..] / Observation 1: ..   (text, or JSON rows with `prompt`)"

KINDS: Mapping[str, StepKind] = {"search": "search", "retrieve": "search", "lookup": "open", "finish": "answer"}

_MARK = re.compile(
    r"(Question|Thought|Action|Observation|ActionPath|Correct answer)(?:[ \t]*(\d+))?[ \t]*:(.*)", re.DOTALL
)
_TRIAL = re.compile(r"BEGIN TRIAL (\d+)")
_SECTION = re.compile(r"-{3,} BEGIN (CORRECT|INCORRECT|HALTED) AGENTS -{3,}")
_ORNAMENT = re.compile(r"#{5,}\s*$|Trial summary:")
_ACTION = re.compile(r"(\w+)\s*\[(.*)\]\s*$|(\w+)\s*\[(.*)$", re.DOTALL)
_ERROR = re.compile(
    r"could not find\b|no (more )?results?( were)?( found)?\.?\s*$|invalid action|ill[- ]?formed|error:"
    r"|the last page \w+ was not found|there is no (such )?page",
    re.IGNORECASE,
)
_RESULT_COUNT = re.compile(r"\(Result \d+ ?/ ?\d+\)\s*")
_JUDGED = re.compile(r"Answer is (CORRECT|INCORRECT)\b")


@dataclass(slots=True)
class Turn:
    """One thought, action and observation, as logged; None where the log has none."""

    thought: str | None = None
    action: str | None = None
    observation: str | None = None


@dataclass(slots=True)
class Episode:
    """One ``Question:`` block."""

    question: str
    line: int  # where it begins, 1 is the first line
    turns: list[Turn] = field(default_factory=list)
    reference: str | None = None
    trial: int | None = None
    labels: tuple[str, ...] = ()  # "correct", "incorrect", "halted": headings that it stands under


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    texts = [value["prompt"] for value in sample.objects if isinstance(value.get("prompt"), str)]
    texts = texts if sample.objects else [sample.text]
    for text in texts:
        marks = {match[1] for line in text.splitlines() if (match := _MARK.match(line))}
        if marks >= {"Question", "Thought", "Action"}:
            return 1.0
    return 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of a ReAct text file or of JSON rows with a ``prompt``."""
    with open_text(path) as source:
        first = source.read(4096).lstrip()[:1]
    if first in ("{", "["):
        yield from read_rows(path, lambda row, number: _row(row, number, tools))
    else:
        yield from _read_text(path, tools)


def _read_text(path: Path, tools: Tools) -> Iterator[Trajectory | ImportProblem]:
    with open_text(path) as source:
        number = 0
        for episode in _without_doubles(episodes(source)):
            number += 1
            name = f"episode-{number}" if episode.trial is None else f"trial-{episode.trial}-{number}"
            if not episode.question or not episode.turns:
                missing = "steps after the question" if episode.question else "a text after Question:"
                yield ImportProblem(str(path), f"line {episode.line}", f"found no {missing}")
                continue
            yield _trajectory(episode, name, tools)


def _row(row: Any, number: int, tools: Tools) -> Trajectory | str:
    if not isinstance(row, dict):
        return f"found {describe(row)}; expected an object with a prompt"
    prompt, question = row.get("prompt"), optional_text(row.get("question"))
    if not isinstance(prompt, str):
        return f"prompt: found {describe(prompt)}; expected the transcript as text"
    starts = [match.start() for match in re.finditer(r"^Question:", prompt, re.MULTILINE)]
    if not starts:
        return "prompt: found no line that begins with Question:"
    start = starts[-1]  # earlier ones are few-shot examples, unless a text that was read holds the word
    if question:
        named = [at for at in starts if prompt.startswith(question, at + len("Question:") + 1)]
        start = named[-1] if named else start
    episode = next(episodes(prompt[start:].splitlines(keepends=True)))
    if question:
        episode.question = question
    if not episode.question or not episode.turns:
        return "prompt: found no Thought or Action after the last Question:"
    # KnowAgent's `answer` is the reference; what the agent answered stands in its Finish[..] action
    episode.reference = optional_text(row.get("answer"))
    halted, failed = verdict(row.get("halted")), verdict(row.get("error"))
    episode.labels = ("halted",) if halted else ()
    reward = row.get("reward")
    meta = {"reward": reward} if is_finite(reward) else {}
    return _trajectory(
        episode, f"row-{number}", tools, correct=verdict(row.get("correct")), failed=failed or False, meta=meta
    )


def episodes(lines: Iterable[str]) -> Iterator[Episode]:
    """The ``Question:`` blocks of a transcript, one at a time; other lines continue the entry before them."""
    episode: Episode | None = None
    parts: list[str] = []
    entry = ""
    numbered = False
    trial: int | None = None
    label: tuple[str, ...] = ()

    def close() -> None:
        text = clean_text("".join(parts)).strip()
        parts.clear()
        if episode is None or not entry:
            return
        if entry == "Question":
            episode.question = text
        elif entry == "Correct answer":
            episode.reference = text or None
        elif entry != "ActionPath":  # repeats the actions so far
            attribute = entry.lower()
            turn = episode.turns[-1] if episode.turns else None
            # a thought opens a turn; so does any entry that the turn already has
            if turn is None or getattr(turn, attribute) is not None or (entry != "Observation" and turn.observation):
                episode.turns.append(turn := Turn())
            setattr(turn, attribute, text)

    for number, line in enumerate(lines, 1):
        if heading := _TRIAL.match(line) or _SECTION.match(line):
            close()
            if episode is not None:
                yield episode
            episode, entry = None, ""
            if heading.re is _TRIAL:
                trial, label = int(heading[1]), ()
            else:
                label = (heading[1].lower(),)
            continue
        mark = _MARK.match(line)
        if mark and mark[1] == "Question":
            close()
            if episode is not None:
                yield episode
            episode = Episode("", number, trial=trial, labels=label)
            entry, numbered = "Question", False
            parts.append(mark[3])
        elif mark and episode is not None and not (numbered and mark[1] != "Correct answer" and mark[2] is None):
            close()
            entry = mark[1]
            numbered = numbered or mark[2] is not None  # then "Action:" without a number is part of a text
            parts.append(mark[3])
        elif episode is not None and not _ORNAMENT.match(line):
            parts.append(line)
    close()
    if episode is not None:
        yield episode


def _without_doubles(found: Iterable[Episode]) -> Iterator[Episode]:
    """Episodes with each run once: Reflexion lists some halted runs under "incorrect" too, in the same trial."""
    trial: int | None = None
    held: dict[tuple[Any, ...], Episode] = {}
    for episode in found:
        if episode.trial != trial:
            yield from held.values()
            held.clear()
            trial = episode.trial
        if trial is None:
            yield episode
            continue
        key = (episode.question, *((turn.thought, turn.action, turn.observation) for turn in episode.turns))
        twin = held.get(key)
        if twin is None:
            held[key] = episode
        elif set(episode.labels) <= set(twin.labels):
            held[(*key, len(held))] = episode  # the same text under the same heading is another run
        else:
            twin.labels += episode.labels
    yield from held.values()


def _trajectory(
    episode: Episode,
    name: str,
    tools: Tools,
    *,
    correct: bool | None = None,
    failed: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Trajectory:
    steps: list[Step] = []
    page: str | None = None
    for turn in episode.turns:
        step, page = react_step(turn, page, tools)
        steps.append(step)
    answers = [step for step in steps if step.kind == "answer"]
    if correct is None:
        correct = _judgement(episode)
    ended_by: EndedBy = "answer" if answers else "unknown"
    if failed:
        ended_by = "error"
    elif "halted" in episode.labels:
        ended_by = "budget"
    extra: dict[str, Any] = dict(meta or {})
    if episode.reference:
        extra["reference_answer"] = episode.reference
    if episode.trial is not None:
        extra["trial"] = episode.trial
    if len(episode.labels) > 1:
        extra["labels"] = list(episode.labels)
    return Trajectory(
        id=name,
        question_id=question_id(episode.question),
        question=episode.question,
        steps=tuple(steps),
        answer=answers[-1].queries[0] if answers and answers[-1].queries else None,
        correct=correct,
        ended_by=ended_by,
        meta=extra,
    )


def _judgement(episode: Episode) -> bool | None:
    for turn in reversed(episode.turns):
        if turn.observation and (judged := _JUDGED.match(turn.observation)):
            return judged[1] == "CORRECT"
    if "correct" in episode.labels:
        return True
    return False if "incorrect" in episode.labels else None


def react_step(turn: Turn, page: str | None, tools: Tools = TOOLS) -> tuple[Step, str | None]:
    """The step that a turn is, and the title of the page that a following ``Lookup`` reads.

    Args:
        turn: thought, action and observation.
        page: title of the page found last, None when none was.
        tools: names of further actions that search.
    """
    match = _ACTION.match(turn.action) if turn.action else None
    name = ((match[1] or match[3]) if match else "").lower()
    subject = ((match[2] if match[1] else match[4]) if match else "") or ""
    subject = subject.strip()
    kind = "search" if name in tools.search else KINDS.get(name, "other")
    queries = (subject,) if subject else ((turn.action,) if turn.action and kind == "other" else ())
    thought, observation = turn.thought or None, turn.observation
    if kind == "answer":
        return Step("answer", thought=thought, queries=queries), page
    if not turn.action:
        return Step("other", thought=thought, error=observation or "no action in the log"), page
    if not observation:
        return Step(kind, thought=thought, queries=queries, error="no observation in the log"), page
    if kind == "other" or _ERROR.match(observation):
        error = observation if _ERROR.match(observation) else None
        # after a failed search there is no page to look up in
        return Step(kind, thought=thought, queries=queries, error=error), None if kind == "search" else page
    title = (subject or None) if kind == "search" else page
    document = make_document(title=title, text=_RESULT_COUNT.sub("", observation, count=1), rank=1)
    documents = (document,) if document else ()
    return Step(kind, thought=thought, queries=queries, documents=documents), title if kind == "search" else page
