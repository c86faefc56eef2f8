"""``stopwise replay``: a policy package over logs, as it would have run inside the agent."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stopwise.cli.output import SAMPLES, Progress, check_out, logs_path, print_json, say
from stopwise.data.records import Action

BLOCK = 100  # runs whose texts are embedded together


def add_parser(subparsers: Any) -> None:
    """Add the ``replay`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "replay",
        help="run a policy package over logs",
        description="Run a policy over logged runs, step by step, with signals computed anew, until it stops each run. "
        "Interventions are reported and the log goes on, since a log cannot say what they would have brought.",
        epilog="example: stopwise replay policy logs.parquet --out decisions.jsonl",
    )
    parser.add_argument("package", type=Path, metavar="DIR", help="policy package, or run folder of `stopwise train`")
    parser.add_argument("logs", metavar="LOGS", help=f"file that `stopwise import` wrote, or {SAMPLES!r}")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write each decision as a line of JSON")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--llm", type=Path, metavar="FILE", help="config of the model that the policy asks, if it does")
    parser.add_argument("--memory", type=Path, metavar="DIR", help="experience memory that the policy asks, if it does")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay, write the decisions, and report."""
    import contextlib
    from itertools import islice

    from stopwise.data.errors import UsageError
    from stopwise.data.files import atomic_path
    from stopwise.data.store import read_trajectories
    from stopwise.models.embedding_cache import default_cache
    from stopwise.train.train import run_folder

    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit {args.limit}; expected 1 or more")
    if args.out is not None:
        check_out(args.out, logs_path(args.logs))
    policy = _load(run_folder(args.package), args.cache or default_cache(), args.llm, args.memory)
    trajectories = islice(read_trajectories(logs_path(args.logs)), args.limit)
    tally = _Tally()
    with contextlib.ExitStack() as stack:
        sink = None
        if args.out is not None:
            sink = stack.enter_context(stack.enter_context(atomic_path(args.out)).open("w", encoding="utf-8"))
        for decisions in _replayed(policy, trajectories, tally):
            for decision in decisions if sink is not None else ():
                print(json.dumps(decision, ensure_ascii=False, allow_nan=False), file=sink)
    result = {"policy": policy.name, "logs": args.logs, **tally.summary(), "out": str(args.out) if args.out else None}
    if args.json:
        print_json(result)
    else:
        _tell(result)
    return 0


def _load(folder: Path, cache: Path, llm: Path | None, memory: Path | None) -> Any:
    """The policy, with the model and the memory that it asks."""
    from stopwise.controllers.connections import open_memory
    from stopwise.controllers.package import read_package
    from stopwise.data.config import load_config
    from stopwise.models.chat_config import ChatConfig, open_chat
    from stopwise.runtime.policy import Policy

    package = read_package(folder)
    client = None if llm is None else open_chat(load_config(ChatConfig, llm))
    known = None if memory is None else open_memory(memory, package.signals.encoder)
    return Policy(package, cache=cache, llm=client, memory=known)


class _Tally:
    """Sums over the replayed runs."""

    def __init__(self) -> None:
        self.actions: Counter[str] = Counter()
        self.runs = 0
        self.stopped = 0
        self.failures: Counter[str] = Counter()
        self.nulls: Counter[str] = Counter()
        self.searches: list[tuple[int, int]] = []  # (logged, made)
        self.recall: list[tuple[float, float]] = []  # (logged, kept)

    def summary(self) -> dict[str, Any]:
        """JSON-able figures."""
        logged = sum(pair[0] for pair in self.searches)
        made = sum(pair[1] for pair in self.searches)
        recall = np.array([pair for pair in self.recall if not np.isnan(pair[0])])
        return {
            "runs": self.runs,
            "stopped": self.stopped,
            "decisions": {action.name.lower(): self.actions[action.name.lower()] for action in Action},
            "searches_logged": logged,
            "searches_made": made,
            "saving": 1 - made / logged if logged else None,
            "runs_with_gold": len(recall),
            "recall_logged": float(recall[:, 0].mean()) if len(recall) else None,
            "recall_kept": float(recall[:, 1].mean()) if len(recall) else None,
            "missing_signals": dict(self.nulls.most_common()),
            "failures": dict(self.failures),
        }


def _replayed(policy: Any, trajectories: Iterator[Any], tally: _Tally) -> Iterator[list[dict[str, Any]]]:
    from stopwise.signals.compute import blocks, texts_of

    progress = Progress()
    for block in blocks(trajectories, BLOCK):
        if policy.encoder is not None:
            texts = (text for run in block for text in texts_of(run, policy.signal_config))
            policy.encoder.prefetch(texts, lambda done, total: progress("embedding texts", done, total))
        for trajectory in block:
            yield _replay_one(policy, trajectory, tally)


def _replay_one(policy: Any, trajectory: Any, tally: _Tally) -> list[dict[str, Any]]:
    from stopwise.signals.labels import label_tracker

    monitor = policy.monitor(trajectory.question, trajectory.criteria, agent=trajectory.agent)
    labels = label_tracker(trajectory)
    decisions: list[dict[str, Any]] = []
    kept = None
    for step in trajectory.steps:
        known = labels.observe(step)
        advice = monitor.observe_step(step) if kept is None else None
        if advice is None:
            continue
        tally.actions[advice.action.name.lower()] += 1
        tally.nulls.update(f"{name}: {reason}" for name, reason in advice.nulls.items())
        decisions.append(
            {
                "trajectory": trajectory.id,
                "t": advice.t,
                "action": advice.action.name.lower(),
                "probabilities": list(advice.probabilities),
                "message": advice.message,
                "signals": dict(advice.signals),
                "nulls": dict(advice.nulls),
            }
        )
        if advice.action is Action.STOP and known is not None:
            kept = known.recall
    final = labels.finish()
    tally.runs += 1
    tally.stopped += kept is not None
    tally.searches.append((len(trajectory.search_steps), len(decisions)))
    tally.recall.append((final.recall, final.recall if kept is None else kept))
    tally.failures.update(monitor.failures)
    if monitor.counts.last_failure is not None:
        tally.failures[monitor.counts.last_failure] += monitor.counts.failures
    return decisions


def _tell(result: dict[str, Any]) -> None:
    decisions = ", ".join(f"{count} {name}" for name, count in result["decisions"].items())
    saving = "-" if result["saving"] is None else f"{result['saving']:.1%}"
    print(
        f"{result['policy']}: {result['stopped']} of {result['runs']} runs stopped early, "
        f"{result['searches_made']} of {result['searches_logged']} searches made ({saving} saved); {decisions}"
    )
    if result["recall_logged"] is not None:
        print(
            f"recall of {result['runs_with_gold']} runs with gold: {result['recall_kept']:.3f} kept, "
            f"{result['recall_logged']:.3f} in the logs"
        )
    if result["missing_signals"]:
        say("missing signals: " + ", ".join(f"{name} ({count})" for name, count in result["missing_signals"].items()))
    for failure, count in result["failures"].items():
        say(f"{count} decisions failed and went on: {failure}")
