"""The benchmark in the arena: agents, retriever, controller and rethinker run for real, so that intervening is real.

Every controller meets the same questions, agents and random numbers. A controlled run is a new run, not a replay: what
the agent does after an intervention is its own answer to it. Agents are all that `stopwise collect` can run.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller
from stopwise.controllers.baselines import NeverStop
from stopwise.controllers.kinds import asks_memory
from stopwise.controllers.package import PolicyPackage, write_package
from stopwise.controllers.session import Counts
from stopwise.data.corpus import read_corpus
from stopwise.data.errors import DataError
from stopwise.data.files import read_json, write_json
from stopwise.data.records import Action, Trajectory
from stopwise.data.store import read_trajectories, write_trajectories
from stopwise.envs.arena.collection import CollectConfig, ControllerChoice, RethinkerChoice, groups_of
from stopwise.envs.arena.loop import LoopConfig, run_in_step
from stopwise.envs.arena.puzzle import make_reader
from stopwise.envs.arena.retrievers import BM25Retriever, DenseRetriever, Retriever
from stopwise.envs.arena.run_cost import RunCost
from stopwise.envs.arena.worker import Control, GroupEncoder, texts_of_corpus
from stopwise.envs.rewards import Reward
from stopwise.evaluation.benchmark import (
    Arm,
    check_names,
    compare_rows,
    layout,
    made_to_match,
    order_of,
    tell_matches,
)
from stopwise.evaluation.overhead import cost_of
from stopwise.evaluation.rollout import RunOutcome
from stopwise.models.chat_config import open_chat
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import Encoder
from stopwise.models.running_bill import RunningBill
from stopwise.signals.compute import run_labels
from stopwise.signals.definitions import with_prerequisites
from stopwise.signals.table import SignalInfo

MODEL = "arena"  # stands where a replay names its intervention model
FORMAT = 2  # of finished arms; others are not read
AGENTS_BILL = "agents.llm_cost.json"  # what agents, rethinkers and judges of coverage have spent, in the arms' folder

ALONE = "agents alone"  # the arm without a controller

Progress = Callable[[str, int, int | None], None]


def arm_file(folder: Path, name: str) -> Path:
    """Where an arm is kept, without the endings of its files."""
    return folder / hashlib.sha256(name.encode()).hexdigest()[:16]


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
    costs: tuple[RunCost, ...]  # of each run, by who spent it


class ArenaBenchmark:
    """Runs arms over one corpus; corpus, index and, for scripted agents, embeddings are shared by all of them.

    Where a language model drives agents, what a controller costs is measured against what they cost. Each run then
    embeds the texts of its signals for itself, as a live one would, and nothing that an earlier arm embedded is used.
    Runs that go side by side wait for one another, and their seconds hold that: to measure seconds, set
    ``llm.parallel`` to 1.
    """

    def __init__(
        self,
        config: CollectConfig,
        info: SignalInfo,
        encoder: CachedEncoder,
        folder: Path,
        progress: Progress,
        bills: Sequence[RunningBill] = (),
    ) -> None:
        """Read the corpus and embed it.

        Args:
            config: corpus, agents, questions, retriever; its controller and rethinker are those of each arm instead.
            info: how signals are computed: thresholds and calibrations, from training questions.
            encoder: shared by retriever and signals.
            folder: where finished arms are kept, so that an interrupted benchmark goes on.
            progress: told what is going on.
            bills: of the controllers' language models; written down after each group of runs.

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
        self.client = None if config.llm is None else open_chat(config.llm)  # one budget for all arms
        self._agents_bill = None if self.client is None else RunningBill(folder / AGENTS_BILL, self.client)
        self._bills = bills if self._agents_bill is None else (*bills, self._agents_bill)
        self._network = threading.Lock()
        self._prepared = frozenset[str]()
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

    def report(self) -> dict[str, Any] | None:
        """The model of agents, rethinkers and judges of coverage, and its bill, JSON-able; None where there is none."""
        return None if self._agents_bill is None else self._agents_bill.report()

    @property
    def scripted(self) -> set[str]:
        """Kinds of agents that no language model drives."""
        return set(self._config.agents) - {agent.name for agent in self._config.driven}

    @property
    def questions(self) -> NDArray[np.int64]:
        """A number for each job's question, shape (jobs,)."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(job.query.id, len(numbers)) for job in self.jobs], dtype=np.int64)

    def run(self, arm: ArenaArm | None) -> ArmRuns:
        """Run an arm over all jobs, or read it back if it was finished before; None is the agents by themselves."""
        name = ALONE if arm is None else arm.arm.name
        place = arm_file(self._folder, name)
        if place.with_suffix(".json").exists():
            told = read_json(place.with_suffix(".json"))
            runs = tuple(read_trajectories(place.with_suffix(".parquet")))
            counts = tuple(Counts(**count) for count in told["counts"])
            return ArmRuns(runs, counts, tuple(RunCost.from_json(cost) for cost in told["costs"]))
        control = Control(self._config, client=self.client) if arm is None else self._control(arm, place)
        if control.embeds and not self._config.driven and not self._texts_embedded:
            self._embed(texts_of_corpus(self._documents))
            self._texts_embedded = True
        # a memory is one thread's at a time, and what it learns depends on who comes first
        parallel = 1 if arm is not None and asks_memory(arm.arm.controller) else control.parallel
        made: list[Trajectory] = []
        sessions: list[Counts] = []
        costs: list[RunCost] = []
        loop = LoopConfig(k=self._config.k, dataset=self._config.dataset)
        for group in groups_of(self._config):
            of_signals, retriever = self._encoders()
            try:
                begun = control.begin(group, self._reader, loop, of_signals)
                made.extend(run_in_step([run for run, _ in begun], retriever, self._config.k, parallel=parallel))
            finally:  # what a failed group has spent is spent
                for bill in self._bills:
                    bill.write()
            sessions.extend(Counts() if overseer is None else overseer.session.counts for _, overseer in begun)
            costs.extend(RunCost.of(*pair) for pair in begun)
            self._progress(name, len(made), len(self.jobs))
        write_trajectories(place.with_suffix(".parquet"), made)
        # written last: its being there means that the arm is finished
        told = {"arm": name, "counts": [asdict(count) for count in sessions], "costs": [asdict(cost) for cost in costs]}
        write_json(place.with_suffix(".json"), told)
        return ArmRuns(tuple(made), tuple(sessions), tuple(costs))

    def _encoders(self) -> tuple[Callable[[], Encoder], Retriever]:
        """For a group of runs: what gives each run the encoder of its signals, and the retriever."""
        if self.client is None:
            return lambda: self._encoder, self._retriever

        def of(stored: CachedEncoder | None, *, singly: bool) -> GroupEncoder:
            own = CachedEncoder(self._encoder.encoder, ":memory:")
            if stored is not None and not self._prepared:
                self._prepared = frozenset(texts_of_corpus(self._documents))
            return GroupEncoder(own, stored, self._prepared, singly=singly, lock=self._network)

        group = of(None if self._config.driven else self._encoder, singly=True)
        retriever = self._retriever
        if isinstance(retriever, DenseRetriever):
            retriever = retriever.with_encoder(group)
        return (lambda: of(None, singly=False)) if self._config.driven else (lambda: group), retriever

    def _control(self, arm: ArenaArm, place: Path) -> Control:
        """The maker of overseers: each arm goes through a policy package, as it would into a live agent."""
        package = place.with_suffix(".policy")
        write_package(package, PolicyPackage(arm.arm.name, arm.arm.controller, arm.arm.guards, self._info))
        choice = ControllerChoice(policy=str(package))
        config = replace(self._config, controller=choice, rethinker=arm.rethinker)
        return Control(config, arm.arm.controller, client=self.client)

    def models(self, arm: ArenaArm) -> dict[str, str | None]:
        """Ids of the language models of an arm by what they do; None where none does it."""
        own = None if self.client is None else self.client.id
        reads = "Cov" in with_prerequisites(arm.arm.controller.reads)
        return {
            "agent": own if self._config.driven else None,
            "controller": arm.arm.controller.described.get("model"),
            "rethinker": own if arm.rethinker.kind == "llm" else None,
            "coverage": own if reads and self._info.config.coverage_judge == "llm" else None,
        }

    def uncalibrated(self, controller: Controller, alone: ArmRuns) -> dict[str, str]:
        """Kinds of agents on which a controller never acts for want of a fitted line, with the reason."""
        if not set(controller.needs) & {"residual", "residual_z", "RE_z"}:
            return {}
        known = {(name, source) for name, source, _ in self._info.calibrations}
        reasons: dict[str, str] = {}
        for kind in self._config.agents:
            steps = [
                step for job, run in zip(self.jobs, alone.runs, strict=True) if job.kind == kind for step in run.steps
            ]
            sources = {step.logprobs.source for step in steps if step.logprobs is not None}
            if not sources:
                reasons[kind] = f"no {controller.needs[0]}: {kind} brings no log-probabilities"
            elif not any((kind, source) in known for source in sources):
                reasons[kind] = (
                    f"no {controller.needs[0]}: not calibrated for {kind}; compute `signals` from its own training runs"
                )
        return reasons


def arena_rows(
    bench: ArenaBenchmark, arms: Sequence[ArenaArm], reward: Reward, *, seed: int = 0, margin: float = 0.01
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Run every arm and lay out the rows, over all agents and for each kind apart.

    A row's ``controller_seconds`` are those of its decisions, as in a replay, where signals lie ready;
    ``cost.seconds.controller`` holds the signals too, which a live run computes for its controller alone (see
    `stopwise.evaluation.overhead`).

    Args:
        bench: the shared corpus and jobs.
        arms: in the order of the rows.
        reward: prices, for the return.
        seed: of the bootstrap and the permutation test.
        margin: recall that an arm may lose and still be called not inferior.

    Returns:
        JSON-able rows as in a replay benchmark, with ``rethinker``, the language ``models``, ``cost`` and
        ``overhead``; and the same by agent kind, without ``versus``.

    Raises:
        UsageError: two arms have one name, or one is compared with or matched to a row that is not there.
    """
    plain = [arm.arm for arm in arms]
    check_names(plain)
    alone = bench.run(None)
    baseline = outcomes_of(alone, reward)
    questions = bench.questions
    kinds = np.array([job.kind for job in bench.jobs])
    rows: list[dict[str, Any]] = [{}] * len(arms)
    apart = {kind: list(rows) for kind in dict.fromkeys(kinds.tolist())}
    known: dict[str, Sequence[RunOutcome]] = {}
    scripted = bench.scripted
    for number in order_of(plain):
        plain[number] = made_to_match(plain[number], plain, known, questions)
        arm = replace(arms[number], arm=plain[number])
        controller = arm.arm.controller
        head: dict[str, Any] = {"controller": arm.arm.name, "kind": controller.kind, "intervention_model": MODEL}
        head["rethinker"] = asdict(arm.rethinker)
        if arm.arm.origin is not None:
            head["policy"] = arm.arm.origin
        reason = "needs hindsight, which only a replayed log has" if controller.privileged else arm.arm.not_applicable
        idle = bench.uncalibrated(controller, alone)
        if len(idle) == len(apart):
            reason = reason or "; ".join(idle.values())
        if reason is not None:
            head["models"] = bench.models(arm)
            for table in (rows, *apart.values()):
                table[number] = head | {"not_applicable": reason}
            continue
        never = isinstance(controller, NeverStop)
        made = alone if never else bench.run(arm)
        outcomes = baseline if never else outcomes_of(made, reward)
        head |= controller.described  # after the runs: by then it is known under which name a model answers
        head["models"] = bench.models(arm)
        if idle:  # it did nothing on a part of the agents
            rows[number] = head | {"not_applicable": "; ".join(idle.values())}
        else:
            known[arm.arm.name] = outcomes
            figures = layout(outcomes, baseline, questions, seed=seed, margin=margin)
            rows[number] = head | figures | cost_of(made.costs, alone.costs, questions, scripted=bool(scripted))
        for kind, table in apart.items():
            if kind in idle:
                table[number] = head | {"not_applicable": idle[kind]}
                continue
            chosen = np.flatnonzero(kinds == kind)
            base = [baseline[index] for index in chosen]
            ours = base if never else [outcomes[index] for index in chosen]
            figures = layout(ours, base, questions[chosen], seed=seed, margin=margin)
            costs, before = ([runs.costs[index] for index in chosen] for runs in (made, alone))
            figures |= cost_of(costs, before, questions[chosen], scripted=kind in scripted)
            table[number] = head | figures
    for table in (rows, *apart.values()):
        tell_matches(table, plain)
    compare_rows(rows, plain, known, questions, seed=seed, margin=margin)
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
