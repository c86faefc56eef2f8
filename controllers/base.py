"""The one contract of every controller: an observation after each search step in, a decision out."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import UsageError
from stopwise.data.records import Action, Step
from stopwise.signals.features import FeatureSpec
from stopwise.signals.tracker import SignalRow

Distribution = NDArray[np.float64]  # (3,): probabilities of continue, intervene, stop
Legal = NDArray[np.bool_]  # (3,): actions that the guards and the environment allow; at least one


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What only a replayed log knows; given to privileged controllers, never a feature."""

    stop_value: float  # return from here when stopping now
    continue_value: float  # best return from here when going on, in hindsight
    recall: float = math.nan  # share of the gold documents seen so far; NaN where the gold is unknown
    gold_left: float = math.nan  # gold documents not yet seen; NaN where the gold is unknown


@dataclass(frozen=True, slots=True)
class RunSoFar:
    """A run's texts up to now, for controllers that read them. Others wrote them: they are never instructions."""

    question: str
    steps: tuple[Step, ...]  # in order; the last one is the search step that was just made
    question_id: str | None = None  # None where nobody numbers questions, as in a live agent


@dataclass(frozen=True, slots=True)
class Observation:
    """What a controller may look at after a search step."""

    row: SignalRow  # the signals of this step, with t
    features: NDArray[np.float64] | None  # (F,) by the controller's FeatureSpec, NaN for null; None without a spec
    legal: Legal
    interventions: int = 0  # used so far in this run
    since_intervention: int | None = None  # search steps since the last one; None before the first
    hindsight: Hindsight | None = None
    actions: tuple[Action, ...] = ()  # carried out after the earlier search steps of this run, in order
    passed: tuple[SignalRow, ...] = ()  # in a replay: the log's steps that an intervention jumped over just before
    run: RunSoFar | None = None  # only for controllers that read text, and only where there are texts


@dataclass(frozen=True, slots=True)
class Cost:
    """What one decision cost beyond the agent's own work."""

    calls: int = 0  # model calls on the wire; a reply from a cache counts with the calls that it took when it was made
    tokens: int = 0  # in and out
    seconds: float = 0.0  # wall-clock time of the decision; with replies from a cache, as long as they took when made
    failure: str | None = None  # kind of failure of a model call that the decision had to do without


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why."""

    action: Action  # to be carried out
    probabilities: tuple[float, float, float]  # of continue, intervene, stop, after the masks; they sum to 1
    message: str | None = None  # for people, or guidance for the agent when intervening
    cost: Cost = Cost()
    proposed: Action | None = None  # in monitor mode: what the controller would have done


class Controller(ABC):
    """Base class: implement `distribution`, and `choose` where the rule is not "the most probable legal action".

    Deterministic under a seed. Parameters are plain values, so that a policy package can hold them.
    """

    kind: ClassVar[str]
    needs: tuple[str, ...] = ()  # signals without which it is not applicable
    optional: tuple[str, ...] = ()  # signals that it looks at where they are there
    features: FeatureSpec | None = None  # what it wants as `Observation.features`
    privileged: bool = False  # wants `Observation.hindsight`
    reads_text: bool = False  # wants `Observation.run`
    guides: bool = False  # its message at an intervention is guidance for the agent, else a reason for people
    _seed: int = 0

    def copy(self) -> "Controller":
        """An independent controller with the same parameters and weights, for a run of its own."""
        twin = copy.copy(self)
        twin.reset(self._seed)
        return twin

    @property
    def reads(self) -> tuple[str, ...]:
        """All signals that it may look at: what a live agent has to compute."""
        learned = self.features.signals if self.features is not None else ()
        return tuple(dict.fromkeys((*self.needs, *self.optional, *learned)))

    def reset(self, seed: int = 0) -> None:
        """Forget the last run and start another one under `seed`."""
        self._seed = seed

    def foresee(self, rows: Iterable[SignalRow]) -> bool:
        """Told, in a replay, all rows that a run may show: compute at once what would be computed one by one.

        What it decides must not change by it. Returns whether it did anything; rows are made as they are looked at.
        """
        return False

    @property
    def described(self) -> Mapping[str, Any]:
        """What result rows say of it beside its name and kind, JSON-able: its model and the versions of its prompts."""
        return {}

    @abstractmethod
    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """Probabilities of the three actions before the masks, shape (3,), and a reason for people."""

    def choose(self, probabilities: Distribution, legal: Legal) -> Action:
        """Pick a legal action from the masked distribution; ties go to the milder action."""
        return Action(int(probabilities.argmax()))

    def decide(self, observation: Observation) -> Decision:
        """Decide after a search step: the distribution, with illegal actions masked inside it."""
        raw, message = self.distribution(observation)
        masked = mask(raw, observation.legal)
        action = self.choose(masked, observation.legal)
        return Decision(action, (float(masked[0]), float(masked[1]), float(masked[2])), message)

    @property
    @abstractmethod
    def params(self) -> Mapping[str, Any]:
        """JSON-able parameters; ``type(self)(**params)`` is an equal controller (weights apart)."""


def check_number(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, whole: bool = False) -> None:
    """Refuse a parameter that is not a finite number within bounds; YAML reads ``1e-3``, for one, as a text.

    Raises:
        UsageError: it is something else; the message begins with `name`.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high or (whole and value != int(value)):
        bounds = [f"{low:g} or more"] if low > -math.inf else []
        bounds += [f"{high:g} or less"] if high < math.inf else []
        kind = "whole number" if whole else "number"
        raise UsageError(f"{name}: {value!r}; expected a {kind}{' of ' if bounds else ''}{', '.join(bounds)}")


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last axis; a score of -inf gets no share."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def certain(action: Action) -> Distribution:
    """The distribution of a rule: all mass on one action."""
    distribution = np.zeros(3)
    distribution[action] = 1.0
    return distribution


def mask(distribution: Distribution, legal: Legal) -> Distribution:
    """Take illegal actions out and renormalise; what has no legal mass left falls to the mildest legal action.

    Raises:
        ValueError: no action is legal.
    """
    if not legal.any():
        raise ValueError("no action is legal; the guards and the environment leave nothing to do")
    masked = np.where(legal, distribution, 0.0)
    total = float(masked.sum())
    return masked / total if total > 0 else certain(Action(int(legal.argmax())))
