"""Branching: what each action is worth at states that real runs went through, by rolling all of them out.

At a state drawn with a known probability a run is forked: once to stop, and several times each to continue and to
intervene. After the action the agent goes on by itself to its own end. The rollouts of a state share their seeds
between actions (*common random numbers*), so that differences of actions are not drowned in luck.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import UsageError
from stopwise.data.records import Action, Step, Trajectory
from stopwise.envs.arena.chance import Chance
from stopwise.envs.arena.loop import Run, run_in_step
from stopwise.envs.arena.rethinkers import Rethinker
from stopwise.envs.arena.retrievers import Retriever


@dataclass(frozen=True, slots=True)
class BranchConfig:
    """How runs are forked."""

    probability: float = 0.1  # that a state is branched, independent of what happened
    rollouts: int = 4  # of continue and of intervene, each
    seed: int = 0
    common: bool = True  # rollouts of both actions share their seeds; False only to show what that is worth

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1 or self.rollouts < 1:
            raise UsageError(
                f"branch: probability {self.probability} and {self.rollouts} rollouts; "
                "expected a probability above 0 and at least one rollout"
            )


@dataclass(frozen=True, slots=True)
class BranchOutcome:
    """One rollout of one action at one state."""

    trajectory_id: str  # of the run that went through the state
    question_id: str
    agent: str
    t: int  # number of the search after which the action was taken, from 1
    action: Action
    rollout: int  # number of the seed; equal numbers at one state share it
    recall_before: float  # at the state; NaN without gold
    recall_gain: float  # from the state to the end; NaN without gold
    searches: int  # from the state to the end, the injected one included
    correct: bool | None  # the answer in the end
    propensity: float  # probability with which this state was branched


def branch(
    runs: Iterable[Run],
    retriever: Retriever,
    k: int,
    rethinker: Rethinker,
    config: BranchConfig,
    parallel: int = 1,
) -> tuple[list[Trajectory], list[BranchOutcome]]:
    """Drive runs to their end and branch them on the way.

    Args:
        runs: fresh and forkable (`LoopConfig.forkable`), without overseers.
        retriever: answers all queries.
        k: documents a query.
        rethinker: makes the search of every intervention.
        config: probability, rollouts, seed.
        parallel: as for `run_in_step`.

    Returns:
        The undisturbed runs, and the outcomes of all branches in the order of their states.
    """
    driven = list(runs)
    states: list[tuple[Run, int, list[Step], list[tuple[Action, int]]]] = []

    def fork(run: Run) -> list[Run]:
        t = run.searches
        if Chance(f"branch/{config.seed}/{run.id}").uniform(t) >= config.probability:
            return []
        steps = list(run.steps_at_search)
        injection = rethinker.propose(run.query, steps, run.id)
        forks, actions = [], []
        for number in range(config.rollouts):
            for action in (Action.CONTINUE, Action.INTERVENE):
                seed = f"rollout/{config.seed}/{run.id}/{t}/{number}" + ("" if config.common else f"/{action.name}")
                name = f"{run.id.rsplit('/', 1)[-1]}+{t}.{action.name.lower()}.{number}"
                forks.append(run.fork(name, seed, injection if action is Action.INTERVENE else None))
                actions.append((action, number))
        states.append((run, t, steps, actions))
        return forks

    finished = list(run_in_step(driven, retriever, k, fork, parallel))
    place = {id(run): number for number, run in enumerate(driven)}
    states.sort(key=lambda state: (state[1], place[id(state[0])]))  # the order in which one after the other would come
    trajectories, forked = finished[: len(driven)], iter(finished[len(driven) :])
    outcomes: list[BranchOutcome] = []
    for run, t, steps, actions in states:
        probe = steps[-1].answer_probe
        outcomes.append(
            _outcome(run, t, Action.STOP, 0, steps, steps, probe.correct is True if probe else None, config)
        )
        for action, number in actions:
            rolled = next(forked)
            outcomes.append(_outcome(run, t, action, number, steps, rolled.steps, rolled.correct, config))
    order = {id(run): number for number, run in enumerate(driven)}
    numbered = {run.id: order[id(run)] for run in driven}
    outcomes.sort(key=lambda outcome: (numbered[outcome.trajectory_id], outcome.t))
    return trajectories, outcomes


def _outcome(
    run: Run,
    t: int,
    action: Action,
    rollout: int,
    before: Sequence[Step],
    after: Sequence[Step],
    correct: bool | None,
    config: BranchConfig,
) -> BranchOutcome:
    start, end = recall(before, run.query.gold_ids), recall(after, run.query.gold_ids)
    searches = sum(step.kind == "search" for step in after) - t
    return BranchOutcome(
        run.id,
        run.query.id,
        run.agent.kind,
        t,
        action,
        rollout,
        start,
        end - start,
        searches,
        correct,
        config.probability,
    )


def recall(steps: Iterable[Step], gold_ids: Sequence[str] | None) -> float:
    """Share of the gold seen in these steps; NaN without gold."""
    if not gold_ids:
        return float("nan")
    seen = {document.id for step in steps for document in step.documents}
    return len(seen & set(gold_ids)) / len(gold_ids)


@dataclass(frozen=True, slots=True)
class ActionValues:
    """Values of the three actions at branched states, in units of the weights that were given."""

    states: tuple[tuple[str, int], ...]  # (trajectory id, t)
    mean: NDArray[np.float64]  # (states, 3): continue, intervene, stop
    error: NDArray[np.float64]  # (states, 3): standard error of the mean; NaN for a single rollout, 0 for stop
    difference: NDArray[np.float64]  # (states,): intervene minus continue, paired by seed
    difference_error: NDArray[np.float64]  # (states,): its standard error; NaN for a single rollout


def action_values(
    outcomes: Iterable[BranchOutcome],
    recall: float = 1.0,
    search: float = 0.01,
    correct: float = 0.0,
    intervention: float = 0.0,
) -> ActionValues:
    """Average the rollouts of every state: recall gain and correctness, minus the price of what it took.

    Args:
        outcomes: of any number of states, all rollouts of each.
        recall: worth of a unit of recall gained.
        search: price of a search.
        correct: worth of a correct answer in the end; needs outcomes that were judged.
        intervention: price of an intervention, beside its search.
    """
    by_state: dict[tuple[str, int], dict[Action, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for outcome in outcomes:
        value = recall * outcome.recall_gain - search * outcome.searches
        value += correct * float(outcome.correct is True) - intervention * float(outcome.action is Action.INTERVENE)
        by_state[outcome.trajectory_id, outcome.t][outcome.action][outcome.rollout] = value
    mean, error, difference, difference_error = [], [], [], []
    for actions in by_state.values():
        rows = [np.array([values for _, values in sorted(actions[action].items())]) for action in Action]
        mean.append([row.mean() for row in rows])
        error.append([*(_standard_error(row) for row in rows[:2]), 0.0])
        paired = rows[Action.INTERVENE] - rows[Action.CONTINUE]
        difference.append(paired.mean())
        difference_error.append(_standard_error(paired))
    return ActionValues(
        tuple(by_state),
        np.array(mean).reshape(-1, 3),
        np.array(error).reshape(-1, 3),
        np.array(difference),
        np.array(difference_error),
    )


def _standard_error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
