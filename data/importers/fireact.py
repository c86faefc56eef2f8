"""FireAct rows, a part of the `chat` family: ReAct's words in the turns of a chat, or in one text."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stopwise.data.importers.react import Turn, episodes, react_step
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.toolbox import (
    clean_text,
    describe,
    is_finite,
    make_document,
    optional_text,
    question_id,
    verdict,
)
from stopwise.data.importers.tools import Tools
from stopwise.data.records import Step, Trajectory


def read_fireact(row: dict[str, Any], number: int, tools: Tools) -> Trajectory | str:
    """The trajectory of one row with a ``traj``, or the reason why there is none."""
    traj = row["traj"]
    question = optional_text(row.get("question"))
    if isinstance(traj, list):
        turns = [item for item in traj if isinstance(item, dict) and isinstance(item.get("content"), str)]
        if turns and turns[0].get("role") != "assistant":
            question = question or optional_text(turns.pop(0)["content"])
        executed = list(_fireact_turns(turns))
    elif isinstance(traj, str):
        episode = list(episodes(f"Question: {question or ''}\n{clean_text(traj)}".splitlines(keepends=True)))[-1]
        question = question or episode.question
        executed = [(turn, None) for turn in episode.turns]
    else:
        return f"traj: found {describe(traj)}; expected turns or text"
    if not question or not executed:
        return "traj: found no question with Thought or Action"
    steps: list[Step] = []
    for turn, rest in executed:
        steps.append(_fireact_step(turn, tools))
        if rest:
            steps.append(Step("other", thought=rest, error="written in the same turn, but not executed"))
    facts = row_facts(row, ("gt", "answer"))
    written = next((step.queries[0] for step in reversed(steps) if step.kind == "answer" and step.queries), None)
    correct = verdict(row.get("em"))
    f1 = row.get("f1")
    return Trajectory(
        id=facts.id or f"row-{number}",
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=tuple(steps),
        answer=optional_text(row.get("pred")) or written,
        correct=verdict(row.get("reward")) if correct is None else correct,
        agent=facts.agent,
        dataset=facts.dataset,
        ended_by="answer" if written else "unknown",
        meta=facts.meta | ({"f1": f1} if is_finite(f1) else {}),
    )


def _fireact_turns(items: list[dict[str, Any]]) -> Iterator[tuple[Turn, str | None]]:
    """Each assistant message's first action with the observation after it, and what it wrote beyond that action.

    A model may write many thoughts and actions in one message; only the first action was executed.
    """
    for i, item in enumerate(items):
        if item.get("role") != "assistant":
            continue
        text = clean_text(item["content"])
        written = next(episodes(["Question:\n", *text.splitlines(keepends=True)])).turns
        first = next((turn for turn in written if turn.action), written[0] if written else Turn(thought=text))
        later = written[written.index(first) + 1 :] if first in written else []
        observation = None
        if i + 1 < len(items) and items[i + 1].get("role") != "assistant":
            observation = clean_text(items[i + 1]["content"]).strip().removeprefix("Observation:").strip()
        rest = "\n".join(part for turn in later for part in (turn.thought, turn.action) if part)
        yield Turn(first.thought, first.action, observation), rest or None


def _fireact_step(turn: Turn, tools: Tools) -> Step:
    step, _ = react_step(turn, None, tools)
    if step.kind == "search" and step.documents:  # a passage from the web, not a page titled as the query
        document = make_document(text=turn.observation, rank=1)
        if document is None or document.text == "None":
            return replace(step, documents=(), error="no results")
        return replace(step, documents=(document,))
    if not turn.action:
        return replace(step, error="no action in the log")
    return step
