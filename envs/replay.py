"""ReplayEnv: logged runs as a Gymnasium environment in which a controller says continue, intervene or stop."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from stopwise.controllers.base import Hindsight
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.hindsight import hidden_state, hindsight_values
from stopwise.envs.interventions import End, Forbidden, InterventionModel, Place
from stopwise.envs.rewards import Reward, run_values
from stopwise.signals.features import FeatureSpec, build_features, check_privilege
from stopwise.signals.table import SignalTable
from stopwise.signals.tracker import SignalRow

Vector = NDArray[np.float32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What a replayed run came to; NaN where unknown."""

    stopped_at: int | None  # search step after which it was stopped; None: it ran to its own end
    recall: float
    documents_seen: float
    relevant_seen: float
    correct: float  # exact only: the run's own answer at its end, or a probed prefix
    visible: float  # proxy: the reference answer stands in what was seen
    cut: bool  # ran on to a log that was cut, or does not say how it ended


def end_of_log(table: SignalTable, episode: int) -> RunEnd:
    """The end of a run that nobody stopped."""
    run = table.episodes[episode]
    answered = run.ended_by == "answer"
    correct = run.correct if answered else float("nan")
    return RunEnd(None, run.final_recall, run.final_seen, run.final_relevant, correct, run.final_visible, not answered)


@dataclass(frozen=True)
class _Course:
    """Runs as they lie ahead: a table with what the environment looks up in it."""

    table: SignalTable
    features: Floats  # (N, F), NaN for null
    recall: Floats  # (N,), 0 without gold
    gain_next: Floats  # (N,)
    stop_value: Floats  # (N,)
    end_value: Floats  # (E,)
    reward: Reward

    @classmethod
    def of(cls, table: SignalTable, features: FeatureSpec, reward: Reward) -> "_Course":
        values = run_values(table, reward)
        recall = np.nan_to_num(table.label("recall"))
        built = build_features(table, features)
        return cls(table, built, recall, values.gain_next, values.stop_value, values.end_value, reward)

    @cached_property
    def _built(self) -> dict[FeatureSpec, Floats]:
        return {}

    def built(self, spec: FeatureSpec) -> Floats:
        """Features (N, F) by another spec, computed once."""
        if spec not in self._built:
            self._built[spec] = build_features(self.table, spec)
        return self._built[spec]

    @cached_property
    def hindsight(self) -> tuple[Floats, Floats]:
        """Values of stopping and continuing in hindsight, shape (N,) each."""
        return hindsight_values(self.table, self.reward)

    @cached_property
    def hidden(self) -> Floats:
        """The state that only a log with gold knows, shape (N, 2): see `hidden_state`."""
        return hidden_state(self.table)


class ReplayEnv(gymnasium.Env[Vector, np.int64]):
    """One episode is one logged run; the first observation is that after its first search step.

    - **continue** goes to the next search step of the log; past the last one the agent's own answer ends the run.
    - **stop** ends it: *answer now from what you have*.
    - **intervene** does what the intervention model says; where it is not available it is carried out as continue,
      and ``info["action"]`` says so. ``info["action_mask"]`` holds what is available.

    An observation holds the features (null as 0), then their masks, then interventions used and steps since the last
    one (0 before the first): float32, shape (2F + 2,). The run's length and its gold are not in it.

    The agent answered or the controller stopped: ``terminated``. The log was cut (by a budget or an error), or does
    not say how it ended: ``truncated``. Runs without a search step have no decision and are left out.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own convention

    def __init__(
        self,
        table: SignalTable,
        features: FeatureSpec,
        *,
        reward: Reward = Reward(),
        intervention: InterventionModel = Forbidden(),
        privileged: bool = False,
    ) -> None:
        """Set up over the runs of a table.

        Args:
            table: signals and labels of logged runs.
            features: what an observation holds.
            reward: weights and prices.
            intervention: what intervening does.
            privileged: allow coverage judged by gold among the features.

        Raises:
            DataError: no run has a search step, or the table lacks a signal.
            UsageError: the features are privileged and that was not allowed.
        """
        check_privilege(features, table.info.config, privileged=privileged)
        self._runs = np.flatnonzero(table.lengths > 0)
        if len(self._runs) == 0:
            raise DataError("replay: no run has a search step; there is nothing to decide")
        self.table = table
        self.reward = reward
        self.intervention = intervention
        self._spec = features
        self._log = _Course.of(table, features, reward)
        self.action_space = Discrete(3)
        self.observation_space = Box(-np.inf, np.inf, (2 * len(features) + 2,), np.float32)
        self._row: int | None = None

    @property
    def episode_count(self) -> int:
        """Number of runs with at least one decision."""
        return len(self._runs)

    @property
    def signal_row(self) -> SignalRow:
        """The signals of the current step, for controllers of this package; a copy."""
        return self._course.table.row(self._current)

    def features_by(self, spec: FeatureSpec) -> Floats:
        """A controller's features at the current step, shape (F,), NaN for null: of all the log's steps up to here.

        An intervention may have jumped over some of them, or stayed at one: what is seen at a step does not depend on
        how the run got there.
        """
        return self._course.built(spec)[self._current].copy()

    @property
    def passed_over(self) -> tuple[SignalRow, ...]:
        """The log's search steps that the last intervention jumped over, in order; copies."""
        return tuple(self._course.table.row(row) for row in self._passed)

    @property
    def can_intervene(self) -> bool:
        """Whether intervening has an outcome at the current step."""
        return self.intervention.available and self.intervention.allows(self._place)

    @property
    def hindsight(self) -> Hindsight:
        """What privileged controllers may know at the current step; NaN in a run whose gold is unknown."""
        row = self._current
        if not self._course.table.has_gold[self._index]:
            return Hindsight(float("nan"), float("nan"))
        stop, going_on = self._course.hindsight
        recall, gold_left = self._course.hidden[row]
        return Hindsight(float(stop[row]), float(going_on[row]), float(recall), float(gold_left))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Start a run: a random one, or ``options={"episode": index}`` of the table.

        Raises:
            UsageError: that run does not exist or has no search step.
        """
        super().reset(seed=seed)
        chosen = (options or {}).get("episode")
        if chosen is None:
            chosen = self._runs[self.np_random.integers(len(self._runs))]
        known = isinstance(chosen, int | np.integer) and 0 <= chosen < len(self.table)
        if not known or self.table.lengths[chosen] == 0:
            raise UsageError(f"replay: episode {chosen!r} does not exist or has no search step")
        self._course = self._log
        self._index = int(chosen)
        self._row = int(self.table.offsets[self._index])
        self._searches: float = 1
        self._passed = range(0)
        self._interventions = 0
        self._since: int | None = None
        return self._observe(), self._info({}, None, None)

    def step(self, action: int | np.integer[Any]) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Carry out an action; the reward's terms are in ``info["reward"]``.

        Raises:
            UsageError: the run is over, or the action is none of 0, 1, 2.
        """
        row = self._current
        try:
            done = Action(operator.index(action))
        except (TypeError, ValueError):
            raise UsageError(f"replay: action {action!r}; expected 0 (continue), 1 (intervene) or 2 (stop)") from None
        if done is Action.INTERVENE and not self.can_intervene:
            done = Action.CONTINUE
        terms = {"controller": -self.reward.controller}
        ended_by: str | None = None
        self._passed = range(0)
        if done is Action.INTERVENE:
            terms["intervention"] = -self.reward.intervention
            self._interventions += 1
            self._since = 0
        if done is Action.STOP:
            terms["correct"] = float(self._course.stop_value[row])
            ended_by = "stop"
            self.end = self._end_at(row, stopped=True)
        else:
            effect = self.intervention.intervene(self._place, self.np_random) if done is Action.INTERVENE else None
            if effect is None:
                ended_by = self._go_on(row, terms)
            elif effect.end is not None:
                ended_by = self._end_by(row, effect.end, terms)
            else:
                self._move(row, effect.row, effect.table, terms)
        terminated = ended_by in ("stop", "answer", "branch")
        truncated = ended_by is not None and not terminated
        observation = self._observe()
        info = self._info(terms, done, ended_by)
        if ended_by is not None:
            self._row = None
        return observation, float(sum(terms.values())), terminated, truncated, info

    def _go_on(self, row: int, terms: dict[str, float]) -> str | None:
        """The log's next search step, or past the last one the run's own end; returns what ended it."""
        course = self._course
        terms["recall"] = self.reward.recall * float(course.gain_next[row])
        if row + 1 < course.table.offsets[self._index + 1]:
            self._row = row + 1
            self._searched(terms)
            return None
        terms["correct"] = float(course.end_value[self._index])
        self.end = self._end_at(row, stopped=False)
        return course.table.episodes[self._index].ended_by

    def _move(self, row: int, target: int, table: SignalTable | None, terms: dict[str, float]) -> None:
        """Where an intervention has led: another row, or a rewritten run."""
        before = self._course.recall[row]
        if table is not None:
            self._course, self._index = _Course.of(table, self._spec, self.reward), 0
        self._passed = range(row + 1, target) if table is None else range(0)
        self._row = target
        terms["recall"] = self.reward.recall * float(self._course.recall[target] - before)
        self._searched(terms)

    def _end_by(self, row: int, end: End, terms: dict[str, float]) -> str:
        """An intervention that ends the run as its branches ended."""
        terms["recall"] = self.reward.recall * float(np.nan_to_num(end.recall_gain))
        terms["search"] = -self.reward.search * end.searches
        terms["correct"] = self.reward.correct * float(np.nan_to_num(end.correct))
        self._searches += end.searches
        recall = float(self._course.table.label("recall")[row]) + end.recall_gain
        nan = float("nan")
        self.end = RunEnd(None, recall, nan, nan, end.correct, nan, cut=False)
        return "branch"

    def _searched(self, terms: dict[str, float]) -> None:
        self._searches += 1
        if self._since is not None:
            self._since += 1
        terms["search"] = -self.reward.search

    def _end_at(self, row: int, *, stopped: bool) -> "RunEnd":
        table = self._course.table
        if not stopped:
            return end_of_log(table, self._index)
        recall = float(table.label("recall")[row])
        return RunEnd(
            stopped_at=int(table.turns[row]),
            recall=recall,
            documents_seen=float(table.label("documents_seen")[row]),
            relevant_seen=recall * table.episodes[self._index].gold,
            correct=float(table.label("probe_correct")[row]),
            visible=float(table.label("answer_visible")[row]),
            cut=False,
        )

    @property
    def _place(self) -> Place:
        return Place(self._course.table, self._index, self._current, self._course.features[self._current])

    @property
    def _current(self) -> int:
        if self._row is None:
            raise UsageError("replay: no run is under way; call reset() first")
        return self._row

    def _observe(self) -> Vector:
        features = self._course.features[self._current]
        there = ~np.isnan(features)
        state = [float(self._interventions), float(self._since or 0)]
        return np.concatenate([np.where(there, features, 0.0), there, state]).astype(np.float32)

    def _info(self, terms: Mapping[str, float], done: Action | None, ended_by: str | None) -> dict[str, Any]:
        table = self._course.table
        episode = table.episodes[self._index]
        available = self.can_intervene if ended_by is None else self.intervention.available
        return {
            "trajectory": episode.id,
            "question": episode.question_id,
            "t": int(table.turns[self._current]),
            "searches": self._searches,
            "interventions": self._interventions,
            "intervention_model": self.intervention.name,
            "action": None if done is None else int(done),
            "action_mask": np.array([1, int(available), 1], dtype=np.int8),
            "reward": dict(terms),
            "ended_by": ended_by,
        }
