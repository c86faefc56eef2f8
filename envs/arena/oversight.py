"""A controller in the closed loop: signals in, decisions out, and a rethinker's search when it intervenes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from stopwise.controllers.base import RunSoFar
from stopwise.controllers.session import ControlSession, run_seed
from stopwise.data.corpus import Query
from stopwise.data.records import Action, Step
from stopwise.envs.arena.loop import Injection, Verdict
from stopwise.envs.arena.rethinkers import Rethinker
from stopwise.models.chat import Purpose
from stopwise.models.meter import Meter, Spent, metering
from stopwise.signals.tracker import SignalRow, SignalTracker


class ControllerOverseer:
    """Runs one controller session over one run; the same tracker and session as in replay and in the live agent.

    At the agent's attempt to answer, the run is judged by what the last search showed: with `min_coverage`, an attempt
    below that coverage is refused while the guards allow an intervention; without it, every attempt is let through,
    as in a replayed log.

    Args:
        session: of this run alone.
        tracker: fresh, for this question.
        rethinker: makes the search of an intervention.
        run_id: the trajectory's id; seeds the session as a replay does, so that both draw the same numbers.
        seed: of the evaluation.
        min_coverage: in [0, 1]; None lets every attempt through.

    Attributes:
        signals: what the tracker took, with the calls of a judge of coverage; embeddings that a cache had are free.
        rethinking: what the rethinker took, as wall-clock time where it asks no model.
    """

    def __init__(
        self,
        session: ControlSession,
        tracker: SignalTracker,
        rethinker: Rethinker,
        run_id: str,
        seed: int = 0,
        min_coverage: float | None = None,
    ) -> None:
        self.session = session
        self._tracker = tracker
        self._rethinker = rethinker
        self._run_id = run_id
        self._min_coverage = min_coverage
        self._observed = 0  # steps that the tracker has seen
        self._row: SignalRow | None = None  # after the last search
        self._refused = 0  # attempts that were refused
        self.signals = Spent()
        self.rethinking = Spent()
        session.begin(run_seed(seed, run_id))

    def after_search(self, question: Query, steps: Sequence[Step]) -> Verdict:
        """Observe what is new, and decide."""
        with _taking("coverage") as took:
            for step in steps[self._observed :]:
                row = self._tracker.observe(step)
                self._row = row if row is not None else self._row
        self.signals += took()
        self._observed = len(steps)
        assert self._row is not None
        controller = self.session.controller
        run = RunSoFar(question.text, tuple(steps), question.id) if controller.reads_text else None
        with metering(Meter()):  # the session counts the controller's calls itself
            decision = self.session.decide(self._row, run=run)
        injection = guidance = None
        if decision.action is Action.INTERVENE:
            injection = self._propose(question, steps)
            if controller.guides and decision.message and injection is not None:
                guidance = decision.message
                injection = guided(injection, guidance)
        return Verdict(decision.action, decision.probabilities[decision.action], injection, guidance)

    def at_attempt(self, question: Query, steps: Sequence[Step], answer: str | None) -> Verdict:
        """Refuse an attempt that is not covered, as often as the guards allow interventions in all."""
        coverage = None if self._row is None else self._row.values.get("Cov")
        used = self.session.counts.interventions + self._refused
        if (
            self._min_coverage is None
            or coverage is None
            or coverage >= self._min_coverage
            or used >= self.session.guards.max_interventions
        ):
            return Verdict(Action.STOP, 1.0)
        self._refused += 1
        return Verdict(Action.INTERVENE, 1.0, self._propose(question, steps))

    def _propose(self, question: Query, steps: Sequence[Step]) -> Injection | None:
        with _taking("rethinker") as took:
            injection = self._rethinker.propose(question, steps, self._run_id)
        self.rethinking += took()
        return injection


@contextmanager
def _taking(purpose: Purpose) -> Iterator[Callable[[], Spent]]:
    """What is done in here takes the time that passes, or that its calls took when they were made, if that is more."""
    started = time.perf_counter()
    with metering(Meter()) as meter:
        yield lambda: replace(meter.of(purpose), seconds=max(passed, meter.of(purpose).seconds))
    passed = time.perf_counter() - started


def guided(injection: Injection, suggestion: str) -> Injection:
    """The injection with a controller's suggestion before its thought: what the agent goes on from ([DS-MCM] eq. 18).

    An agent that a language model drives reads it; a scripted one reads no thoughts: the search alone steers it.
    """
    thought = f"{suggestion} {injection.turn.thought}".strip()
    return replace(injection, turn=replace(injection.turn, thought=thought))


MakeOverseer = Callable[[Query, str], ControllerOverseer]  # (question, trajectory id) -> an overseer of that run alone
