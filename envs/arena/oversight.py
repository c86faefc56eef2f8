"""A controller in the closed loop: signals in, decisions out, and a rethinker's search when it intervenes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from stopwise.controllers.base import RunSoFar
from stopwise.controllers.session import ControlSession, run_seed
from stopwise.data.corpus import Query
from stopwise.data.records import Action, Step
from stopwise.envs.arena.loop import Injection, Verdict
from stopwise.envs.arena.rethinkers import Rethinker
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
        session.begin(run_seed(seed, run_id))

    def after_search(self, question: Query, steps: Sequence[Step]) -> Verdict:
        """Observe what is new, and decide."""
        for step in steps[self._observed :]:
            row = self._tracker.observe(step)
            self._row = row if row is not None else self._row
        self._observed = len(steps)
        assert self._row is not None
        controller = self.session.controller
        run = RunSoFar(question.text, tuple(steps), question.id) if controller.reads_text else None
        decision = self.session.decide(self._row, run=run)
        injection = guidance = None
        if decision.action is Action.INTERVENE:
            injection = self._rethinker.propose(question, steps, self._run_id)
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
        return Verdict(Action.INTERVENE, 1.0, self._rethinker.propose(question, steps, self._run_id))


def guided(injection: Injection, suggestion: str) -> Injection:
    """The injection with a controller's suggestion before its thought: what the agent goes on from ([DS-MCM] eq. 18).

    An agent that a language model drives reads it; a scripted one reads no thoughts: the search alone steers it.
    """
    thought = f"{suggestion} {injection.turn.thought}".strip()
    return replace(injection, turn=replace(injection.turn, thought=thought))


MakeOverseer = Callable[[Query, str], ControllerOverseer]  # (question, trajectory id) -> an overseer of that run alone
