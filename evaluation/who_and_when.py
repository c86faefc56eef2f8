"""Who&When: which agent made the decisive mistake of a failed run, and at which step ([DS-MCM] 4.4)?

Zhang et al., *Which Agent Causes Task Failures and When?*, arXiv 2505.00212, is the benchmark: failed runs of a
hand-crafted system and of systems that an algorithm generated, each annotated with agent, step and reason. Its methods
are two of those here: a model reads the whole run at once, or step by step until it objects. With a memory it is also
shown similar steps of the *other* subset ([DS-MCM] 4.4: the cross-memory protocol).

[DS-MCM] does not say what these memories hold. Here an annotated mistake is a failure, with the annotators' reason as
its abstraction, and the steps before it are successes: the annotation says that none of them was decisive. What came
after is not stored. Questions of the evaluated subset are left out of the memory, and that is asserted.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from stopwise.controllers.memory.entries import Entry, Recalled
from stopwise.data.errors import DataError
from stopwise.data.files import read_json
from stopwise.data.importers.toolbox import clean_text, normalise_question, optional_text, question_id
from stopwise.evaluation.bootstrap import QuestionBootstrap, percentile_interval
from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.prompts import load_prompt, quote

SUBSETS = {"hand_crafted": "Hand-Crafted", "algorithm_generated": "Algorithm-Generated"}  # name: folder
ANNOTATED = "annotated"  # who wrote the abstractions of these memories

CONVERSATION_CHARS = 16_000  # of a whole conversation, shared out evenly among its turns
EARLIER = 6  # turns before the judged one that are shown
MAX_TOKENS = 150  # of a reply

Method = Literal["all_at_once", "step_by_step"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One entry of a conversation."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Case:
    """A failed run with its annotation."""

    id: str
    question_id: str
    question: str
    turns: tuple[Turn, ...]
    mistake_agent: str
    mistake_step: int  # index into `turns`
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Blame:
    """Who is held responsible, and for which turn; None where nothing was said."""

    agent: str | None = None
    step: int | None = None
    failure: str | None = None  # kind of the failed call, if that is why


class Nearest(Protocol):
    """What a judge needs of a memory."""

    def nearest(self, session: str, history: str, k: int) -> Recalled:
        """The `k` most similar entries of each pool."""
        ...


def read_cases(folder: Path) -> list[Case]:
    """The cases of one subset's folder of JSON files, in the order of their numbers.

    Raises:
        DataError: there is none, or one lacks its annotation; the message names the file.
    """
    paths = sorted(Path(folder).glob("*.json"), key=lambda path: (len(path.stem), path.stem))
    if not paths:
        raise DataError(f"{folder}: holds no JSON file; expected a subset of Who&When, as Hand-Crafted")
    return [_case(path, read_json(path)) for path in paths]


def _case(path: Path, row: Any) -> Case:
    history = row.get("history") if isinstance(row, dict) else None
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise DataError(f"{path}: expected an object with `history`, a list of objects with role and content")
    question, agent = optional_text(row.get("question")), optional_text(row.get("mistake_agent"))
    step = str(row.get("mistake_step", ""))
    if not question or not agent or not step.isdecimal() or int(step) >= len(history):
        raise DataError(
            f"{path}: question, mistake_agent or mistake_step (a number below {len(history)}) is missing or wrong; "
            f"found mistake_step {row.get('mistake_step')!r}"
        )
    turns = tuple(
        Turn(
            optional_text(entry.get("name")) or optional_text(entry.get("role")) or "unknown",
            clean_text(str(entry.get("content") or "")),
        )
        for entry in history
    )
    own_id = question_id(question, row.get("question_ID"))
    return Case(path.stem, own_id, question, turns, agent, int(step), optional_text(row.get("mistake_reason")))


def same_agent(one: str | None, other: str) -> bool:
    """Whether two names mean one agent: "Orchestrator (-> WebSurfer)" and "orchestrator" do."""
    return one is not None and _name(one) == _name(other)


def _name(speaker: str) -> str:
    return re.sub(r"[\s_]+", "", re.sub(r"\(.*?\)", "", speaker)).casefold()


def step_text(case: Case, step: int) -> str:
    """A turn as a session of memory."""
    turn = case.turns[step]
    return f"Agent: {turn.speaker}\nStep: {_cut(turn.text, 700)}\nQuestion: {_cut(case.question, 250)}"


def before_text(case: Case, step: int) -> str:
    """A summary of the turns before one; empty for the first."""
    if step == 0:
        return ""
    last = case.turns[step - 1]
    return f"{step} steps before. The last one, by {last.speaker}: {_cut(last.text, 300)}"


def case_entries(cases: Sequence[Case], evaluated: Sequence[Case]) -> Iterator[Entry]:
    """The entries of a memory for judging the runs of `evaluated`: none of their questions is in it."""
    ids = {case.question_id for case in evaluated}
    texts = {normalise_question(case.question) for case in evaluated}
    for case in cases:
        if case.question_id in ids or normalise_question(case.question) in texts:
            continue
        for step in range(case.mistake_step + 1):
            wrong = step == case.mistake_step
            if not case.turns[step].text.strip() or (wrong and not case.reason):
                continue
            yield Entry(
                step_text(case, step),
                before_text(case, step),
                f"The decisive mistake of this run: {case.reason}" if wrong else "No decisive mistake.",
                "failure" if wrong else "success",
                case.question_id,
                question=case.question,
                agent=case.turns[step].speaker,
                dataset="who_and_when",
                abstraction_by=ANNOTATED,
            )


@dataclass(frozen=True, slots=True)
class WholeBlame:
    """What the model replies to a whole run."""

    agent: str
    step: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """What the model replies to one step."""

    err: Literal[0, 1]
    reason: str = ""


class Judge:
    """Finds the mistake of a run with a language model.

    Args:
        client: calls it; failed calls are counted as no answer.
        method: the whole run at once, or step by step.
        memory: of the other subset; None: without.
        k: entries of each pool that are shown ([DS-MCM] 4.1.3: two).
    """

    def __init__(self, client: ChatClient, method: Method, memory: Nearest | None = None, k: int = 2) -> None:
        self._client, self._method, self._memory, self._k = client, method, memory, k

    @property
    def id(self) -> str:
        """The model and the prompt's version."""
        prompt = load_prompt("blame_all" if self._method == "all_at_once" else "blame_step")
        return f"{self._client.id} {prompt.version}"

    def blame(self, case: Case) -> Blame:
        """Who made the decisive mistake, and when."""
        try:
            return self._whole(case) if self._method == "all_at_once" else self._step_by_step(case)
        except ChatFailure as failure:
            return Blame(failure=failure.kind)

    def _whole(self, case: Case) -> Blame:
        limit = max(80, CONVERSATION_CHARS // max(1, len(case.turns)))
        lines = [f"[{n}] {turn.speaker}: {_cut(turn.text, limit)}" for n, turn in enumerate(case.turns)]
        last = len(case.turns) - 1  # what a memory is asked about a whole run: how it ended
        text = load_prompt("blame_all").fill(
            question=quote("question", case.question),
            conversation=quote("conversation", "\n".join(lines)),
            experience=self._experience(case, last),
        )

        def check(answer: WholeBlame) -> str | None:
            return None if 0 <= answer.step <= last else f"step {answer.step} is not one of 0 to {last}"

        # a small model that is held to bounds names somebody who was there; of itself it copies the prompt's example
        narrow = {
            "agent": {"type": "string", "enum": list(dict.fromkeys(turn.speaker for turn in case.turns))},
            "step": {"type": "integer", "minimum": 0, "maximum": last},
        }
        request = ChatRequest((Message("user", text),), MAX_TOKENS)
        answer = self._client.ask(request, WholeBlame, "judge", check=check, narrow=narrow).answer
        return Blame(answer.agent, answer.step)

    def _step_by_step(self, case: Case) -> Blame:
        for step, turn in enumerate(case.turns):
            first = max(0, step - EARLIER)
            earlier = [f"[{n}] {case.turns[n].speaker}: {_cut(case.turns[n].text, 300)}" for n in range(first, step)]
            text = load_prompt("blame_step").fill(
                question=quote("question", case.question),
                earlier=quote("earlier", "\n".join(earlier) or "This is the first step."),
                step=quote("step", f"[{step}] {turn.speaker}: {_cut(turn.text, 2000)}"),
                experience=self._experience(case, step),
            )
            request = ChatRequest((Message("user", text),), MAX_TOKENS)
            if self._client.ask(request, StepVerdict, "judge").answer.err:
                return Blame(turn.speaker, step)
        return Blame()

    def _experience(self, case: Case, step: int) -> str:
        if self._memory is None:
            return ""
        found = self._memory.nearest(step_text(case, step), before_text(case, step), self._k)
        shown = [f"Sound: {_cut(entry.session, 400)}" for entry in found.successes]
        shown += [f"Mistaken: {_cut(entry.session, 400)}\n{_cut(entry.abstraction, 300)}" for entry in found.failures]
        return "Similar steps of other runs:\n" + quote("experience", "\n\n".join(shown) or "None.")


def score(cases: Sequence[Case], blames: Sequence[Blame], *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Agent-level and step-level accuracy ([DS-MCM] 4.4), each with a 95% interval over questions; JSON-able.

    No answer is a wrong answer; they are counted. So is an agent's name that no one in the conversation has.
    """
    agent = np.array([same_agent(blame.agent, case.mistake_agent) for case, blame in zip(cases, blames, strict=True)])
    step = np.array([blame.step == case.mistake_step for case, blame in zip(cases, blames, strict=True)])
    failures: dict[str, int] = {}
    for blame in blames:
        if blame.failure is not None:
            failures[blame.failure] = failures.get(blame.failure, 0) + 1
    return {
        "n": len(cases),
        "agent": _mean(cases, agent.astype(float), resamples, seed),
        "step": _mean(cases, step.astype(float), resamples, seed),
        "no_answer": sum(blame.step is None for blame in blames),
        "failures": failures,
    }


def guess(cases: Sequence[Case], *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """What guessing would score in expectation: a step drawn evenly, and with it its speaker; as `score`."""
    agent = [np.mean([same_agent(turn.speaker, case.mistake_agent) for turn in case.turns]) for case in cases]
    step = [1.0 / len(case.turns) for case in cases]
    return {
        "n": len(cases),
        "agent": _mean(cases, np.array(agent, dtype=float), resamples, seed),
        "step": _mean(cases, np.array(step), resamples, seed),
    }


def always(cases: Sequence[Case], step: int) -> list[Blame]:
    """The same step of every run, or its last one where it is shorter: what any judge has to beat."""
    positions = [min(step, len(case.turns) - 1) for case in cases]
    return [Blame(case.turns[at].speaker, at) for case, at in zip(cases, positions, strict=True)]


def _mean(cases: Sequence[Case], values: np.ndarray, resamples: int, seed: int) -> Mapping[str, Any]:
    names, codes = np.unique([case.question_id for case in cases], return_inverse=True)
    weights = QuestionBootstrap(len(names), resamples, seed).weights[:, codes]
    drawn = (weights @ values) / weights.sum(axis=1)
    return {"mean": float(values.mean()), "ci": percentile_interval(drawn)}


def _cut(text: str, limit: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= limit else f"{plain[: limit - 3].rstrip()}..."
