"""From a conversation with tool calls to steps: the one place where calls meet their results.

Families turn their logs into `Message` records; what counts as a step is decided here:

- One turn of the assistant is one decision. Its search calls make one search step with all their queries and documents;
  every other call is a step of its own kind.
- Calls and results are paired by id. Only a result without an id is paired by its tool's name, else by position.
- In a turn where some calls were answered and some not, the unanswered ones were not executed: they are no searches.
- A result that an instruction to answer took the place of is no observation, and the end that follows was forced.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stopwise.data.importers.code_searches import searches_in_code
from stopwise.data.importers.results import literal, parse_results
from stopwise.data.importers.toolbox import clean_text, error_text, make_document, optional_text
from stopwise.data.importers.tools import QUERY_KEYS, TOOLS, Tools
from stopwise.data.records import Document, EndedBy, Logprobs, Step, StepKind

UNANSWERED = "no result in the log"

_PLACE_KEYS = ("url", "urls", "link", "links", "href", "docid", "doc_id", "id", "path", "page", "title")
_ANSWER_KEYS = ("answer", "final_answer", "output", "result", "response", "text", "content")
_FORCED = re.compile(
    r"(?:give|provide|output|write|submit|produce)(?: me| us)? (?:your|a|the)(?: final| best)*? answer(?: right)?"
    r" (?:now|immediately)|you must (?:now )?answer|should stop (?:making tool calls|searching)"
    r"|what you consider the most likely answer",
    re.IGNORECASE,
)
_THINK = re.compile(r"<think(?:ing)?>(.*?)(?:</think(?:ing)?>|$)", re.DOTALL)
_ANSWER_TAG = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)
_EXACT = re.compile(r"^[ \t*#-]*Exact Answer[ *]*:[ *]*(.+?)[ *]*$", re.MULTILINE | re.IGNORECASE)
_CONFIDENCE = re.compile(r"^[ \t*#-]*Confidence[ *]*:[ *]*(\d{1,3}(?:\.\d+)?)[ ]?%", re.MULTILINE | re.IGNORECASE)


@dataclass(slots=True)
class Call:
    """One tool call, and its result once it is known."""

    name: str
    arguments: Any = None  # JSON text, a Python repr, an object, or plain text
    id: str | None = None
    result: Any = None
    answered: bool = False


@dataclass(slots=True)
class Message:
    """One message of a conversation, whatever format it came in."""

    role: str  # "system", "user", "assistant" or "tool"
    text: str | None = None  # what was said; for a tool, see `content`
    thought: str | None = None  # reasoning that the log keeps apart from the text
    calls: list[Call] = field(default_factory=list)
    content: Any = None  # a tool's result
    call_id: str | None = None  # of the call that a tool's result answers
    name: str | None = None  # the tool's
    logprobs: Logprobs | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a conversation tells of a trajectory."""

    question: str | None
    steps: tuple[Step, ...]
    answer: str | None
    confidence: float | None  # percent, as the agent stated it; None where it stated none
    ended_by: EndedBy
    unpaired: int  # results that no call of the log asked for


def read_conversation(messages: Iterable[Message], tools: Tools = TOOLS, *, finished: bool = True) -> Run:
    """Steps, question and answer of one conversation.

    Args:
        messages: in order.
        tools: which tools search, open or answer.
        finished: whether the last words of the assistant are its answer; not so where the log breaks off before it.
    """
    turns = list(messages)
    unpaired, forced = _pair(turns)
    question = next((turn.text for turn in turns if turn.role == "user" and turn.text), None)
    speaking = [turn for turn in turns if turn.role == "assistant" and (turn.text or turn.thought or turn.calls)]
    steps: list[Step] = []
    for turn in speaking:
        # what follows the agent's last words decides whether they were its answer
        steps.extend(_turn_steps(turn, finished and turn is speaking[-1], tools))
    answers = [step for step in steps if step.kind == "answer"]
    answer, confidence = final_answer(answers[-1].queries[0]) if answers and answers[-1].queries else (None, None)
    ended_by: EndedBy = "answer" if answer else "unknown"
    return Run(question, tuple(steps), answer, confidence, "budget" if forced else ended_by, unpaired)


def is_forced_answer(text: str) -> bool:
    """Whether a message tells the agent to answer at once, instead of what it asked for."""
    return len(text) < 2000 and bool(_FORCED.search(text))


def final_answer(text: str) -> tuple[str | None, float | None]:
    """The answer and the stated confidence in percent, where a final message marks them; else the whole text."""
    confidence = _CONFIDENCE.search(text)
    tagged = _ANSWER_TAG.findall(text)
    inner = tagged[-1] if tagged else text
    exact = _EXACT.findall(inner) or _EXACT.findall(text)
    answer = optional_text(exact[-1] if exact else inner)
    return answer, float(confidence[1]) if confidence else None


def split_thought(text: str) -> tuple[str | None, str | None]:
    """What stands between thinking tags, and the rest; a closing tag alone ends a thought that began the text."""
    if "</think>" in text and "<think>" not in text:
        text = "<think>" + text
    thoughts = [thought.strip() for thought in _THINK.findall(text)]
    return "\n".join(filter(None, thoughts)) or None, _THINK.sub("", text).strip() or None


def parse_arguments(arguments: Any) -> Any:
    """A call's arguments as an object where they can be read as one: JSON text, a Python repr, or the object itself."""
    if isinstance(arguments, str):
        value = literal(arguments)
        return arguments if value is None else value
    return arguments


def call_queries(arguments: Any, kind: StepKind) -> tuple[str, ...]:
    """The queries of a call, or what it opened; the whole arguments as text where no key is known."""
    arguments = parse_arguments(arguments)
    if isinstance(arguments, Mapping):
        keys = {"search": QUERY_KEYS, "open": _PLACE_KEYS + QUERY_KEYS, "answer": _ANSWER_KEYS}.get(kind, ())
        for key in keys:
            if found := _texts(arguments.get(key)):
                return found
        if not arguments:
            return ()
        if kind == "search" and len(arguments) == 1:
            return _texts(next(iter(arguments.values())))
        return (clean_text(json.dumps(arguments, ensure_ascii=False, default=str)),)
    return _texts(arguments)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(text for item in value for text in _texts(item))
    if isinstance(value, Mapping):
        return next((found for key in QUERY_KEYS if (found := _texts(value.get(key)))), ())
    text = optional_text(value)
    return (text,) if text else ()


def _pair(turns: Sequence[Message]) -> tuple[int, bool]:
    """Give each result to its call; returns how many found none, and whether an answer was forced."""
    waiting: list[Call] = []
    unpaired, forced = 0, False
    for turn in turns:
        if turn.role == "assistant":
            waiting = [call for call in waiting if call.id] + [call for call in turn.calls if not call.answered]
        elif turn.role == "tool":
            call = _match(waiting, turn)
            if call is None:
                unpaired += 1
                continue
            waiting.remove(call)
            call.result, call.answered = turn.content, True
            text = turn.content if isinstance(turn.content, str) else ""
            if is_forced_answer(text) and literal(text) is None:
                call.result = {"error": "overwritten by an instruction to answer"}
                forced = True
        elif turn.role == "user" and turn.text and is_forced_answer(turn.text) and _spoke(turns, turn):
            forced = True
    return unpaired, forced


def _spoke(turns: Sequence[Message], until: Message) -> bool:
    """Whether the assistant said anything before a message."""
    for turn in turns:
        if turn is until:
            return False
        if turn.role == "assistant":
            return True
    return False


def _match(waiting: list[Call], result: Message) -> Call | None:
    if result.call_id:
        return next((call for call in waiting if call.id == result.call_id), None)
    named = [call for call in waiting if result.name and call.name == result.name]
    return next(iter(named or waiting), None)


def _turn_steps(turn: Message, last: bool, tools: Tools) -> list[Step]:
    inner, said = split_thought(turn.text) if turn.text else (None, None)
    thought = "\n".join(filter(None, (turn.thought, inner))) or None
    cost: dict[str, Any] = {
        "logprobs": turn.logprobs,
        "tokens_in": turn.tokens_in,
        "tokens_out": turn.tokens_out,
        "seconds": turn.seconds,
    }
    if not turn.calls:
        if last and said:
            return [Step("answer", thought=thought, queries=(said,), **cost)]
        both = "\n".join(filter(None, (thought, said)))
        return [Step("other", thought=both, **cost)] if both else []
    before = "\n".join(filter(None, (thought, said))) or None
    steps = _call_steps(turn.calls, tools)
    # what was written and spent before the calls belongs to the first of them
    return [replace(steps[0], thought=before, **cost), *steps[1:]]


def _call_steps(calls: Sequence[Call], tools: Tools) -> list[Step]:
    some_answered = any(call.answered for call in calls)
    steps: list[Step] = []
    searched: list[tuple[tuple[str, ...], tuple[Document, ...], str | None]] = []
    place = 0  # of the turn's search step among its steps
    for call in calls:
        kind = tools.kind(call.name)
        if kind == "other" and call.name.lower() in tools.code:
            source = parse_arguments(call.arguments)
            source = source.get("code", "") if isinstance(source, Mapping) else source
            if isinstance(source, str) and (queries := searches_in_code(source, tools)):
                searched.append((queries, *_outcome(call)))
                place = place if len(searched) > 1 else len(steps)
                continue
        queries = call_queries(call.arguments, kind)
        if kind == "search" and (call.answered or not some_answered):
            searched.append((queries, *_outcome(call)))
            place = place if len(searched) > 1 else len(steps)
        elif kind == "answer":
            steps.append(Step("answer", queries=queries))
        elif not call.answered:
            kind = "other" if kind == "search" else kind  # logged, but not executed
            steps.append(Step(kind, queries=queries, error=UNANSWERED))
        elif kind == "open":
            documents, error = opened_page(call.result, queries)
            steps.append(Step("open", queries=queries, documents=documents, error=error))
        else:
            result = call.result if isinstance(call.result, str) else None
            steps.append(Step("other", queries=queries, error=error_text(result) if result else None))
    if searched:
        documents = tuple(document for _, found, _ in searched for document in found)
        errors = dict.fromkeys(error for _, _, error in searched if error)
        queries = tuple(query for asked, _, _ in searched for query in asked)
        error = None if documents else "; ".join(errors) or "no results"
        steps.insert(place, Step("search", queries=queries, documents=documents, error=error))
    return steps


def _outcome(call: Call) -> tuple[tuple[Document, ...], str | None]:
    return parse_results(call.result) if call.answered else ((), UNANSWERED)


def opened_page(result: Any, opened: tuple[str, ...]) -> tuple[tuple[Document, ...], str | None]:
    """The page that an ``open`` step brought, under the address it was asked for by, or what went wrong."""
    if isinstance(result, str) and not isinstance(literal(result), dict | list):
        error = error_text(result)
        if error:
            return (), error
        url = next((place for place in opened if re.match(r"https?://|www\.", place)), None)
        title = None if url or not opened else opened[0]
        document = make_document(url=url, title=title, text=result, rank=1)
        return ((document,), None) if document else ((), "no results")
    return parse_results(result)
