"""Trajectories as JSON-able dicts and back: the neutral interchange format, one trajectory a JSON line.

A field that is None is left out. The numbers that JSON lacks are written as the texts ``"-inf"``, ``"inf"`` and
``"nan"``. Reading is strict: an unknown key or a wrong type is a `ValueError` that names the key's path.
"""

import json
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from stopwise.data.records import (
    ENDED_BY,
    STEP_KINDS,
    Action,
    AnswerProbe,
    Criterion,
    Document,
    Logprobs,
    Step,
    Trajectory,
)

_NOT_FINITE = {"-inf": -math.inf, "inf": math.inf, "nan": math.nan}
_NUMBER = (float, int, str)  # a text only where it is one of _NOT_FINITE
_LEAVE_OUT = "leave out what is not known"
_TEXT, _WHOLE, _BOOLEAN, _LIST, _OBJECT = (str,), (int,), (bool,), (list, tuple), (dict,)

_Types = dict[str, tuple[type, ...]]
_DOCUMENT: _Types = {"id": _TEXT, "text": _TEXT, "title": _TEXT, "url": _TEXT, "score": _NUMBER, "rank": _WHOLE}
_DOCUMENT_KEYS = _DOCUMENT.keys()
_LOGPROBS: _Types = {"top": _LIST, "entropies": _LIST, "source": _TEXT}
_PROBE: _Types = {"answer": _TEXT, "correct": _BOOLEAN}
_CRITERION: _Types = {"text": _TEXT, "gold_ids": _LIST}
_STEP: _Types = {
    "kind": _TEXT,
    "thought": _TEXT,
    "queries": _LIST,
    "documents": _LIST,
    "error": _TEXT,
    "logprobs": _OBJECT,
    "answer_probe": _OBJECT,
    "logged_action": _WHOLE,
    "propensity": _NUMBER,
    "tokens_in": _WHOLE,
    "tokens_out": _WHOLE,
    "seconds": _NUMBER,
    "guidance": _TEXT,
}
_TRAJECTORY: _Types = {
    "id": _TEXT,
    "question_id": _TEXT,
    "question": _TEXT,
    "steps": _LIST,
    "criteria": _LIST,
    "answer": _TEXT,
    "correct": _BOOLEAN,
    "gold_ids": _LIST,
    "agent": _TEXT,
    "dataset": _TEXT,
    "ended_by": _TEXT,
    "meta": _OBJECT,
}
_WORDS = {
    _TEXT: "text",
    _WHOLE: "a whole number",
    _BOOLEAN: "true or false",
    _LIST: "a list",
    _OBJECT: "an object",
    _NUMBER: 'a number or "-inf"',
}


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """A dict that ``json.dumps(..., allow_nan=False)`` accepts and `trajectory_from_dict` reads back as an equal one.

    ``meta`` is passed on as it is.
    """
    return _without_none(
        id=trajectory.id,
        question_id=trajectory.question_id,
        question=trajectory.question,
        criteria=None if trajectory.criteria is None else [_criterion_to_dict(c) for c in trajectory.criteria],
        answer=trajectory.answer,
        correct=trajectory.correct,
        gold_ids=None if trajectory.gold_ids is None else list(trajectory.gold_ids),
        agent=trajectory.agent,
        dataset=trajectory.dataset,
        ended_by=trajectory.ended_by,
        meta=dict(trajectory.meta) or None,
        steps=[_step_to_dict(step) for step in trajectory.steps],
    )


def trajectory_from_dict(value: Any) -> Trajectory:
    """The trajectory that `value`, a parsed JSON object, describes.

    Raises:
        ValueError: a required key is missing, a key is unknown or a value has a wrong type; the message names the key's
            path, what was found and what was expected.
    """
    fields = _checked(value, "", _TRAJECTORY, ("id", "question_id", "question"))
    criteria, gold = fields.get("criteria"), fields.get("gold_ids")
    ended_by = fields.get("ended_by") or "unknown"
    if ended_by not in ENDED_BY:
        raise _wrong("ended_by", ended_by, f"one of {', '.join(ENDED_BY)}")
    return Trajectory(
        id=fields["id"],
        question_id=fields["question_id"],
        question=fields["question"],
        steps=tuple(_step(step, f"steps[{i}]") for i, step in enumerate(fields.get("steps") or ())),
        criteria=None if criteria is None else tuple(_criterion(c, f"criteria[{i}]") for i, c in enumerate(criteria)),
        answer=fields.get("answer"),
        correct=fields.get("correct"),
        gold_ids=None if gold is None else _texts(gold, "gold_ids"),
        agent=fields.get("agent"),
        dataset=fields.get("dataset"),
        ended_by=ended_by,  # pyright: ignore[reportArgumentType]
        meta=_meta(fields.get("meta")),
    )


def _meta(value: Any) -> Mapping[str, Any]:
    if not value:
        return {}
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("meta: holds a number that is not finite; expected JSON values") from None
    except TypeError as error:
        raise ValueError(f"meta: {error}; expected JSON values") from None
    return value


def _without_none(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _number_out(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def _document_to_dict(document: Document) -> dict[str, Any]:
    return _without_none(
        id=document.id,
        text=document.text,
        title=document.title,
        url=document.url,
        score=_number_out(document.score),
        rank=document.rank,
    )


def _criterion_to_dict(criterion: Criterion) -> dict[str, Any]:
    return _without_none(text=criterion.text, gold_ids=None if criterion.gold_ids is None else list(criterion.gold_ids))


def _logprobs_to_dict(logprobs: Logprobs) -> dict[str, Any]:
    return _without_none(
        top=None if logprobs.top is None else [[_number_out(p) for p in position] for position in logprobs.top],
        entropies=None if logprobs.entropies is None else [_number_out(entropy) for entropy in logprobs.entropies],
        source=logprobs.source,
    )


def _step_to_dict(step: Step) -> dict[str, Any]:
    probe = step.answer_probe
    return _without_none(
        kind=step.kind,
        thought=step.thought,
        queries=list(step.queries) or None,
        documents=[_document_to_dict(document) for document in step.documents] or None,
        error=step.error,
        logprobs=None if step.logprobs is None else _logprobs_to_dict(step.logprobs),
        answer_probe=None if probe is None else _without_none(answer=probe.answer, correct=probe.correct),
        logged_action=None if step.logged_action is None else int(step.logged_action),
        propensity=_number_out(step.propensity),
        tokens_in=step.tokens_in,
        tokens_out=step.tokens_out,
        seconds=_number_out(step.seconds),
        guidance=step.guidance,
    )


def _step(value: Any, path: str) -> Step:
    fields = _checked(value, path, _STEP, ("kind",))
    if fields["kind"] not in STEP_KINDS:
        raise _wrong(f"{path}.kind", fields["kind"], f"one of {', '.join(STEP_KINDS)}")
    action, logprobs, probe = fields.get("logged_action"), fields.get("logprobs"), fields.get("answer_probe")
    if action is not None and action not in tuple(Action):
        raise _wrong(f"{path}.logged_action", action, "0 continue, 1 intervene or 2 stop")
    documents = fields.get("documents")
    return Step(
        kind=fields["kind"],
        thought=fields.get("thought"),
        queries=_texts(fields.get("queries") or (), f"{path}.queries"),
        documents=tuple([_document(d, path, i) for i, d in enumerate(documents)]) if documents else (),
        error=fields.get("error"),
        logprobs=None if logprobs is None else _logprobs(logprobs, f"{path}.logprobs"),
        answer_probe=None if probe is None else _probe(probe, f"{path}.answer_probe"),
        logged_action=None if action is None else Action(action),
        propensity=_within(
            fields.get("propensity"), path, "propensity", lambda p: 0 < p <= 1, "a probability above 0, up to 1"
        ),
        tokens_in=_count(fields.get("tokens_in"), path, "tokens_in"),
        tokens_out=_count(fields.get("tokens_out"), path, "tokens_out"),
        seconds=_within(fields.get("seconds"), path, "seconds", lambda s: 0 <= s < math.inf, "a number of 0 or more"),
        guidance=fields.get("guidance"),
    )


def _document(value: Any, path: str, index: int) -> Document:
    # most of a log is documents: right ones are taken without building paths, the rest goes the long way
    if type(value) is dict and value.keys() <= _DOCUMENT_KEYS:
        get = value.get
        own, text, title, url, score, rank = get("id"), get("text"), get("title"), get("url"), get("score"), get("rank")
        if (
            type(own) is str
            and (text is None or type(text) is str)
            and (title is None or type(title) is str)
            and (url is None or type(url) is str)
            and (score is None or (type(score) is float and score - score == 0))  # finite
            and (rank is None or (type(rank) is int and -(2**63) <= rank < 2**63))
        ):
            return Document(own, text, title, url, score, rank)
    path = f"{path}.documents[{index}]"
    fields = _checked(value, path, _DOCUMENT, ("id",))
    get = fields.get
    score = _within(get("score"), path, "score", math.isfinite, "a finite number")
    return Document(fields["id"], get("text"), get("title"), get("url"), score, get("rank"))


def _criterion(value: Any, path: str) -> Criterion:
    fields = _checked(value, path, _CRITERION, ("text",))
    gold = fields.get("gold_ids")
    return Criterion(fields["text"], None if gold is None else _texts(gold, f"{path}.gold_ids"))


def _probe(value: Any, path: str) -> AnswerProbe:
    fields = _checked(value, path, _PROBE, ())
    return AnswerProbe(fields.get("answer"), fields.get("correct"))


def _logprobs(value: Any, path: str) -> Logprobs:
    fields = _checked(value, path, _LOGPROBS, ())
    top, entropies = fields.get("top"), fields.get("entropies")
    if (top is None) == (entropies is None):
        raise ValueError(f"{path}: found {'neither' if top is None else 'both'} of top and entropies; expected one")
    source = fields.get("source") or "logged"
    if top is None:
        return Logprobs(entropies=_numbers(entropies, f"{path}.entropies"), source=source)
    return Logprobs(top=tuple(_numbers(p, f"{path}.top[{i}]") for i, p in enumerate(top)), source=source)


def _numbers(value: Any, path: str) -> tuple[float, ...]:
    if type(value) is list and set(map(type, value)) <= {float}:  # log-probabilities are many: no path for each
        return tuple(value)
    return _each(value, path, lambda item, at: _number(item, at, ""), "a list of numbers")


def _texts(value: Any, path: str) -> tuple[str, ...]:
    def text(item: Any, at: str) -> str:
        if not isinstance(item, str):
            raise _wrong(at, item, "text")
        return item

    if type(value) is list and set(map(type, value)) <= {str}:
        return tuple(value)
    return _each(value, path, text, "a list of texts")


def _each(value: Any, path: str, read: Callable[[Any, str], Any], expected: str) -> tuple[Any, ...]:
    if not isinstance(value, _LIST):
        raise _wrong(path, value, expected)
    return tuple([read(item, f"{path}[{i}]") for i, item in enumerate(value)])


def _number(value: Any, path: str, key: str) -> float | None:
    if value is None and key:
        return None
    if type(value) is float:
        return value
    at = f"{path}.{key}" if key else path
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _wrong(at, value, "a number that 64 bits hold") from None
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise _wrong(at, value, _WORDS[_NUMBER])


def _within(value: Any, path: str, key: str, allowed: Callable[[float], bool], expected: str) -> float | None:
    """A number that is of a kind that a run can have; None where it is not known."""
    if value is None:
        return None
    try:
        number = _number(value, path, key)
    except ValueError:
        number = None
    if number is None or not allowed(number):
        raise _wrong(_at(path, key), value, f"{expected}; {_LEAVE_OUT}")
    return number


def _count(value: int | None, path: str, key: str) -> int | None:
    if value is not None and value < 0:
        raise _wrong(_at(path, key), value, f"a whole number of 0 or more; {_LEAVE_OUT}")
    return value


def _checked(value: Any, path: str, types: _Types, required: tuple[str, ...]) -> Mapping[str, Any]:
    """`value`, when it is an object with known keys and right types."""
    if type(value) is not dict:
        raise _wrong(path, value, "an object")
    for key, item in value.items():
        expected = types.get(key)
        if expected is None:
            near = get_close_matches(str(key), types, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(types)}"
            raise ValueError(f"{_at(path, key)}: unknown key; {hint}")
        if item is not None and type(item) not in expected:
            raise _wrong(_at(path, key), item, _WORDS[expected])
        if expected is _WHOLE and item is not None and not -(2**63) <= item < 2**63:
            raise _wrong(_at(path, key), item, "a whole number that 64 bits hold")
    for key in required:
        if value.get(key) is None:
            raise ValueError(f"{_at(path, key)}: missing; expected {_WORDS[types[key]]}")
    return value


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _wrong(path: str, found: Any, expected: str) -> ValueError:
    shown = repr(found)
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    return ValueError(f"{path or 'value'}: found {shown}; expected {expected}")
