"""What a collection runs: its config, and the config's jobs in groups."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stopwise.controllers.guards import Guards
from stopwise.controllers.kinds import asks_model, make_rule
from stopwise.data.corpus import Query, read_queries
from stopwise.data.errors import DataError, UsageError
from stopwise.data.splits import split_of
from stopwise.envs.arena.branching import BranchConfig
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.plan_write_agent import PlanWriteConfig
from stopwise.envs.arena.population import sample_queries
from stopwise.envs.arena.react_agent import ReactConfig
from stopwise.envs.arena.vector_index import Backend
from stopwise.models.chat_config import ChatConfig

Split = Literal["train", "val", "cal", "test", "all"]


@dataclass(frozen=True)
class ControllerChoice:
    """Who is in the loop: a rule by `kind`, or a policy package."""

    kind: str | None = None
    policy: str | None = None  # folder of a policy package
    params: dict[str, Any] = field(default_factory=dict)  # of a rule
    guards: Guards = Guards()  # of a rule; a policy brings its own
    signals: str | None = None  # of a rule: signal table whose thresholds and calibrations it works with, or "samples"
    memory: str | None = None  # of ds_mcm with `slow`: folder of an experience memory
    coverage_judge: Literal["encoder", "llm", "gold"] = "encoder"  # of a rule; gold is privileged
    min_coverage: float | None = None  # attempts to answer below that coverage are refused; None lets all through

    @property
    def asks_model(self) -> bool:
        """Whether it is a rule that asks the language model; of a policy, its package knows."""
        return self.kind is not None and asks_model(make_rule(self.kind, self.params))


@dataclass(frozen=True)
class RethinkerChoice:
    """What is searched at an intervention."""

    kind: Literal["heuristic", "random", "llm"] = "heuristic"
    quality: float = 0.8  # of heuristic
    harm: float = 0.1  # of heuristic
    redirects: bool = False  # of random: whether the agent is told to change course


@dataclass(frozen=True)
class CollectConfig:
    """One collection."""

    corpus: str  # folder in BEIR layout
    agents: tuple[str, ...] = tuple(KINDS)  # scripted kinds, and names of `react` and `plan_write` agents
    react: tuple[ReactConfig, ...] = ()  # agents that `llm` drives: they search and read
    plan_write: tuple[PlanWriteConfig, ...] = ()  # agents that `llm` drives: they plan, and work from notes
    llm: ChatConfig | None = None  # the language model of agents, controller, rethinker and coverage judge
    split: Split = "all"
    questions: int | None = None  # a fixed sample of so many; None takes all
    runs: int = 1  # runs of every agent on every question
    dataset: str = "world"  # name that the runs carry
    retriever: Literal["dense", "bm25"] = "dense"
    backend: Backend = "exact"  # of the dense retriever; ivf is approximate, for very many documents
    encoder: str | None = None  # sentence-transformers model; None is the packaged MiniLM
    k: int = 5  # documents a query
    controller: ControllerChoice | None = None  # None: the agents run by themselves
    rethinker: RethinkerChoice = RethinkerChoice()
    branch: BranchConfig | None = None  # None: no branching
    group: int = 32  # runs that go side by side and are written together
    workers: int = 1  # processes
    seed: int = 0

    def __post_init__(self) -> None:
        known = [*KINDS, *(agent.name for agent in (*self.react, *self.plan_write))]
        unknown = [name for name in self.agents if name not in known]
        if unknown or not self.agents:
            raise UsageError(f"agents: {unknown or 'none'}; expected some of {', '.join(known)}")
        if len(set(known)) < len(known):
            raise UsageError(
                f"react, plan_write: a name is taken twice, or by a scripted kind; found {', '.join(known)}"
            )
        if self.uses_llm and self.llm is None:
            who = "an agent, the controller, the rethinker or the coverage judge"
            raise UsageError(f"llm: is needed by {who}; see configs/llm.yaml")
        if self.uses_llm and self.workers > 1:
            raise UsageError("workers: one process keeps to the budget of a language model; expected 1")
        twice = [name for name in self.agents if self.agents.count(name) > 1]
        if twice:
            raise UsageError(
                f"agents: {twice[0]} is named twice; its runs would be the same; `runs` makes more of each"
            )
        for name in ("questions", "runs", "k", "group", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}: {value}; expected 1 or more")
        if self.branch is not None and self.controller is not None:
            raise UsageError("branch: runs are branched without a controller; leave one of the two out")
        if self.controller is not None and (self.controller.kind is None) == (self.controller.policy is None):
            raise UsageError("controller: needs either `kind` or `policy`, and not both")
        if self.controller is not None and self.controller.policy is not None and self.controller.signals is not None:
            raise UsageError("controller.signals: is for a rule; a policy brings its own; leave it out")

    @property
    def driven(self) -> tuple[ReactConfig | PlanWriteConfig, ...]:
        """Those of the agents that the language model drives."""
        return tuple(agent for agent in (*self.react, *self.plan_write) if agent.name in self.agents)

    @property
    def uses_llm(self) -> bool:
        """Whether anything in it calls the language model, policies apart."""
        return (
            bool(self.driven)
            or self.rethinker.kind == "llm"
            or (self.controller is not None and (self.controller.coverage_judge == "llm" or self.controller.asks_model))
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make."""

    kind: str
    query: Query
    run_id: str


def under_arms(config: CollectConfig, split: Split) -> CollectConfig:
    """A collection that controllers are compared on: which, and over which split, stands outside of it.

    Raises:
        UsageError: it names a controller, branches or a split itself.
    """
    for name in ("controller", "branch"):
        if getattr(config, name) is not None:
            raise UsageError(
                f"arena.{name}: is for `stopwise collect`; the controllers that are run are named outside it"
            )
    if config.split != "all":
        raise UsageError("arena.split: `split` stands at the top; leave it out")
    return replace(config, split=split)


def questions_of(config: CollectConfig) -> list[Query]:
    """The questions that every agent is asked, in the order of the corpus.

    Raises:
        DataError: there are none, or the corpus cannot be read.
    """
    chosen = [query for query in read_queries(Path(config.corpus)) if config.split in ("all", split_of(query.id))]
    if config.questions is not None:
        chosen = sample_queries(chosen, config.questions)
    if not chosen:
        raise DataError(f"{config.corpus}: has no question in split {config.split}")
    return chosen


def groups_of(config: CollectConfig) -> list[list[Job]]:
    """All jobs, agent by agent and question by question, cut into groups."""
    queries = questions_of(config)
    prefix = "" if config.seed == 0 else f"{config.seed}."
    jobs = [
        Job(kind, query, f"{prefix}{number}")
        for number in range(config.runs)
        for kind in config.agents
        for query in queries
    ]
    return [jobs[start : start + config.group] for start in range(0, len(jobs), config.group)]
