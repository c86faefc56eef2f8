"""One controller on one run: features, guards, counting and failing open, the same in replay, arena and live agent."""

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller, Decision, Hindsight, Observation, RunSoFar
from stopwise.controllers.guards import Guards
from stopwise.data.errors import UsageError
from stopwise.data.records import Action
from stopwise.signals.features import FeatureBuilder
from stopwise.signals.tracker import SignalRow


@dataclass(slots=True)
class Counts:
    """What a session has done so far."""

    decisions: int = 0
    interventions: int = 0
    calls: int = 0  # model calls of the controller
    tokens: int = 0
    seconds: float = 0.0  # wall-clock time of all decisions
    foreseen: bool = False  # the run was computed at once: `seconds` says nothing of one decision
    failures: int = 0  # decisions that failed and became continue, or did without a model's reply that failed
    last_failure: str | None = None
    failure_kinds: dict[str, int] = field(default_factory=dict)  # of these failures


class ControlSession:
    """Runs a controller over the search steps of one run."""

    def __init__(
        self,
        controller: Controller,
        guards: Guards = Guards(),
        *,
        can_intervene: bool = True,
        mode: Literal["act", "monitor"] = "act",
        fail_open: bool = False,
    ) -> None:
        """Put guards around a controller.

        Args:
            controller: it is reset by `begin`, so one object serves many runs in turn.
            guards: limits that hold whatever it says.
            can_intervene: whether interventions are possible here.
            mode: "monitor" decides and reports but always continues.
            fail_open: a failing controller must not break the agent: count it and continue. Off in evaluation.
        """
        if mode not in ("act", "monitor"):
            raise UsageError(f"mode {mode!r}; expected act or monitor")
        self.controller = controller
        self.guards = guards
        self._can_intervene = can_intervene
        self._mode = mode
        self._fail_open = fail_open
        self.begin()

    def begin(self, seed: int = 0) -> None:
        """Start a new run."""
        self.controller.reset(seed)
        self.counts = Counts()
        self._since_intervention: int | None = None
        self._actions: list[Action] = []  # carried out
        spec = self.controller.features
        self._builder = FeatureBuilder(spec) if spec is not None else None

    def foresee(self, rows: Iterable[SignalRow]) -> None:
        """Tell the controller, in a replay, all rows that the run may show; its time counts as that of decisions."""
        started = time.perf_counter()
        self.counts.foreseen = self.controller.foresee(rows)
        self.counts.seconds += time.perf_counter() - started

    def decide(
        self,
        row: SignalRow,
        hindsight: Hindsight | None = None,
        *,
        can_intervene: bool | None = None,
        features: NDArray[np.float64] | None = None,
        passed: tuple[SignalRow, ...] = (),
        run: RunSoFar | None = None,
    ) -> Decision:
        """Decide after a search step, and count.

        Args:
            row: the signals of the step.
            hindsight: where it is known; handed to privileged controllers only.
            can_intervene: False rules interventions out for this step alone.
            features: of this step, where a replay that jumps knows them; None: of the rows that were decided on.
            passed: the log's steps that an intervention jumped over since the last decision, in a replay.
            run: the texts so far; handed only to controllers that read them, so that no other can be steered by them.
        """
        started = time.perf_counter()
        counts = self.counts
        if self._since_intervention is not None:
            self._since_intervention += 1
        legal = self.guards.legal(
            row.t,
            counts.interventions,
            self._since_intervention,
            can_intervene=self._can_intervene and can_intervene is not False,
        )
        try:
            observation = Observation(
                row=row,
                features=self._builder.push(row) if features is None and self._builder is not None else features,
                legal=legal,
                interventions=counts.interventions,
                since_intervention=self._since_intervention,
                hindsight=hindsight if self.controller.privileged else None,
                actions=tuple(self._actions),
                passed=passed,
                run=run if self.controller.reads_text else None,
            )
            decision = self.controller.decide(observation)
        except Exception as error:
            if not self._fail_open:
                raise
            self._failed(type(error).__name__, f"{type(error).__name__}: {error}")
            mildest = Action(int(legal.argmax()))
            shares = (float(mildest == 0), float(mildest == 1), float(mildest == 2))
            decision = Decision(mildest, shares, f"controller failed and was passed over ({counts.last_failure})")
        if decision.cost.failure is not None:
            self._failed(decision.cost.failure, decision.message or decision.cost.failure)
        # a reply from a cache took longer when it was made: what a controller costs must not depend on a cache
        seconds = max(time.perf_counter() - started, decision.cost.seconds)
        decision = replace(decision, cost=replace(decision.cost, seconds=seconds), proposed=decision.action)
        if self._mode == "monitor":
            decision = replace(decision, action=Action.CONTINUE)
        counts.decisions += 1
        counts.calls += decision.cost.calls
        counts.tokens += decision.cost.tokens
        counts.seconds += seconds
        self._actions.append(decision.action)
        if decision.action is Action.INTERVENE:
            counts.interventions += 1
            self._since_intervention = 0
        return decision

    def _failed(self, kind: str, message: str) -> None:
        self.counts.failures += 1
        self.counts.last_failure = message
        self.counts.failure_kinds[kind] = self.counts.failure_kinds.get(kind, 0) + 1


def run_seed(seed: int, trajectory_id: str) -> int:
    """The seed of a run under an evaluation's seed; every controller meets the same one."""
    digest = hashlib.sha256(f"{seed}/{trajectory_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big")
