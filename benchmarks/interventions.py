"""What stopping and intervening bring in the arena: never stop, stop at an alarm, intervene first, spend at random.

    python benchmarks/interventions.py --world runs/world --questions 600 --out docs/results/interventions.json

Every arm meets the same questions, agents and random numbers; the agent kinds take turns over the questions. The alarm
is that of the prototype: Nov over three searches at most 0.45 and no gain in the agent's believed coverage in three
searches, at least three searches after the last intervention. Intervals are 95%, by bootstrap over questions.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.corpus import Query, read_corpus, read_queries
from stopwise.data.files import sha256_file, write_json
from stopwise.data.records import Action, Step, Trajectory
from stopwise.envs.arena.agents import ScriptedAgent
from stopwise.envs.arena.branching import recall
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.loop import LoopConfig, Overseer, Run, Verdict, run_in_step
from stopwise.envs.arena.population import sample_queries
from stopwise.envs.arena.puzzle import Reader, make_reader, puzzle_of
from stopwise.envs.arena.rethinkers import HeuristicRethinker, RandomRethinker, Rethinker, criteria_of
from stopwise.envs.arena.retrievers import BM25Retriever, DenseRetriever, Retriever

UNLIMITED = 1000
GROUP = 100  # runs side by side


@dataclass(frozen=True)
class Arm:
    """What happens at an alarm."""

    name: str
    interventions: int | None  # so many, then stop; None never stops and never intervenes
    rethinker: str = "heuristic"  # heuristic, random, random+redirect


ARMS = (
    Arm("never stop", None),
    Arm("stop at the first alarm", 0),
    Arm("two interventions, then stop", 2),
    Arm("four interventions, then stop", 4),
    Arm("unlimited interventions", UNLIMITED),
    Arm("two random queries, then stop", 2, "random"),
    Arm("two random queries, told to change course, then stop", 2, "random+redirect"),
    Arm("unlimited random queries", UNLIMITED, "random"),
    Arm("unlimited random queries, told to change course", UNLIMITED, "random+redirect"),
)


@dataclass
class Alarm:
    """The overseer of one run."""

    agent: ScriptedAgent
    interventions: int  # allowed, then it stops
    rethinker: Rethinker
    run_id: str
    window: int = 3
    threshold: float = 0.45
    used: int = 0
    last: int = -UNLIMITED  # search of the last intervention
    seen: set[str] = field(default_factory=set)
    novelty: list[float] = field(default_factory=list)
    coverage: list[float] = field(default_factory=lambda: [0.0])

    def after_search(self, question: Query, steps: Sequence[Step]) -> Verdict:
        """Raise the alarm, and act on it."""
        ids = {document.id for document in steps[-1].documents}
        self.novelty.append(len(ids - self.seen) / len(ids) if ids else 0.0)
        self.seen |= ids
        self.coverage.append(self.agent.coverage)
        t = len(self.novelty)
        if t <= self.window or t - self.last < self.window:
            return Verdict()
        quiet = float(np.mean(self.novelty[-self.window :])) <= self.threshold
        if not quiet or self.coverage[-1] > self.coverage[-1 - self.window]:
            return Verdict()
        if self.used >= self.interventions:
            return Verdict(Action.STOP)
        self.used, self.last = self.used + 1, t
        return Verdict(Action.INTERVENE, None, self.rethinker.propose(question, steps, self.run_id))

    def at_attempt(self, question: Query, steps: Sequence[Step], answer: str | None) -> Verdict:
        """Let every attempt through."""
        return Verdict(Action.STOP)


def run_arm(
    arm: Arm,
    queries: Sequence[Query],
    kinds: Sequence[str],
    reader: Reader,
    retriever: Retriever,
    pool: tuple[str, ...],
) -> Iterator[Trajectory]:
    """Run an arm; question n is given to kind n modulo the number of kinds."""
    rethinkers: dict[str, Rethinker] = {
        "heuristic": HeuristicRethinker(),
        "random": RandomRethinker(pool),
        "random+redirect": RandomRethinker(pool, redirects=True),
    }
    for start in range(0, len(queries), GROUP):
        runs: list[Run] = []
        for number, query in enumerate(queries[start : start + GROUP], start):
            kind = KINDS[kinds[number % len(kinds)]]
            agent = ScriptedAgent(kind, puzzle_of(query), reader, f"{kind.name}/{query.id}/0")
            overseer: Overseer | None = None
            if arm.interventions is not None:
                overseer = Alarm(agent, arm.interventions, rethinkers[arm.rethinker], f"{kind.name}/{query.id}")
            runs.append(Run(agent, query, "0", LoopConfig(probe=False), overseer))
        yield from run_in_step(runs, retriever, 5)


def bootstrap(values: NDArray[np.float64], seed: int = 0, resamples: int = 2000) -> dict[str, Any]:
    """Mean and 95% interval over questions, shape (questions,)."""
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=resamples)
    means = weights @ values / len(values)
    low, high = np.quantile(means, (0.025, 0.975))
    return {"mean": float(values.mean()), "ci": [float(low), float(high)]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all arms and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=Path, required=True, help="a generated world (`stopwise world --out DIR`)")
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=["chaser", "verifier", "rephraser"])
    parser.add_argument("--retriever", choices=("dense", "bm25"), default="dense")
    parser.add_argument("--cache", type=Path, help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)
    documents = list(read_corpus(options.world))
    everything = list(read_queries(options.world))
    queries = sample_queries(everything, options.questions)
    pool = tuple(dict.fromkeys(text for query in everything for text in criteria_of(query)))
    reader = make_reader(documents)
    retriever = make_retriever(options, documents)

    rows: list[dict[str, Any]] = []
    base: dict[str, NDArray[np.float64]] = {}
    for arm in ARMS:
        runs = list(run_arm(arm, queries, options.kinds, reader, retriever, pool))
        recalls = np.array([recall(run.steps, run.gold_ids) for run in runs])
        searches = np.array([float(len(run.search_steps)) for run in runs])
        used = [sum(step.logged_action is Action.INTERVENE for step in run.search_steps) for run in runs]
        correct = np.array([float(run.correct is True) for run in runs])
        measures = {"recall": recalls, "searches": searches, "interventions": np.array(used, float), "correct": correct}
        base = base or measures
        rows.append(
            {"arm": asdict(arm)}
            | {name: bootstrap(values) for name, values in measures.items()}
            | {f"{name}_difference": bootstrap(measures[name] - base[name]) for name in ("recall", "searches")}
        )
        print(describe(rows[-1]), file=sys.stderr, flush=True)
    result = {
        "command": ["python", "benchmarks/interventions.py", *(arguments or sys.argv[1:])],
        "sha256": {name: sha256_file(options.world / name) for name in ("corpus.jsonl", "queries.jsonl")},
        "questions": len(queries),
        "kinds": options.kinds,
        "retriever": retriever.id,
        "rows": rows,
    }
    write_json(options.out, result)
    return 0


def make_retriever(options: argparse.Namespace, documents: list[Any]) -> Retriever:
    """The retriever that was asked for."""
    if options.retriever == "bm25":
        return BM25Retriever(documents)
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import SentenceTransformerEncoder

    encoder = CachedEncoder(SentenceTransformerEncoder(), options.cache)
    encoder.prefetch(document.passage for document in documents)
    return DenseRetriever.build(documents, encoder)


def describe(row: dict[str, Any]) -> str:
    """One line for people."""

    def show(name: str, form: Callable[[float], str]) -> str:
        low, high = row[name]["ci"]
        return f"{name} {form(row[name]['mean'])} [{form(low)}, {form(high)}]"

    parts = [show("recall", "{:.3f}".format), show("searches", "{:.1f}".format), show("interventions", "{:.1f}".format)]
    return f"{row['arm']['name']}: {', '.join(parts)}, {show('recall_difference', '{:+.3f}'.format)}"


if __name__ == "__main__":
    sys.exit(main())
