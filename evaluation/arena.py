"""The benchmark in the arena: agents, retriever, controller and rethinker run for real, so that intervening is real.

Every controller meets the same questions, agents and random numbers. A controlled run is a new run, not a replay: what
the agent does after an intervention is its own answer to it.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.baselines import NeverStop
from stopwise.controllers.package import PolicyPackage, write_package
from stopwise.controllers.session import Counts
from stopwise.data.corpus import read_corpus
from stopwise.data.errors import DataError
from stopwise.data.files import read_json, write_json
from stopwise.data.records import Action, Trajectory
from stopwise.data.store import read_trajectories, write_trajectories
from stopwise.envs.arena.collection import CollectConfig, ControllerChoice, RethinkerChoice, groups_of
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.loop import LoopConfig, Run, run_in_step
from stopwise.envs.arena.oversight import ControllerOverseer
from stopwise.envs.arena.population import scripted_run
from stopwise.envs.arena.puzzle import make_reader
from stopwise.envs.arena.retrievers import BM25Retriever, DenseRetriever, Retriever
from stopwise.envs.arena.worker import Control, texts_of_corpus
from stopwise.envs.rewards import Reward
from stopwise.evaluation.benchmark import Arm, check_names, compare_rows, layout
from stopwise.evaluation.rollout import RunOutcome
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.signals.compute import run_labels
from stopwise.signals.table import SignalInfo

MODEL = "arena"  # stands where a replay names its intervention model

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class ArenaArm:
    """One row: a controller, and who searches when it intervenes."""

    arm: Arm
    rethinker: RethinkerChoice = RethinkerChoice()


@dataclass(frozen=True, slots=True)
class ArmRuns:
    """The runs of one arm, in the order of the collection's jobs."""

    runs: tuple[Trajectory, ...]
    counts: tuple[Counts, ...]  # of each run's session; the signals' own time is not in them


class ArenaBenchmark:
    """Runs arms over one corpus; corpus, index and embeddings are shared by all of them."""

    def __init__(
        self, config: CollectConfig, info: SignalInfo, encoder: CachedEncoder, folder: Path, progress: Progress
    ) -> None:
        """Read the corpus and embed it.

        Args:
            config: corpus, agents, questions, retriever; its controller and rethinker are those of each arm instead.
            info: how signals are computed: thresholds and calibrations, from training questions.
            encoder: shared by retriever and signals.
            folder: where finished arms are kept, so that an interrupted benchmark goes on.
            progress: told what is going on.

        Raises:
            DataError: the signals were fitted with another encoder, or the corpus cannot be read.
        """
        if info.encoder is not None and info.encoder != encoder.id:
            raise DataError(f"arena: the signals were fitted with encoder {info.encoder}, found {encoder.id}")
        self._config = config
        self._info = info
        self._encoder = encoder
        self._folder = folder
        self._progress = progress
        documents = list(read_corpus(Path(config.corpus)))
        self._reader = make_reader(documents)
        self._documents = documents
        self._texts_embedded = False
        if config.retriever == "dense":
            self._embed(document.passage for document in documents)
        self._retriever: Retriever = (
            BM25Retriever(documents)
            if config.retriever == "bm25"
            else DenseRetriever.build(documents, encoder, config.backend)
        )
        self.jobs = [job for group in groups_of(config) for job in group]

    def _embed(self, texts: Iterable[str]) -> None:
        self._encoder.prefetch(texts, lambda done, total: self._progress("embedding the corpus", done, total))

    @property
    def questions(self) -> NDArray[np.int64]:
        """A number for each job's question, shape (jobs,)."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(job.query.id, len(numbers)) for job in self.jobs], dtype=np.int64)

    def run(self, arm: ArenaArm | None) -> ArmRuns:
        """Run an arm over all jobs, or read it back if it was finished before; None is the agents by themselves."""
        name = "agents alone" if arm is None else arm.arm.name
        place = self._folder / hashlib.sha256(name.encode()).hexdigest()[:16]
        if place.with_suffix(".json").exists():
            counts = read_json(place.with_suffix(".json"))
            runs = tuple(read_trajectories(place.with_suffix(".parquet")))
            return ArmRuns(runs, tuple(Counts(**count) for count in counts["counts"]))
        control = None if arm is None else self._control(arm, place)
        if control is not None and control.embeds and not self._texts_embedded:
            self._embed(texts_of_corpus(self._documents))
            self._texts_embedded = True
        made: list[Trajectory] = []
        overseers: list[ControllerOverseer | None] = []
        loop = LoopConfig(k=self._config.k, dataset=self._config.dataset)
        for group in groups_of(self._config):
            fresh: list[Run] = []
            for job in group:
                run_id = f"{self._config.dataset}/{job.kind}/{job.query.id}/{job.run_id}"
                overseer = None if control is None else control.overseer(job.query, run_id, job.kind, self._encoder)
                overseers.append(overseer)
                fresh.append(scripted_run(KINDS[job.kind], job.query, self._reader, job.run_id, loop, overseer))
            made.extend(run_in_step(fresh, self._retriever, self._config.k))
            self._progress(name, len(made), len(self.jobs))
        sessions = tuple(Counts() if overseer is None else overseer.session.counts for overseer in overseers)
        write_trajectories(place.with_suffix(".parquet"), made)
        # written last: its being there means that the arm is finished
        write_json(place.with_suffix(".json"), {"arm": name, "counts": [asdict(count) for count in sessions]})
        return ArmRuns(tuple(made), sessions)

    def _control(self, arm: ArenaArm, place: Path) -> Control:
        """The maker of overseers: each arm goes through a policy package, as it would into a live agent."""
        package = place.with_suffix(".policy")
        write_package(package, PolicyPackage(arm.arm.name, arm.arm.controller, arm.arm.guards, self._info))
        choice = ControllerChoice(policy=str(package))
        return Control(replace(self._config, controller=choice, rethinker=arm.rethinker), arm.arm.controller)


def arena_rows(
    bench: ArenaBenchmark, arms: Sequence[ArenaArm], reward: Reward, *, seed: int = 0, margin: float = 0.01
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Run every arm and lay out the rows, over all agents and for each kind apart.

    Args:
        bench: the shared corpus and jobs.
        arms: in the order of the rows.
        reward: prices, for the return.
        seed: of the bootstrap and the permutation test.
        margin: recall that an arm may lose and still be called not inferior.

    Returns:
        JSON-able rows as in a replay benchmark, with ``rethinker``; and the same by agent kind, without ``versus``.

    Raises:
        UsageError: two arms have one name, or one is compared with a row that is not there.
    """
    check_names([arm.arm for arm in arms])
    baseline = outcomes_of(bench.run(None), reward)
    questions = bench.questions
    kinds = np.array([job.kind for job in bench.jobs])
    rows: list[dict[str, Any]] = []
    apart: dict[str, list[dict[str, Any]]] = {kind: [] for kind in dict.fromkeys(kinds.tolist())}
    known: dict[str, Sequence[RunOutcome]] = {}
    for arm in arms:
        controller = arm.arm.controller
        head: dict[str, Any] = {"controller": arm.arm.name, "kind": controller.kind, "intervention_model": MODEL}
        head["rethinker"] = asdict(arm.rethinker)
        if arm.arm.origin is not None:
            head["policy"] = arm.arm.origin
        reason = "needs hindsight, which only a replayed log has" if controller.privileged else arm.arm.not_applicable
        if reason is not None:
            for table in (rows, *apart.values()):
                table.append(head | {"not_applicable": reason})
            continue
        never = isinstance(controller, NeverStop)
        outcomes = baseline if never else outcomes_of(bench.run(arm), reward)
        known[arm.arm.name] = outcomes
        head |= controller.described  # after the runs: by then it is known under which name a model answers
        rows.append(head | layout(outcomes, baseline, questions, seed=seed, margin=margin))
        for kind, table in apart.items():
            chosen = np.flatnonzero(kinds == kind)
            base = [baseline[index] for index in chosen]
            ours = base if never else [outcomes[index] for index in chosen]
            table.append(head | layout(ours, base, questions[chosen], seed=seed, margin=margin))
    compare_rows(rows, [arm.arm for arm in arms], known, questions, seed=seed, margin=margin)
    return rows, apart


def outcomes_of(arm: ArmRuns, reward: Reward) -> list[RunOutcome]:
    """What the runs of an arm came to; the answer at a stop is the agent's own, and judged."""
    outcomes = []
    for index, (run, counts) in enumerate(zip(arm.runs, arm.counts, strict=True)):
        episode, labels = run_labels(run)
        stops = [t for t, step in enumerate(run.search_steps, 1) if step.logged_action is Action.STOP]
        searches = len(run.search_steps)
        interventions = sum(step.logged_action is Action.INTERVENE for step in run.steps)
        answered = run.ended_by == "answer"
        correct = episode.correct if answered else float("nan")
        paid = reward.search * max(searches - 1, 0) + reward.intervention * interventions
        paid += reward.controller * counts.decisions
        total = reward.recall * episode.final_recall + reward.correct * np.nan_to_num(correct) - paid
        first = float(labels[0, 0]) if len(labels) else episode.final_recall
        outcomes.append(
            RunOutcome(
                episode=index,
                stopped_at=stops[-1] if stops else None,
                searches=searches,
                interventions=interventions,
                recall=episode.final_recall,
                documents_seen=episode.final_seen,
                relevant_seen=episode.final_relevant,
                correct=correct,
                visible=episode.final_visible,
                cut=not answered,
                value=float(total - reward.recall * first),
                total=float(total),
                seconds=counts.seconds,
                calls=counts.calls,
                tokens=counts.tokens,
                decisions=counts.decisions,
                failures=counts.failure_kinds,
            )
        )
    return outcomes
