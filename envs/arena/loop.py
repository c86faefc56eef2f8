"""The closed loop: an agent searches a corpus for real, an overseer may redirect it or stop it.

A `Run` is a state that waits for search results. So one run can be driven by itself, many can be driven side by side
with one call to the retriever for all their queries, and a run can be forked at any of its states.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stopwise.data.corpus import Query
from stopwise.data.records import Action, AnswerProbe, Document, EndedBy, Step, Trajectory
from stopwise.envs.arena.agents import SEARCH_CAP, Agent, Turn
from stopwise.envs.arena.belief import UNKNOWN
from stopwise.envs.arena.retrievers import Retriever
from stopwise.models.chat import ChatFailure
from stopwise.models.meter import Meter, metering
from stopwise.models.parallel import SideBySide

STOPPED_THOUGHT = "I am asked to answer now from what I have."


@dataclass(frozen=True, slots=True)
class Injection:
    """A search that is made in the agent's place, and charged like its own."""

    turn: Turn
    redirects: bool = True  # the agent is told to change course; else it only reads the results


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an overseer says at a decision point."""

    action: Action = Action.CONTINUE
    propensity: float | None = None  # probability with which it chose that action
    injection: Injection | None = None  # with INTERVENE: the search to make; None only sends the agent on
    guidance: str | None = None  # with an injection: what the controller tells the agent in it


class Overseer(Protocol):
    """A controller in the loop; called at every decision point."""

    def after_search(self, question: Query, steps: Sequence[Step]) -> Verdict:
        """Judge the run after a search step, which is the last of `steps`."""
        ...

    def at_attempt(self, question: Query, steps: Sequence[Step], answer: str | None) -> Verdict:
        """Judge the agent's attempt to answer: INTERVENE sends it on, everything else lets it answer."""
        ...


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """How runs are made."""

    k: int = 5  # documents a query
    dataset: str = "world"  # name that trajectories carry
    probe: bool = True  # ask the agent for its answer after every search
    forkable: bool = False  # keep what `Run.fork` needs: a copy of the agent a turn


class Run:
    """One agent on one question.

    Without an overseer the agent's first attempt to answer ends the run. A refused attempt stays in the log as a step
    of kind "other". A stop makes the agent answer from what it has.

    Args:
        agent: a fresh agent.
        query: the question.
        run_id: tells runs of one agent kind on one question apart.
        config: how it is run.
        overseer: judges every decision point of this run, and of no other.

    Attributes:
        meter: what the agent's calls cost; probes for the log stand apart from them, as "reader". An overseer's calls
            are on a meter of its own.
        search_seconds: spent in the retriever; of a round that runs make together, by their number of queries.
    """

    def __init__(
        self, agent: Agent, query: Query, run_id: str, config: LoopConfig, overseer: Overseer | None = None
    ) -> None:
        self.agent = agent
        self.query = query
        self.steps: list[Step] = []
        self.searches = 0  # made so far, injected ones included
        self.queries: tuple[str, ...] = ()  # what it waits for; empty when it is over
        self.meter = Meter()
        self.search_seconds = 0.0
        self._run_id = run_id
        self._config = config
        self._overseer = overseer
        self._before_turn: Agent | None = None  # the agent as it was before it drew the turn that is waited for
        self._turn: Turn | None = None  # the search that it waits for
        self._injection: Injection | None = None  # set when that search is injected
        self._trajectory: Trajectory | None = None
        with metering(self.meter):
            self._next()

    @property
    def id(self) -> str:
        """The trajectory's id."""
        return f"{self._config.dataset}/{self.agent.kind}/{self.query.id}/{self._run_id}"

    @property
    def trajectory(self) -> Trajectory:
        """The finished run.

        Raises:
            ValueError: it is not over.
        """
        if self._trajectory is None:
            raise ValueError(f"run {self.id} still waits for results")
        return self._trajectory

    @property
    def steps_at_search(self) -> Sequence[Step]:
        """The steps up to the last search: the state in which the last decision is taken."""
        last = max((number for number, step in enumerate(self.steps) if step.kind == "search"), default=-1)
        return self.steps[: last + 1]

    def receive(self, results: Sequence[Sequence[Document]]) -> None:
        """Take in the results of `queries`, one sequence a query, and go on to the next search or to the end."""
        with metering(self.meter):
            self._receive(results)

    def _receive(self, results: Sequence[Sequence[Document]]) -> None:
        assert self._turn is not None
        documents = _merge(results)
        if self._injection is None:
            self.agent.observe(documents)
        else:
            self.agent.intervene(self._turn, documents, self._injection.redirects)
        self.searches += 1
        self._log_search(self._turn, documents)
        self._turn, self._injection = None, None
        verdict = Verdict()
        if self._overseer is not None:
            verdict = self._overseer.after_search(self.query, self.steps)
            self._judge(verdict)
        if verdict.action is Action.STOP:
            self._stop()
        elif verdict.action is Action.INTERVENE:
            self._inject(verdict.injection)
        else:
            self._next()

    def fork(self, run_id: str, seed: str, injection: Injection | None = None) -> "Run":
        """A copy without the overseer, that goes on from the state after the last search, even if the run is over.

        Args:
            run_id: of the copy.
            seed: of everything that is random from here on; forks with one seed share their random numbers.
            injection: a search to make first.

        Raises:
            ValueError: the run was not made forkable.
        """
        if self._before_turn is None:
            raise ValueError(f"run {self.id} keeps no copies; set LoopConfig.forkable")
        other = Run.__new__(Run)
        other.agent = self._before_turn.fork(seed)
        other.query, other.searches = self.query, self.searches
        other.steps = list(self.steps_at_search)
        other.queries = ()
        other.meter, other.search_seconds = Meter(), 0.0
        other._run_id, other._config, other._overseer = run_id, replace(self._config, forkable=False), None
        other._before_turn = None
        other._turn, other._injection, other._trajectory = None, None, None
        with metering(other.meter):
            if injection is None:
                other._next()
            else:
                other._inject(injection)
        return other

    def _next(self) -> None:
        """Ask the agent for its next turn, until it searches or the run is over."""
        while True:
            self._keep()
            turn = self.agent.turn()
            if turn.kind == "search":
                self._wait(turn, None)
                return
            if turn.kind == "cut" or turn.kind == "failed":
                self._finish(turn, "budget" if turn.kind == "cut" else "error")
                return
            verdict = Verdict(Action.STOP)
            if self._overseer is not None:
                verdict = self._overseer.at_attempt(self.query, self.steps, turn.answer)
            if verdict.action is not Action.INTERVENE or self.searches >= SEARCH_CAP:
                self._finish(turn, "answer", verdict if self._overseer is not None else None)
                return
            self.steps.append(
                Step("other", turn.thought, (turn.answer or UNKNOWN,), logprobs=turn.logprobs, **_cost(turn))
            )
            self._judge(verdict)
            self.agent.send_on()
            if verdict.injection is not None:
                self._inject(verdict.injection)
                return

    def _stop(self) -> None:
        asked = Meter()
        try:
            with metering(asked):
                answer = self.agent.probe(self.steps) or UNKNOWN
        except ChatFailure as failure:
            self._finish(Turn("failed", f"No answer: {failure.kind}."), "error")
        else:
            self._finish(Turn("answer", STOPPED_THOUGHT, answer=answer), "answer")
        # unlike a probe for the log, this is the answer that the run ends with: the agent's own work
        self.meter.add("agent", asked.of("agent", "reader"))

    def _inject(self, injection: Injection | None) -> None:
        if injection is None or self.searches >= SEARCH_CAP:
            self._next()
        else:
            self._keep()
            self._wait(injection.turn, injection)

    def _keep(self) -> None:
        if self._config.forkable:
            self._before_turn = self.agent.fork()

    def _wait(self, turn: Turn, injection: Injection | None) -> None:
        self._turn, self._injection, self.queries = turn, injection, turn.queries

    def _log_search(self, turn: Turn, documents: tuple[Document, ...]) -> None:
        step = Step("search", turn.thought, turn.queries, documents, logprobs=turn.logprobs, **_cost(turn))
        self.steps.append(step)
        if self._config.probe:
            with suppress(ChatFailure):  # not probed is not "no candidate": the step then has no probe
                answer = self.agent.probe(self.steps)
                correct = None if answer is None else self._is_correct(answer)
                self.steps[-1] = replace(step, answer_probe=AnswerProbe(answer, correct))

    def _judge(self, verdict: Verdict) -> None:
        self.steps[-1] = replace(
            self.steps[-1],
            logged_action=verdict.action,
            propensity=verdict.propensity,
            guidance=verdict.guidance,
        )

    def _finish(self, turn: Turn, ended_by: EndedBy, verdict: Verdict | None = None) -> None:
        query, answer = self.query, turn.answer
        if answer is not None:
            self.steps.append(Step("answer", turn.thought, (answer,), logprobs=turn.logprobs, **_cost(turn)))
            if verdict is not None:
                self._judge(verdict)
        meta: dict[str, Any] = {"run": self._run_id}
        if query.answer is not None:
            meta["reference_answer"] = query.answer
        if turn.kind == "failed":
            meta["error"] = turn.thought
        self.queries = ()
        self._trajectory = Trajectory(
            id=self.id,
            question_id=query.id,
            question=query.text,
            steps=tuple(self.steps),
            criteria=query.criteria,
            answer=answer,
            correct=None if query.answer is None else answer is not None and self._is_correct(answer),
            gold_ids=query.gold_ids,
            agent=self.agent.kind,
            dataset=self._config.dataset,
            ended_by=ended_by,
            meta=meta,
        )

    def _is_correct(self, answer: str) -> bool | None:
        return None if self.query.answer is None else is_correct(answer, self.query.answer)


def is_correct(answer: str, reference: str) -> bool:
    """Whether an answer is the reference, case and surrounding white space apart."""
    return answer.strip().casefold() == reference.strip().casefold()


def run_in_step(
    runs: Iterable[Run],
    retriever: Retriever,
    k: int,
    after_search: Callable[[Run], Iterable[Run]] | None = None,
    parallel: int = 1,
) -> Iterator[Trajectory]:
    """Drive runs side by side, all their queries of a round in one retriever call.

    Args:
        runs: fresh runs.
        retriever: answers their queries.
        k: documents a query.
        after_search: called with each run after each of its searches; the runs that it returns (forks) are
            driven too, but not passed to it.
        parallel: runs that take in their results at a time, in threads: worth it where they wait for a language
            model. Nothing that runs share may then depend on who comes first.

    Yields:
        The trajectories of `runs` in their order, then those of the forks in the order of their making.
    """
    driven = list(runs)
    forks: list[Run] = []
    waiting = [run for run in driven if run.queries]
    known = {id(run) for run in driven}
    with SideBySide(parallel) as side:
        while waiting:
            queries = tuple(dict.fromkeys(query for run in waiting for query in run.queries))
            started = time.perf_counter()
            found = dict(zip(queries, retriever.search(queries, k), strict=True))
            each = (time.perf_counter() - started) / sum(len(run.queries) for run in waiting)
            for run in waiting:
                run.search_seconds += each * len(run.queries)
            results = [[found[query] for query in run.queries] for run in waiting]
            side.map(lambda pair: pair[0].receive(pair[1]), zip(waiting, results, strict=True))
            made: list[Run] = []
            if after_search is not None:
                for some in side.map(after_search, (run for run in waiting if id(run) in known)):
                    made.extend(some)
            forks.extend(made)
            waiting = [run for run in (*waiting, *made) if run.queries]
    for run in (*driven, *forks):
        yield run.trajectory


def _cost(turn: Turn) -> dict[str, Any]:
    return {"tokens_in": turn.tokens_in, "tokens_out": turn.tokens_out, "seconds": turn.seconds}


def _merge(results: Sequence[Sequence[Document]]) -> tuple[Document, ...]:
    """The documents of a turn's queries, each once, best ranks first."""
    ranked = sorted((document for found in results for document in found), key=lambda document: document.rank or 0)
    first: dict[str, Document] = {}
    for document in ranked:
        first.setdefault(document.id, document)
    return tuple(first.values())
