"""Logged runs as a Minari dataset: what a controller saw, what was done, and what it was worth, for offline RL.

An episode is one run played through `ReplayEnv` with the actions that really happened, so observations, rewards,
terminations and truncations are those of the environment. With T decisions it holds T + 1 observations (the last one is
that of the last decision again: what a run's end shows is not known to a controller), T actions, rewards and flags.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Action, Trajectory
from stopwise.data.splits import split_of
from stopwise.envs.interventions import Noop
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import SignalTable


@dataclass(frozen=True, slots=True)
class DecisionEpisode:
    """One run with T decisions."""

    trajectory: str
    question: str
    agent: str | None
    split: str
    observations: NDArray[np.float32]  # (T + 1, 2F + 2), as `ReplayEnv` shows them
    actions: NDArray[np.int64]  # (T,), values of `Action`
    rewards: NDArray[np.float64]  # (T,)
    terminations: NDArray[np.bool_]  # (T,)
    truncations: NDArray[np.bool_]  # (T,)
    propensities: NDArray[np.float64]  # (T,), of the logged controller's choice; NaN where none was logged


@dataclass(slots=True)
class ExportReport:
    """What was written and what was left out; filled while the episodes stream through."""

    episodes: int = 0
    decisions: int = 0
    without_search: int = 0  # nothing to decide
    without_gold: int = 0  # recall is paid for, and unknown
    without_verdict: int = 0  # a correct answer is paid for, and nobody judged it


def happened(run: Trajectory) -> tuple[list[Action], list[float]]:
    """The action that was carried out after each search step, with its propensity (NaN: not logged).

    Without a controller a run continues throughout: past the last search step its own answer, or a limit, ends it. A
    stop that searches followed was advice that nobody took, and an intervention at the agent's attempt to answer is
    one after the search before it.
    """
    actions: list[Action] = []
    propensities: list[float] = []
    for step in run.steps:
        if step.kind == "search":
            actions.append(step.logged_action if step.logged_action is not None else Action.CONTINUE)
            propensities.append(float("nan") if step.propensity is None else step.propensity)
        elif actions and step.logged_action is Action.INTERVENE and actions[-1] is not Action.INTERVENE:
            actions[-1], propensities[-1] = Action.INTERVENE, float("nan")  # of both choices, only one is logged
    for index, action in enumerate(actions[:-1]):
        if action is Action.STOP:
            actions[index], propensities[index] = Action.CONTINUE, float("nan")
    return actions, propensities


def decision_episodes(
    table: SignalTable, runs: Iterable[Trajectory], features: FeatureSpec, reward: Reward, report: ExportReport
) -> Iterator[DecisionEpisode]:
    """Stream the episodes of a table.

    Runs without a decision are left out, and so are those whose worth is not known under `reward`; the report counts
    them. A logged stop is worth the run's own verdict where there is one, and else what the probe there says.

    Args:
        table: signals of the runs.
        runs: the runs that the table was computed from, in the same order.
        features: what an observation holds.
        reward: weights and prices.
        report: is filled.

    Raises:
        DataError: the runs are not those of the table, or it has no decision at all.
        UsageError: the features are privileged.
    """
    env = ReplayEnv(table, features, reward=reward, intervention=Noop())  # a logged intervention's outcome is the log's
    for index, run in _matched(table, runs):
        episode = table.episodes[index]
        actions, propensities = happened(run)
        if not actions:
            report.without_search += 1
        elif reward.recall and not table.has_gold[index]:
            report.without_gold += 1
        elif reward.correct and episode.ended_by == "answer" and np.isnan(episode.correct):
            report.without_verdict += 1
        else:
            report.episodes += 1
            report.decisions += len(actions)
            yield _played(env, index, actions, propensities)


def _matched(table: SignalTable, runs: Iterable[Trajectory]) -> Iterator[tuple[int, Trajectory]]:
    count = 0
    for count, run in enumerate(runs, 1):
        index = count - 1
        if index >= len(table) or (run.id, len(run.search_steps)) != (table.episodes[index].id, table.lengths[index]):
            raise DataError(f"run {count} of the logs, {run.id!r}, is another in the signals; compute them again")
        yield index, run
    if count != len(table):
        raise DataError(f"the signals are of {len(table)} runs, the logs hold {count}; compute the signals again")


def _played(env: ReplayEnv, index: int, actions: list[Action], propensities: list[float]) -> DecisionEpisode:
    episode = env.table.episodes[index]
    observations = [env.reset(options={"episode": index})[0]]
    rewards: list[float] = []
    flags: list[tuple[bool, bool]] = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        if action is Action.STOP and not np.isnan(episode.correct):
            reward += env.reward.correct * episode.correct - info["reward"]["correct"]
        observations.append(observation)
        rewards.append(reward)
        flags.append((terminated, truncated))
    ends = np.array(flags, dtype=bool)
    return DecisionEpisode(
        trajectory=episode.id,
        question=episode.question_id,
        agent=episode.agent,
        split=split_of(episode.question_id),
        observations=np.stack(observations),
        actions=np.array(actions, dtype=np.int64),
        rewards=np.array(rewards),
        terminations=ends[:, 0],
        truncations=ends[:, 1],
        propensities=np.array(propensities),
    )


def write_minari(
    folder: Path,
    episodes: Iterable[DecisionEpisode],
    *,
    name: str,
    table: SignalTable,
    features: FeatureSpec,
    reward: Reward,
) -> int:
    """Write a Minari dataset below an existing folder, as ``data/``; returns the number of episodes.

    ``infos["propensity"]`` holds the propensities (T,). An episode's metadata holds ``trajectory``, ``question``,
    ``split`` and ``agent`` (empty: not logged), the dataset's holds the features' names, the reward and the hash of the
    logs under ``stopwise``, as JSON.

    Raises:
        UsageError: minari is not installed.
    """
    try:
        from minari import __version__ as minari_version
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError:
        raise UsageError("convert --to minari: minari is not installed; pip install 'stopwise[minari]'") from None

    data = folder.absolute() / "data"  # Minari would join a relative one to itself
    storage = MinariStorage.new(
        data,
        observation_space=Box(-np.inf, np.inf, (2 * len(features) + 2,), np.float32),
        action_space=Discrete(3),
        data_format="hdf5",
    )
    metadata: list[dict[str, str]] = []

    def buffers() -> Iterator[Any]:
        for number, episode in enumerate(episodes):
            metadata.append(
                {
                    "trajectory": episode.trajectory,
                    "question": episode.question,
                    "split": episode.split,
                    "agent": episode.agent or "",
                }
            )
            yield EpisodeBuffer(
                id=number,
                observations=episode.observations,  # pyright: ignore[reportArgumentType] - arrays are taken as they are
                actions=episode.actions,  # pyright: ignore[reportArgumentType]
                rewards=episode.rewards,  # pyright: ignore[reportArgumentType]
                terminations=episode.terminations,  # pyright: ignore[reportArgumentType]
                truncations=episode.truncations,  # pyright: ignore[reportArgumentType]
                infos={"propensity": episode.propensities},
            )

    storage.update_episodes(buffers())
    storage.update_episode_metadata(metadata)
    origin = {
        "features": features.names,
        "signals": features.signals,
        "reward": asdict(reward),
        "logs_sha256": table.info.logs_sha256,
    }
    storage.update_metadata(
        {
            "dataset_id": name,
            "minari_version": minari_version,
            "algorithm_name": "logged controllers",
            "description": "Decisions of logged deep-search runs: after each search 0 continue, 1 intervene or 2 stop. "
            "Observations: features (null as 0), their masks, interventions used, steps since the last one.",
            "stopwise": json.dumps(origin),
        }
    )
    return len(metadata)
