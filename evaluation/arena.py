"""The benchmark in the arena: controllers in the closed loop, on the same questions with common random numbers.

The agents' own runs are the baseline. They become a signal table, so that the figures, the pairing by question and the
tests are those of the benchmark over logs; only here an intervention has a real outcome.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stopwise.controllers.session import ControlSession, Counts
from stopwise.data.corpus import Query
from stopwise.data.records import Action, Trajectory
from stopwise.envs.arena.kinds import AgentKind
from stopwise.envs.arena.loop import LoopConfig, Run, run_in_step
from stopwise.envs.arena.oversight import ControllerOverseer
from stopwise.envs.arena.population import scripted_run
from stopwise.envs.arena.puzzle import Reader
from stopwise.envs.arena.rethinkers import Rethinker
from stopwise.envs.arena.retrievers import Retriever
from stopwise.envs.interventions import intervention_model
from stopwise.envs.replay import ReplayEnv
from stopwise.envs.rewards import Reward
from stopwise.evaluation.benchmark import Arm, against, summarise
from stopwise.evaluation.rollout import RunOutcome
from stopwise.models.encoders import Encoder
from stopwise.signals.compute import compute_table, run_labels
from stopwise.signals.features import FeatureSpec
from stopwise.signals.table import SignalInfo
from stopwise.signals.tracker import SignalConfig, SignalTracker

INTERVENTION_MODEL = "arena"  # its name in result rows: nothing is modelled


@dataclass(frozen=True, slots=True)
class ArenaRun:
    """One run under a controller."""

    trajectory: Trajectory
    counts: Counts  # what the controller did and cost


@dataclass(frozen=True)
class ArenaSetting:
    """Where arms are run: agents, questions, a retriever, a rethinker."""

    kinds: tuple[AgentKind, ...]
    queries: tuple[Query, ...]
    reader: Reader
    retriever: Retriever
    loop: LoopConfig
    rethinker: Rethinker
    encoder: Encoder | None = None  # for signals that need one
    signals: Mapping[str, SignalInfo] = field(default_factory=dict)  # by arm; the defaults for others
    seed: int = 0
    group: int = 64  # runs side by side

    def __call__(self, arm: Arm | None) -> Iterator[ArenaRun]:
        """Run every agent once on every question; agent by agent, questions in their order."""
        jobs = [(kind, query) for kind in self.kinds for query in self.queries]
        for start in range(0, len(jobs), self.group):
            overseers: list[ControllerOverseer | None] = []
            runs: list[Run] = []
            for kind, query in jobs[start : start + self.group]:
                run_id = f"{self.loop.dataset}/{kind.name}/{query.id}/0"
                overseers.append(None if arm is None else self._overseer(arm, kind, query, run_id))
                runs.append(scripted_run(kind, query, self.reader, "0", self.loop, overseers[-1]))
            finished = run_in_step(runs, self.retriever, self.loop.k)
            for trajectory, overseer in zip(finished, overseers, strict=True):
                yield ArenaRun(trajectory, Counts() if overseer is None else overseer.session.counts)

    def _overseer(self, arm: Arm, kind: AgentKind, query: Query, run_id: str) -> ControllerOverseer:
        info = self.signals.get(arm.name)
        config = SignalConfig() if info is None else info.config
        reads = tuple(name for name in config.signals if name in arm.controller.reads) or ("Nov",)
        tracker = SignalTracker(
            replace(config, signals=reads),
            query.text,
            criteria=query.criteria,
            agent=kind.name,
            encoder=self.encoder,
            calibrations=None if info is None else {(name, source): line for name, source, line in info.calibrations},
        )
        session = ControlSession(arm.controller.copy(), arm.guards)
        return ControllerOverseer(session, tracker, self.rethinker, run_id, self.seed)


RunArm = Callable[[Arm | None], Iterable[ArenaRun]]  # None: the agents by themselves; always the same runs in order


def arena_benchmark(
    run_arm: RunArm, arms: Sequence[Arm], *, reward: Reward, seed: int = 0, margin: float = 0.01
) -> list[dict[str, Any]]:
    """Run every arm in the loop and lay out the rows, agents together and apart.

    Args:
        run_arm: runs all agents on all questions under an arm, in an order that does not depend on it.
        arms: controllers with their guards.
        reward: prices of the return.
        seed: of the bootstrap and of the permutation test.
        margin: recall that an arm may lose and still be called not inferior.

    Returns:
        JSON-able rows in the order of `arms`, each with ``by_agent``.

    Raises:
        ValueError: an arm came back with other runs than the baseline.
    """
    baseline = list(run_arm(None))
    logs = [run.trajectory for run in baseline]
    table = compute_table(lambda: iter(logs), SignalConfig(signals=("Nov",)), None)
    env = ReplayEnv(table, FeatureSpec(()), reward=reward, intervention=intervention_model("forbidden"))
    own = [outcome(number, run, reward) for number, run in enumerate(baseline)]
    agents = np.array([run.trajectory.agent for run in baseline])
    rows: list[dict[str, Any]] = []
    for arm in arms:
        runs = list(run_arm(arm))
        if [run.trajectory.id for run in runs] != [run.id for run in logs]:
            raise ValueError(f"arm {arm.name} came back with other runs than the baseline")
        outcomes = [outcome(number, run, reward) for number, run in enumerate(runs)]
        head = {"controller": arm.name, "kind": arm.controller.kind, "intervention_model": INTERVENTION_MODEL}
        rows.append(head | _figures(env, outcomes, own, seed, margin))
        by_agent: dict[str, Any] = {}
        for agent in dict.fromkeys(agents.tolist()):
            chosen = np.flatnonzero(agents == agent)
            part = ReplayEnv(
                table.select(chosen.tolist()), FeatureSpec(()), reward=reward, intervention=env.intervention
            )
            by_agent[agent] = _figures(
                part, [outcomes[index] for index in chosen], [own[index] for index in chosen], seed, margin
            )
        rows[-1]["by_agent"] = by_agent
    return rows


def _figures(
    env: ReplayEnv, outcomes: Sequence[RunOutcome], baseline: Sequence[RunOutcome], seed: int, margin: float
) -> dict[str, Any]:
    return summarise(env, outcomes) | {"versus_never_stop": against(env, outcomes, baseline, seed, margin)}


def outcome(number: int, run: ArenaRun, reward: Reward) -> RunOutcome:
    """What one run came to, in the terms of the benchmark over logs.

    Args:
        number: index of the run among all.
        run: the run and what its controller did.
        reward: prices; the first search and what it brought are not in the value, as in `ReplayEnv`.
    """
    trajectory = run.trajectory
    episode, _ = run_labels(trajectory)
    searches = trajectory.search_steps
    stopped = bool(searches) and searches[-1].logged_action is Action.STOP
    interventions = sum(step.logged_action is Action.INTERVENE for step in trajectory.steps)
    answered = trajectory.ended_by == "answer"
    correct = episode.correct if answered else float("nan")
    first = _recall(trajectory, 1)
    gain = 0.0 if np.isnan(episode.final_recall) else episode.final_recall - first
    value = (
        reward.recall * gain
        + reward.correct * (0.0 if np.isnan(correct) else correct)
        - reward.search * max(0, len(searches) - 1)
        - reward.intervention * interventions
        - reward.controller * len(searches)
    )
    return RunOutcome(
        episode=number,
        stopped_at=len(searches) if stopped else None,
        searches=len(searches),
        interventions=interventions,
        recall=episode.final_recall,
        documents_seen=episode.final_seen,
        relevant_seen=episode.final_relevant,
        correct=correct,
        visible=episode.final_visible,
        cut=not answered,
        value=value,
        seconds=run.counts.seconds,
        calls=run.counts.calls,
        tokens=run.counts.tokens,
        decisions=run.counts.decisions,
    )


def _recall(trajectory: Trajectory, searches: int) -> float:
    """Recall after so many searches; 0 without gold."""
    if not trajectory.gold_ids:
        return 0.0
    seen = {document.id for step in trajectory.search_steps[:searches] for document in step.documents}
    return len(seen & set(trajectory.gold_ids)) / len(trajectory.gold_ids)
