"""Building an experience memory offline from logged runs ([DS-MCM] 3.3.1): `stopwise train configs/memory.yaml`."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stopwise.controllers.base import check_number
from stopwise.controllers.memory.entries import Entry, Label
from stopwise.controllers.memory.memory import TAU_DUP, ExperienceMemory
from stopwise.controllers.memory.sessions import EXTRACTIVE, extract_abstraction, history_summary, session_text
from stopwise.data.errors import DataError
from stopwise.data.records import Step, Trajectory
from stopwise.data.splits import split_of
from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.chat_config import ChatConfig
from stopwise.models.prompts import load_prompt, quote

MAX_TOKENS = 200  # of an abstraction


@dataclass(frozen=True)
class MemoryConfig:
    """One memory."""

    logs: str  # file that `stopwise import` or `stopwise collect` wrote, or "samples"
    kind: str = "memory"
    name: str | None = None  # what tables call it
    min_trajectories: int = 500  # runs of training questions with a known outcome, at least ([DS-MCM] 4.1.1: 500)
    max_trajectories: int | None = None  # the first so many; None: all
    agents: tuple[str, ...] | None = None  # only runs of these; None: of all
    datasets: tuple[str, ...] | None = None  # likewise
    sessions: int | None = None  # search steps of a run, spread evenly; None: all
    tau_dup: float = TAU_DUP  # cosine from which an entry is a near duplicate
    encoder: str | None = None  # sentence-transformers model; None: MiniLM
    cache: str | None = None  # embedding cache; None: in stopwise's cache folder
    llm: ChatConfig | None = None  # writes the abstractions; None: the extractive ones, named as such

    def __post_init__(self) -> None:
        check_number("min_trajectories", self.min_trajectories, low=1, whole=True)
        for name in ("max_trajectories", "sessions"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), low=1, whole=True)
        check_number("tau_dup", self.tau_dup, low=-1, high=1)


class Abstractor(Protocol):
    """Writes z, the abstraction of a session ([DS-MCM] eq. 11)."""

    @property
    def id(self) -> str:
        """Who writes: "extractive@1", or the model and the prompts' versions."""
        ...

    def __call__(self, steps: tuple[Step, ...], session: str, history: str, label: Label) -> str | None:
        """The abstraction of the last of `steps`; None when there is none to be had."""
        ...


class Extractive:
    """Abstractions by rules, without a model: see `extract_abstraction`."""

    id = EXTRACTIVE

    def __call__(self, steps: tuple[Step, ...], session: str, history: str, label: Label) -> str | None:
        """See `Abstractor`."""
        return extract_abstraction(steps, label)


@dataclass(frozen=True, slots=True)
class Abstraction:
    """What the model replies, the same for both labels."""

    behaviour: str
    insight: str


class ByModel:
    """Abstractions by a language model, with a prompt for each label. Failures are counted by kind.

    Args:
        client: calls the model.
    """

    def __init__(self, client: ChatClient) -> None:
        self._client = client
        self._prompts = {"success": load_prompt("memory_success"), "failure": load_prompt("memory_failure")}
        self.failures: Counter[str] = Counter()

    @property
    def id(self) -> str:
        """Model and versions of the prompts."""
        return " ".join([self._client.id, *(prompt.version for prompt in self._prompts.values())])

    def __call__(self, steps: tuple[Step, ...], session: str, history: str, label: Label) -> str | None:
        """See `Abstractor`."""
        text = self._prompts[label].fill(
            session=quote("session", session), history=quote("history", history or "This is the first step.")
        )
        try:
            asked = self._client.ask(
                ChatRequest((Message("user", text),), MAX_TOKENS), Abstraction, "controller", check=_not_empty
            )
        except ChatFailure as failure:
            self.failures[failure.kind] += 1
            return None
        return f"{asked.answer.behaviour.strip()}\n{asked.answer.insight.strip()}"


def _not_empty(answer: Abstraction) -> str | None:
    return None if answer.behaviour.strip() and answer.insight.strip() else "behaviour and insight must not be empty"


def label_of(run: Trajectory) -> Label | None:
    """The outcome of a run, which all its sessions get ([DS-MCM] eq. 10); None where nobody knows it.

    A run that ended without an answer of its own is a failure.
    """
    if run.outcome == "unknown":
        return None
    return "success" if run.outcome == "correct" else "failure"


def build_memory(
    read: Callable[[], Iterable[Trajectory]],
    memory: ExperienceMemory,
    config: MemoryConfig,
    abstractor: Abstractor,
    progress: Callable[[str, int, int | None], None] = lambda what, done, total: None,
) -> dict[str, Any]:
    """Fill a memory with the sessions of training questions' runs.

    Args:
        read: logged trajectories of any split; they are streamed twice.
        memory: where the entries go.
        config: bounds.
        abstractor: writes the abstractions.
        progress: called with what is done, how much, and of how much.

    Returns:
        A JSON-able record of what came in and what was left out.

    Raises:
        DataError: fewer runs than `min_trajectories`, or no success, or no failure.
    """
    labels, left_out = _survey(read(), config)  # before anything is embedded
    total = min(labels.total(), config.max_trajectories or labels.total())
    taken: Counter[str] = Counter()
    sessions = kept = lost = 0
    workers = config.llm.parallel if config.llm is not None else 1
    with ThreadPoolExecutor(workers) as pool:
        for run, label in _chosen(read(), config):
            if taken.total() == total:
                break
            taken[label] += 1
            entries = list(pool.map(_entry_maker(run, label, abstractor), _positions(run, config)))
            sessions += len(entries)
            lost += sum(entry is None for entry in entries)
            kept += memory.add_all(entry for entry in entries if entry is not None)
            progress("memory: runs", taken.total(), total)
    memory.save_indexes()
    return {
        "kind": "memory",
        "runs": {"success": taken["success"], "failure": taken["failure"]},
        "left_out": {**left_out, "runs beyond max_trajectories": labels.total() - total},
        "sessions": sessions,
        "sessions_without_abstraction": lost,
        "near_duplicates": sessions - kept - lost,
        "entries": memory.counts(),
        "search": memory.kinds(),
        "abstractions": abstractor.id,
        "tau_dup": config.tau_dup,
    }


def _chosen(runs: Iterable[Trajectory], config: MemoryConfig) -> Iterator[tuple[Trajectory, Label]]:
    """The runs that a memory is built from, with their labels."""
    for run in runs:
        label = label_of(run)
        if label is not None and run.search_steps and split_of(run.question_id) == "train" and _wanted(run, config):
            yield run, label


def _wanted(run: Trajectory, config: MemoryConfig) -> bool:
    return (config.agents is None or run.agent in config.agents) and (
        config.datasets is None or run.dataset in config.datasets
    )


def _survey(runs: Iterable[Trajectory], config: MemoryConfig) -> tuple[Counter[str], dict[str, int]]:
    """How many runs there are by label, and how many are left out and why."""
    left_out: dict[str, int] = dict.fromkeys(
        (
            "runs of other splits",
            "runs of other agents or datasets",
            "runs without a search",
            "runs without a known outcome",
        ),
        0,
    )

    def counted() -> Iterator[Trajectory]:
        for run in runs:
            left_out["runs of other splits"] += (other := split_of(run.question_id) != "train")
            left_out["runs of other agents or datasets"] += (foreign := not other and not _wanted(run, config))
            left_out["runs without a search"] += (idle := not other and not foreign and not run.search_steps)
            left_out["runs without a known outcome"] += not (other or foreign or idle) and label_of(run) is None
            yield run

    labels: Counter[str] = Counter(label for _, label in _chosen(counted(), config))
    if labels.total() < config.min_trajectories or len(labels) < 2:
        raise DataError(
            f"{config.logs}: {labels['success']} successful and {labels['failure']} failed runs of training questions; "
            f"expected both, and at least {config.min_trajectories} together; collect or import more, or lower "
            f"min_trajectories ({', '.join(f'{count} {what}' for what, count in left_out.items())})"
        )
    return labels, left_out


def _positions(run: Trajectory, config: MemoryConfig) -> list[int]:
    """Positions among a run's steps of the searches that become entries."""
    searches = [position for position, step in enumerate(run.steps) if step.kind == "search"]
    if config.sessions is None or len(searches) <= config.sessions:
        return searches
    spread = np.linspace(0, len(searches) - 1, config.sessions).round().astype(int)
    return [searches[position] for position in spread]


def _entry_maker(run: Trajectory, label: Label, abstractor: Abstractor) -> Callable[[int], Entry | None]:
    def make(position: int) -> Entry | None:
        session = session_text(run.question, run.steps[position])
        history = history_summary(run.steps[:position])
        abstraction = abstractor(run.steps[: position + 1], session, history, label)
        if abstraction is None:
            return None
        return Entry(
            session,
            history,
            abstraction,
            label,
            run.question_id,
            question=run.question,
            agent=run.agent,
            dataset=run.dataset,
            abstraction_by=abstractor.id,
        )

    return make
