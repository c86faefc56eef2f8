"""Agents over the questions of a corpus: running a population, and the figures that say whether it is a fair one."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopwise.data.corpus import Query
from stopwise.data.records import Trajectory
from stopwise.envs.arena.agents import ScriptedAgent
from stopwise.envs.arena.kinds import AgentKind
from stopwise.envs.arena.loop import LoopConfig, Overseer, Run, run_in_step
from stopwise.envs.arena.puzzle import Reader, puzzle_of
from stopwise.envs.arena.retrievers import Retriever

GROUP = 64  # episodes that are run in step


def sample_queries(queries: Iterable[Query], count: int) -> list[Query]:
    """A fixed sample that leans to no part of the file and to no split: the `count` lowest hashes, in file order.

    The hash is salted: splits go by the plain hash of the id, and its lowest values are all of the first split.
    """
    numbered = list(enumerate(queries))
    lowest = sorted(numbered, key=lambda item: hashlib.sha256(f"sample/{item[1].id}".encode()).digest())[:count]
    return [query for _, query in sorted(lowest, key=lambda item: item[0])]


def scripted_run(
    kind: AgentKind, query: Query, reader: Reader, run_id: str, config: LoopConfig, overseer: Overseer | None = None
) -> Run:
    """A fresh run of a scripted agent, seeded by its kind, its question and its run id."""
    agent = ScriptedAgent(kind, puzzle_of(query), reader, f"{kind.name}/{query.id}/{run_id}")
    return Run(agent, query, run_id, config, overseer)


def run_population(
    kinds: Iterable[AgentKind],
    queries: Sequence[Query],
    reader: Reader,
    retriever: Retriever,
    config: LoopConfig,
    run_id: str = "0",
) -> Iterator[Trajectory]:
    """Run every kind of agent once on every question; kind by kind, questions in the given order."""
    for kind in kinds:
        for start in range(0, len(queries), GROUP):
            runs = [scripted_run(kind, query, reader, run_id, config) for query in queries[start : start + GROUP]]
            yield from run_in_step(runs, retriever, config.k)


@dataclass(frozen=True, slots=True)
class Curves:
    """What happened by search step, over many runs; step 1 is at index 0."""

    recall: NDArray[np.float64]  # (runs, steps): share of gold seen after a step; stays after the run's end
    novelty: NDArray[np.float64]  # (runs, steps): share of the step's documents not seen before; NaN past the end
    gain: NDArray[np.bool_]  # (runs, steps): a gold document was seen for the first time
    irrelevant_new: NDArray[np.float64]  # (runs, steps): share of the step's documents; NaN past the end
    irrelevant_seen: NDArray[np.float64]  # (runs, steps)
    relevant_new: NDArray[np.float64]  # (runs, steps)
    relevant_seen: NDArray[np.float64]  # (runs, steps)
    searches: NDArray[np.int64]  # (runs,)


def curves(trajectories: Sequence[Trajectory]) -> Curves:
    """Recall, novelty and document types by step (RAAC's Figures 3 and 4). Runs without gold are refused.

    Raises:
        ValueError: a trajectory has no gold.
    """
    searches = np.array([len(trajectory.search_steps) for trajectory in trajectories])
    shape = (len(trajectories), int(searches.max()))
    recall, gain = np.zeros(shape), np.zeros(shape, dtype=bool)
    types = np.full((4, *shape), np.nan)  # irrelevant new, irrelevant seen, relevant new, relevant seen
    for run, trajectory in enumerate(trajectories):
        if not trajectory.gold_ids:
            raise ValueError(f"trajectory {trajectory.id} has no gold")
        gold, seen = set(trajectory.gold_ids), set[str]()
        for number, step in enumerate(trajectory.search_steps):
            found = {document.id for document in step.documents}
            counts = [
                len(found - gold - seen),
                len((found - gold) & seen),
                len(found & gold - seen),
                len(found & gold & seen),
            ]
            types[:, run, number] = np.array(counts) / max(1, len(found))
            gain[run, number] = bool(found & gold - seen)
            seen |= found
            recall[run, number:] = len(seen & gold) / len(gold)
    return Curves(recall, types[0] + types[2], gain, types[0], types[1], types[2], types[3], searches)


@dataclass(frozen=True, slots=True)
class Figures:
    """The population's figures; means over runs unless said otherwise."""

    runs: int
    searches: float
    recall_first: float  # after the first search
    recall_final: float
    no_gold: float  # share of runs that saw no gold document
    all_gold: float  # share of runs that saw all
    productive_late: float  # share of steps 11 and later that saw a new gold document
    novelty_15: float  # mean Nov at step 15 of the runs that get there
    accuracy: float  # share of runs with a correct answer


BANDS: dict[str, tuple[float, float]] = {
    "searches": (15, 30),
    "recall_first": (0, 0.15),
    "recall_final": (0.35, 0.75),
    "no_gold": (0, 0.30),
    "productive_late": (0.03, 0.20),
    "novelty_15": (0, 0.45),
}  # what a fair population looks like; both ends included


def figures(trajectories: Sequence[Trajectory]) -> Figures:
    """Compute the figures of a population."""
    by_step = curves(trajectories)
    running = np.arange(by_step.gain.shape[1])[None, :] < by_step.searches[:, None]
    late = running[:, 10:]
    at_15 = by_step.novelty[:, 14:15]
    return Figures(
        runs=len(trajectories),
        searches=float(by_step.searches.mean()),
        recall_first=float(by_step.recall[:, 0].mean()),
        recall_final=float(by_step.recall[:, -1].mean()),
        no_gold=float((by_step.recall[:, -1] == 0).mean()),
        all_gold=float((by_step.recall[:, -1] >= 1).mean()),
        productive_late=float(by_step.gain[:, 10:][late].mean()) if late.any() else float("nan"),
        novelty_15=float(np.nanmean(at_15)) if np.isfinite(at_15).any() else float("nan"),
        accuracy=float(np.mean([trajectory.correct is True for trajectory in trajectories])),
    )
