"""ATIF, the Agent Trajectory Interchange Format (Harbor): steps of a system, a user and an agent.

An agent's step holds its ``message``, ``reasoning_content``, ``tool_calls`` and, in ``observation.results``, what they
brought (``source_call_id`` names the call); ``metrics`` holds tokens and log-probabilities of the chosen tokens.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stopwise.data.importers.chat import message_text
from stopwise.data.importers.conversation import Call, Message, read_conversation
from stopwise.data.importers.row_facts import row_facts
from stopwise.data.importers.sources import read_rows
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

PICTURE = '{"schema_version": "ATIF-v1.4", "session_id": .., "agent": {..}, "steps": [{"source": "agent", ..}]}'


def evidence(sample: Sample) -> float:
    """How surely `sample` is of this family, 0 to 1."""
    for row in sample.objects:
        steps = row.get("steps")
        if str(row.get("schema_version", "")).upper().startswith("ATIF"):
            return 1.0
        if isinstance(steps, list) and any(isinstance(step, dict) and "source" in step for step in steps):
            return 0.8
    return 0.0


def read(path: Path, tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of ATIF files: one object, a list, or one a line."""
    yield from read_rows(path, lambda row, number: _row(row, number, tools))


def _row(row: Any, number: int, tools: Tools) -> Trajectory | str:
    steps = row.get("steps") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(steps, list):
        return f"steps: found {describe(steps if isinstance(row, dict) else row)}; expected a list"
    run = read_conversation([m for step in steps if isinstance(step, dict) for m in _messages(step)], tools)
    facts = row_facts(row)
    question = run.question or facts.question
    if not question:
        return "found no question: no step of a user"
    if not run.steps:
        return "found no step of an agent"
    agent = row.get("agent")
    agent = agent if isinstance(agent, dict) else {}
    return Trajectory(
        id=facts.id or optional_text(row.get("session_id")) or f"row-{number}",
        question_id=question_id(question, facts.question_id),
        question=question,
        steps=run.steps,
        answer=run.answer,
        correct=facts.correct,
        agent=optional_text(agent.get("model_name")) or optional_text(agent.get("name")) or facts.agent,
        dataset=facts.dataset,
        ended_by=run.ended_by,
        meta=facts.meta | ({"confidence": run.confidence} if run.confidence is not None else {}),
    )


def _messages(step: dict[str, Any]) -> Iterator[Message]:
    source, text = step.get("source"), message_text(step.get("message"))
    if source != "agent":
        yield Message("user" if source == "user" else "system", text=text)
        return
    metrics = step.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    calls = [call for item in _list(step.get("tool_calls")) if (call := _call(item))]
    yield Message(
        "assistant",
        text=text,
        thought=message_text(step.get("reasoning_content")),
        calls=calls,
        logprobs=parse_logprobs(metrics.get("logprobs")),
        tokens_in=optional_count(metrics.get("prompt_tokens")),
        tokens_out=optional_count(metrics.get("completion_tokens")),
    )
    observation = step.get("observation")
    for result in _list(observation.get("results") if isinstance(observation, dict) else None):
        yield Message("tool", content=result.get("content"), call_id=optional_text(result.get("source_call_id")))


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _call(item: dict[str, Any]) -> Call | None:
    name = optional_text(item.get("function_name") or item.get("name"))
    return (
        Call(name, item.get("arguments"), optional_text(item.get("tool_call_id") or item.get("id"))) if name else None
    )
