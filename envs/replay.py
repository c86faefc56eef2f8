"""ReplayEnv: logged runs as a Gymnasium environment in which a controller says continue, intervene or stop."""

import operator
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from stopwise.controllers.base import Hindsight
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action
from stopwise.envs.hindsight import hindsight_values
from stopwise.envs.interventions import Forbidden, InterventionModel
from stopwise.envs.rewards import Reward, run_values
from stopwise.signals.features import FeatureSpec, build_features, check_privilege
from stopwise.signals.table import SignalTable
from stopwise.signals.tracker import SignalRow

Vector = NDArray[np.float32]


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
        self._features = build_features(table, features)
        self._values = run_values(table, reward)
        self._hindsight = hindsight_values(table, reward)
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
        return self.table.row(self._current)

    @property
    def hindsight(self) -> Hindsight:
        """What privileged controllers may know at the current step; NaN in a run whose gold is unknown."""
        row = self._current
        if not self.table.has_gold[self._episode]:
            return Hindsight(float("nan"), float("nan"))
        stop, going_on = self._hindsight
        return Hindsight(float(stop[row]), float(going_on[row]))

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
        self._episode = int(chosen)
        self._row = int(self.table.offsets[self._episode])
        self._searches = 1
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
        if done is Action.INTERVENE and not self.intervention.available:
            done = Action.CONTINUE
        terms = {"controller": -self.reward.controller}
        ended_by: str | None = None
        if done is Action.STOP:
            terms["correct"] = float(self._values.stop_value[row])
            ended_by = "stop"
        else:
            if done is Action.INTERVENE:
                self._interventions += 1
                self._since = 0
                terms["intervention"] = -self.reward.intervention
            terms["recall"] = self.reward.recall * float(self._values.gain_next[row])
            if row + 1 < self.table.offsets[self._episode + 1]:
                self._row = row + 1
                self._searches += 1
                if self._since is not None:
                    self._since += 1
                terms["search"] = -self.reward.search
            else:
                ended_by = self.table.episodes[self._episode].ended_by
                terms["correct"] = float(self._values.end_value[self._episode])
        terminated = ended_by in ("stop", "answer")
        truncated = ended_by is not None and not terminated
        observation = self._observe()
        info = self._info(terms, done, ended_by)
        if ended_by is not None:
            self._row = None
        return observation, float(sum(terms.values())), terminated, truncated, info

    @property
    def _current(self) -> int:
        if self._row is None:
            raise UsageError("replay: no run is under way; call reset() first")
        return self._row

    def _observe(self) -> Vector:
        features = self._features[self._current]
        there = ~np.isnan(features)
        state = [float(self._interventions), float(self._since or 0)]
        return np.concatenate([np.where(there, features, 0.0), there, state]).astype(np.float32)

    def _info(self, terms: Mapping[str, float], done: Action | None, ended_by: str | None) -> dict[str, Any]:
        episode = self.table.episodes[self._episode]
        return {
            "trajectory": episode.id,
            "question": episode.question_id,
            "t": int(self.table.turns[self._current]),
            "searches": self._searches,
            "interventions": self._interventions,
            "intervention_model": self.intervention.name,
            "action": None if done is None else int(done),
            "action_mask": np.array([1, int(self.intervention.available), 1], dtype=np.int8),
            "reward": dict(terms),
            "ended_by": ended_by,
        }
