"""The closed loop: an agent searches a corpus for real, an overseer may send it on, redirect it or stop it.

An episode is a generator: it yields the queries of a turn and is sent their results. So one episode can be run by
itself, and many in step, with one call to the retriever for all their queries.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stopwise.data.corpus import Query
from stopwise.data.records import Action, AnswerProbe, Document, EndedBy, Step, Trajectory
from stopwise.envs.arena.agents import SEARCH_CAP, Agent, Turn
from stopwise.envs.arena.belief import UNKNOWN
from stopwise.envs.arena.retrievers import Retriever

STOPPED_THOUGHT = "I am asked to answer now from what I have."

Results = list[tuple[Document, ...]]  # of one turn's queries
Episode = Generator[tuple[str, ...], Results, Trajectory]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an overseer says at a decision point."""

    action: Action = Action.CONTINUE
    propensity: float | None = None  # probability with which it chose that action
    turn: Turn | None = None  # for INTERVENE: the search that is injected


class Overseer(Protocol):
    """A controller in the loop; called at every decision point."""

    def after_search(self, question: Query, steps: Sequence[Step]) -> Verdict:
        """Judge the run after a search step, which is the last of `steps`."""
        ...

    def at_attempt(self, question: Query, steps: Sequence[Step], answer: str | None) -> Verdict:
        """Judge the agent's attempt to answer; CONTINUE sends it on, STOP lets it answer."""
        ...


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """How episodes are run."""

    k: int = 5  # documents a query
    dataset: str = "world"  # name that trajectories carry
    probe: bool = True  # ask the agent for its answer after every search


def episode(agent: Agent, query: Query, run_id: str, config: LoopConfig, overseer: Overseer | None = None) -> Episode:
    """Run one agent on one question; yields queries, is sent results, returns the trajectory.

    Without an overseer the agent's first attempt to answer ends the run. A refused attempt stays in the log as a step
    of kind "other". A stop makes the agent answer from what it has.
    """
    log = _Log(agent, query, run_id, config)
    while True:
        turn = agent.turn()
        if turn.kind == "cut":
            return log.finish(None, "budget")
        if turn.kind == "answer":
            verdict = overseer.at_attempt(query, log.steps, turn.answer) if overseer else Verdict(Action.STOP)
            if verdict.action is Action.STOP or log.searches >= SEARCH_CAP:
                log.answer(turn, verdict if overseer else None)
                return log.finish(turn.answer, "answer")
            log.attempt(turn, verdict)
            agent.send_on()
            continue
        documents = _merge((yield turn.queries))
        agent.observe(documents)
        log.search(turn, documents)
        if overseer is None:
            continue
        verdict = overseer.after_search(query, log.steps)
        log.judge(verdict)
        if verdict.action is Action.STOP:
            turn = Turn("answer", STOPPED_THOUGHT, answer=agent.probe(log.steps) or UNKNOWN)
            log.answer(turn, None)
            return log.finish(turn.answer, "answer")
        if verdict.action is Action.INTERVENE and verdict.turn is not None and log.searches < SEARCH_CAP:
            documents = _merge((yield verdict.turn.queries))
            agent.intervene(verdict.turn.queries, documents)
            log.search(verdict.turn, documents)


class _Log:
    """The run as it is written down."""

    def __init__(self, agent: Agent, query: Query, run_id: str, config: LoopConfig) -> None:
        self._agent = agent
        self._query = query
        self._run_id = run_id
        self._config = config
        self.steps: list[Step] = []
        self.searches = 0

    def search(self, turn: Turn, documents: tuple[Document, ...]) -> None:
        step = Step("search", turn.thought, turn.queries, documents, logprobs=turn.logprobs)
        self.steps.append(step)
        self.searches += 1
        if self._config.probe:
            answer = self._agent.probe(self.steps)
            correct = None if answer is None else self._is_correct(answer)
            self.steps[-1] = replace(step, answer_probe=AnswerProbe(answer, correct))

    def judge(self, verdict: Verdict) -> None:
        self.steps[-1] = replace(self.steps[-1], logged_action=verdict.action, propensity=verdict.propensity)

    def attempt(self, turn: Turn, verdict: Verdict) -> None:
        self.steps.append(Step("other", turn.thought, (turn.answer or UNKNOWN,), logprobs=turn.logprobs))
        self.judge(verdict)

    def answer(self, turn: Turn, verdict: Verdict | None) -> None:
        self.steps.append(Step("answer", turn.thought, (turn.answer or UNKNOWN,), logprobs=turn.logprobs))
        if verdict is not None:
            self.judge(verdict)

    def finish(self, answer: str | None, ended_by: EndedBy) -> Trajectory:
        query, config, agent = self._query, self._config, self._agent
        meta: dict[str, Any] = {"run": self._run_id}
        if query.answer is not None:
            meta["reference_answer"] = query.answer
        return Trajectory(
            id=f"{config.dataset}/{agent.kind}/{query.id}/{self._run_id}",
            question_id=query.id,
            question=query.text,
            steps=tuple(self.steps),
            criteria=query.criteria,
            answer=answer,
            correct=None if query.answer is None else answer is not None and self._is_correct(answer),
            gold_ids=query.gold_ids,
            agent=agent.kind,
            dataset=config.dataset,
            ended_by=ended_by,
            meta=meta,
        )

    def _is_correct(self, answer: str) -> bool | None:
        return None if self._query.answer is None else is_correct(answer, self._query.answer)


def is_correct(answer: str, reference: str) -> bool:
    """Whether an answer is the reference, case and surrounding white space apart."""
    return answer.strip().casefold() == reference.strip().casefold()


def run_in_step(episodes: Iterable[Episode], retriever: Retriever, k: int) -> Iterator[Trajectory]:
    """Run episodes side by side, all their queries of a round in one retriever call; yields them in the given order."""
    running = list(episodes)
    finished: dict[int, Trajectory] = {}
    waiting: dict[int, tuple[str, ...]] = {}
    for number, run in enumerate(running):
        _advance(number, run, None, waiting, finished)
    while waiting:
        queries = tuple(dict.fromkeys(query for asked in waiting.values() for query in asked))
        found = dict(zip(queries, retriever.search(queries, k), strict=True))
        asked_now, waiting = waiting, {}
        for number, asked in asked_now.items():
            _advance(number, running[number], [found[query] for query in asked], waiting, finished)
    for number in range(len(running)):
        yield finished[number]


def _advance(
    number: int,
    run: Episode,
    results: Results | None,
    waiting: dict[int, tuple[str, ...]],
    finished: dict[int, Trajectory],
) -> None:
    try:
        waiting[number] = next(run) if results is None else run.send(results)
    except StopIteration as stop:
        finished[number] = stop.value


def _merge(results: Results) -> tuple[Document, ...]:
    """The documents of a turn's queries, each once, best ranks first."""
    ranked = sorted((document for found in results for document in found), key=lambda document: document.rank or 0)
    return tuple({document.id: document for document in reversed(ranked)}.values())[::-1]
