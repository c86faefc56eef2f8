"""One process of a collection: it holds the corpus and runs groups."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from stopwise.controllers.base import Controller
from stopwise.controllers.connections import Connections
from stopwise.controllers.session import ControlSession
from stopwise.data.corpus import CorpusDocument, Query, read_corpus, read_queries
from stopwise.data.errors import DataError, UsageError
from stopwise.data.shipped import signals_path
from stopwise.data.store import write_trajectories
from stopwise.envs.arena.agents import Agent
from stopwise.envs.arena.branch_store import write_branches
from stopwise.envs.arena.branching import branch
from stopwise.envs.arena.collection import (
    CollectConfig,
    ControllerChoice,
    Job,
    RethinkerChoice,
    groups_of,
    questions_of,
)
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.llm_rethinker import LLMRethinker
from stopwise.envs.arena.loop import LoopConfig, Run, run_in_step
from stopwise.envs.arena.oversight import ControllerOverseer
from stopwise.envs.arena.plan_write_agent import PlanWriteAgent, PlanWriteConfig
from stopwise.envs.arena.population import sample_queries, scripted_run
from stopwise.envs.arena.puzzle import Reader, make_reader
from stopwise.envs.arena.react_agent import ReactAgent
from stopwise.envs.arena.rethinkers import HeuristicRethinker, RandomRethinker, Rethinker, criteria_of
from stopwise.envs.arena.retrievers import BM25Retriever, DenseRetriever, Retriever, as_result
from stopwise.models.chat_client import ChatClient
from stopwise.models.chat_config import open_chat
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import Embeddings, Encoder
from stopwise.models.ledger import BILL
from stopwise.models.parallel import SideBySide
from stopwise.models.running_bill import RunningBill
from stopwise.signals.coverage import document_sentences
from stopwise.signals.coverage_llm import LLMCoverage
from stopwise.signals.table import SignalInfo
from stopwise.signals.tracker import SignalConfig, SignalTracker, document_text

EMBEDDINGS = "embeddings.sqlite"  # of the corpus's texts, while collecting
INDEX = "index"  # folder of the dense index, while collecting
POOL_SIZE = 2000  # queries that the random rethinker draws from


_WORKER: "Worker | None" = None  # of a worker process


def start_worker(config: CollectConfig, out: Path, make_encoder: Callable[[str | None], Encoder]) -> None:
    """Set up a worker process."""
    global _WORKER
    _WORKER = Worker(config, out, make_encoder)


def run_in_worker(number: int) -> None:
    """Run a group in a worker process."""
    assert _WORKER is not None
    _WORKER.run(number)


class Worker:
    """Holds the corpus and runs groups.

    Args:
        config: of the collection.
        out: its folder, with the index and the embeddings that were prepared.
        make_encoder: makes the encoder from its name.
        control: of this config, where there is one; None makes one.
    """

    def __init__(
        self,
        config: CollectConfig,
        out: Path,
        make_encoder: Callable[[str | None], Encoder],
        control: "Control | None" = None,
    ) -> None:
        self._config = config
        self._parts = out / "parts"
        self._groups = groups_of(config)
        self._loop = LoopConfig(k=config.k, dataset=config.dataset, forkable=config.branch is not None)
        documents = list(read_corpus(Path(config.corpus)))
        self._reader = make_reader(documents)
        self._control = control or Control(config, make_encoder=make_encoder)
        self._network = self._control.network if config.retriever == "dense" or self._control.embeds else None
        self._retriever: Retriever
        if config.retriever == "bm25":
            self._retriever = BM25Retriever(documents)
        else:
            assert self._network is not None
            self._retriever = DenseRetriever.load(out / INDEX, documents, self._network, config.backend)
        client = self._control.client
        self._bill = None if client is None else RunningBill(out / BILL, client)
        self._prepared = frozenset(texts_of_corpus(documents)) if self._control.embeds else frozenset[str]()
        self._stored = None
        if self._control.embeds and self._network is not None:
            self._stored = CachedEncoder(self._network, out / EMBEDDINGS)

    def run(self, number: int) -> None:
        """Run one group and write its part."""
        try:
            self._run(number)
        finally:  # what a failed group has spent is spent
            if self._bill is not None:
                self._bill.write()

    def _run(self, number: int) -> None:
        encoder = self._group_encoder()
        retriever = self._retriever
        if isinstance(retriever, DenseRetriever) and encoder is not None:
            retriever = retriever.with_encoder(encoder)
        k, parallel = self._config.k, self._control.parallel
        begun = self._control.begin(self._groups[number], self._reader, self._loop, lambda: encoder)
        runs = [run for run, _ in begun]
        if self._config.branch is not None:
            rethinker = self._control.rethinker
            trajectories, outcomes = branch(runs, retriever, k, rethinker, self._config.branch, parallel)
            write_branches(branches_part(self._parts, number), outcomes)
        else:
            trajectories = list(run_in_step(runs, retriever, k, parallel=parallel))
        write_trajectories(trajectories_part(self._parts, number), trajectories)

    def _group_encoder(self) -> Encoder | None:
        """An encoder that remembers this group only: what others have asked must not change a batch of this one."""
        if self._network is None:
            return None
        own = CachedEncoder(self._network, ":memory:")
        return GroupEncoder(own, self._stored, self._prepared, singly=self._config.llm is not None)


class GroupEncoder:
    """Texts of the corpus come from the collection's store, all others from the group's own cache.

    An embedding depends a little on its batch, and the first one stays. Where runs go side by side in threads, which
    text comes first is chance; so texts are then encoded one by one (`singly`). Those who share a network in threads
    take turns by a `lock`; None is one of its own.
    """

    def __init__(
        self,
        own: CachedEncoder,
        stored: CachedEncoder | None,
        prepared: frozenset[str],
        *,
        singly: bool,
        lock: "threading.Lock | None" = None,
    ) -> None:
        self._own = own
        self._stored = stored
        self._prepared = prepared
        self._singly = singly
        self._lock = lock or threading.Lock()

    @property
    def id(self) -> str:
        """The encoder's id."""
        return self._own.id

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """See `Encoder.encode`."""
        with self._lock:
            kept = np.array([self._stored is not None and text in self._prepared for text in texts], dtype=bool)
            if self._stored is None or not kept.any():
                return self._encode_own(texts)
            if kept.all():
                return self._stored.encode(texts)
            from_store = self._stored.encode([text for text, stored in zip(texts, kept, strict=True) if stored])
            rows = np.empty((len(texts), from_store.shape[1]), dtype=np.float32)
            rows[kept] = from_store
            rows[~kept] = self._encode_own([text for text, stored in zip(texts, kept, strict=True) if not stored])
            return rows

    def _encode_own(self, texts: Sequence[str]) -> Embeddings:
        if not self._singly or not texts:
            return self._own.encode(texts)
        return np.concatenate([self._own.encode([text]) for text in texts])


def texts_of_corpus(documents: Iterable[CorpusDocument]) -> Iterator[str]:
    """What a tracker embeds of documents."""
    for document in documents:
        result = as_result(document)
        yield document_text(result)
        yield from document_sentences(result)


class Control:
    """Makes runs, each with its overseer."""

    def __init__(
        self,
        config: CollectConfig,
        like: Controller | None = None,
        make_encoder: Callable[[str | None], Encoder] | None = None,
        client: ChatClient | None = None,
    ) -> None:
        """Set up.

        Args:
            config: of the collection.
            like: the controller's own model and memory are this one's; None is the collection's model and memory.
            make_encoder: makes the encoder from its name; None where nothing here needs one.
            client: the collection's model, if it is open already.

        Raises:
            UsageError: the controller needs what the config does not name.
            DataError: a policy, a signal table or a memory cannot be read, or the memory holds a question to be asked.
        """
        from stopwise.controllers.kinds import connect_like, make_rule
        from stopwise.controllers.package import read_package
        from stopwise.signals.definitions import BY_NAME, with_prerequisites

        self._config = config
        self._make_encoder = make_encoder
        self._connections: Connections | None = None
        self.client = open_chat(config.llm) if client is None and config.llm is not None else client
        self._coverage: LLMCoverage | None = None
        self.rethinker = make_rethinker(config.rethinker, Path(config.corpus), config.seed, self.client)
        self.embeds = False  # whether its signals need an encoder
        choice = config.controller
        if choice is None:
            return
        self._controller: Controller
        if choice.policy is not None:
            package = read_package(Path(choice.policy))
            self._controller, self._guards, self._info = package.controller, package.guards, package.signals
        else:
            self._controller, self._guards = make_rule(choice.kind or "", choice.params), choice.guards
            self._info = signals_of(choice, self._controller)
        reads = set(self._controller.reads) | ({"Cov"} if choice.min_coverage is not None else set())
        names = tuple(name for name in self._info.config.signals if name in reads) or ("Nov",)
        self._signals = replace(self._info.config, signals=names)
        needs = {need for name in with_prerequisites(names) for need in BY_NAME[name].needs}
        judged = "Cov" in with_prerequisites(names) and self._signals.coverage_judge == "encoder"
        if "Cov" in with_prerequisites(names) and self._signals.coverage_judge == "llm":
            if self.client is None:
                raise UsageError("llm: the policy's coverage is judged by a language model; name one")
            self._coverage = LLMCoverage(self.client)
        self.embeds = judged or any(need.endswith("_embedding") for need in needs)
        fitted_with = self._info.encoder
        if self.embeds and make_encoder is not None and fitted_with not in (None, self.network.id):
            raise DataError(f"controller: its signals were fitted with encoder {fitted_with}, found {self.network.id}")
        if like is None:
            self._connect(choice.memory)
        else:
            connect_like(self._controller, like)

    def _connect(self, memory: str | None) -> None:
        """Give the controller the collection's model and its memory, in which no question of it may be."""
        if memory is not None and getattr(self._controller, "online", False):
            raise UsageError(
                "controller.params.online: what a run meets would depend on the runs before it, and an interrupted "
                "collection could not go on; leave it out, or use `stopwise benchmark`"
            )
        encoder: Encoder | None = None
        if memory is not None and self._make_encoder is not None:
            encoder = GroupEncoder(CachedEncoder(self.network, ":memory:"), None, frozenset(), singly=True)
        queries = questions_of(self._config) if memory is not None else []
        ids, texts = {query.id for query in queries}, [query.text for query in queries]
        self._connections = Connections(self.client, encoder, ids, texts)
        try:
            self._connections.connect(self._controller, memory, "controller")
        except BaseException:
            self.close()
            raise

    @cached_property
    def network(self) -> Encoder:
        """The collection's encoder, without a cache."""
        assert self._make_encoder is not None
        return self._make_encoder(self._config.encoder)

    def close(self) -> None:
        """Close the memory, if there is one."""
        if self._connections is not None:
            self._connections.close()

    @property
    def parallel(self) -> int:
        """Runs that go side by side in threads: as many as the language model may be asked at a time."""
        return 1 if self.client is None else self.client.parallel

    def begin(
        self, jobs: Sequence[Job], reader: Reader, loop: LoopConfig, encoder: Callable[[], Encoder | None]
    ) -> list[tuple[Run, ControllerOverseer | None]]:
        """Fresh runs of jobs side by side, each with its overseer where there is a controller.

        Args:
            jobs: to begin.
            reader: of the corpus, for scripted agents.
            loop: how runs are made.
            encoder: of the signals; called for each run.
        """

        def start(job: Job) -> tuple[Run, ControllerOverseer | None]:
            overseer = None
            if self._config.controller is not None:
                run_id = f"{loop.dataset}/{job.kind}/{job.query.id}/{job.run_id}"
                overseer = self.overseer(job.query, run_id, job.kind, encoder())
            return self.run(job, reader, loop, overseer), overseer

        with SideBySide(self.parallel) as side:
            return side.map(start, jobs)

    def run(self, job: Job, reader: Reader, loop: LoopConfig, overseer: ControllerOverseer | None) -> Run:
        """A fresh run of the job's agent."""
        chosen = next((agent for agent in self._config.driven if agent.name == job.kind), None)
        if chosen is None:
            return scripted_run(KINDS[job.kind], job.query, reader, job.run_id, loop, overseer)
        assert self.client is not None
        seed = f"{job.kind}/{job.query.id}/{job.run_id}"
        if isinstance(chosen, PlanWriteConfig):
            agent: Agent = PlanWriteAgent(self.client, job.query.text, chosen, seed)
        else:
            agent = ReactAgent(self.client, job.query.text, chosen, seed)
        return Run(agent, job.query, job.run_id, loop, overseer)

    def overseer(self, query: Query, run_id: str, agent: str, encoder: Encoder | None) -> ControllerOverseer:
        """An overseer of one run."""
        assert self._config.controller is not None
        calibrations = {(name, source): line for name, source, line in self._info.calibrations}
        tracker = SignalTracker(
            self._signals,
            query.text,
            criteria=query.criteria,
            agent=agent,
            encoder=encoder if self.embeds else None,
            calibrations=calibrations,
            judge=None if self._coverage is None else self._coverage(query.text, query.criteria),
        )
        session = ControlSession(self._controller.copy(), self._guards)
        minimum = self._config.controller.min_coverage
        return ControllerOverseer(session, tracker, self.rethinker, run_id, self._config.seed, minimum)


def signals_of(choice: ControllerChoice, controller: Controller) -> SignalInfo:
    """How a rule's signals are computed: as in the table that is named for it, else by defaults.

    Raises:
        UsageError: the rule needs calibrations, and no table is named, or the table lacks a signal that it needs.
        DataError: the table cannot be read.
    """
    from stopwise.signals.definitions import with_prerequisites
    from stopwise.signals.re_only import add_re_z
    from stopwise.signals.table import read_table

    needs = with_prerequisites(controller.needs)
    if choice.signals is None:
        if "residual" in needs or "RE_z" in needs:
            raise UsageError(
                f"controller.signals: {controller.kind} needs calibrations; name the signal table of runs of these "
                "agents, which holds them"
            )
        signals = SignalConfig(coverage_judge=choice.coverage_judge)
        return SignalInfo(signals, encoder=None, calibrations=(), logs_sha256=None)
    table = read_table(signals_path(choice.signals))
    if "RE_z" in needs:
        table = add_re_z(table)
    missing = [name for name in controller.needs if name not in table.names]
    if missing:
        raise UsageError(f"controller.signals: {choice.signals} has no {missing[0]}, which {controller.kind} needs")
    return replace(table.info, config=replace(table.info.config, coverage_judge=choice.coverage_judge))


def make_rethinker(choice: RethinkerChoice, corpus: Path, seed: int, client: ChatClient | None = None) -> Rethinker:
    """The rethinker of a config; a random one draws from criteria of the corpus's questions.

    Raises:
        UsageError: a language model is to rethink, and none is there.
    """
    if choice.kind == "heuristic":
        return HeuristicRethinker(choice.quality, choice.harm, seed)
    if choice.kind == "llm":
        if client is None:
            raise UsageError("rethinker.kind llm: there is no language model; name one under `llm`")
        return LLMRethinker(client)
    queries = sample_queries(read_queries(corpus), POOL_SIZE)
    pool = tuple(dict.fromkeys(text for query in queries for text in criteria_of(query)))[:POOL_SIZE]
    return RandomRethinker(pool, seed, choice.redirects)


def trajectories_part(parts: Path, number: int) -> Path:
    """Where a group's runs are written; its being there means that the group is finished."""
    return parts / f"{number:06d}.parquet"


def branches_part(parts: Path, number: int) -> Path:
    """Where a group's branches are written, before its runs."""
    return parts / f"{number:06d}.branches.parquet"
