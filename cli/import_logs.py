"""``stopwise import``: other tools' logs into one Parquet file of trajectories."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stopwise.data.errors import DataError, UsageError
from stopwise.data.importers import FORMATS, Source, choose, read_sources
from stopwise.data.importers.toolbox import ImportProblem, id_source
from stopwise.data.records import Trajectory

_LISTED = 1000  # problems that the JSON summary lists; all are counted
_SHOWN = 5  # problems shown to a person


def add_parser(subparsers: Any) -> None:
    """Add the ``import`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "import",
        help="read other tools' logs into one Parquet file of trajectories",
        description="Read logs of deep-search agents, whatever tool wrote them, into one Parquet file of trajectories. "
        "The format is recognised by content; records that cannot be read are reported and the rest is imported.",
        epilog="example: stopwise import runs/*.jsonl --gold hotpot_dev.json --out logs.parquet",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="log files")
    parser.add_argument(
        "--format", default="auto", metavar="F", help=f"auto (the default), or one of {', '.join(FORMATS)}"
    )
    parser.add_argument(
        "--gold", type=Path, metavar="FILE", help="relevant documents: HotpotQA questions, TREC qrels or BEIR qrels"
    )
    parser.add_argument("--strict", action="store_true", help="stop at the first record that cannot be read")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the Parquet file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Import, write, and report; raises `StopwiseError` where nothing could be imported."""
    from stopwise.data.gold import GoldReport, join_gold, load_gold
    from stopwise.data.store import write_trajectories

    if args.out.is_dir():
        raise UsageError(f"--out {args.out}: is a folder; expected a file to write; name a file")
    gold = load_gold(args.gold) if args.gold else None
    sources = choose(args.paths, args.format)
    for source in sources[:20]:
        also = f" (runner-up: {source.runner_up})" if source.runner_up else ""
        print(f"reading {source.path} as {source.format}{also}", file=sys.stderr)
    tally = Tally()
    trajectories = _good_ones(sources, tally, args.strict)
    report = GoldReport()
    if gold:
        trajectories = join_gold(trajectories, gold, report)
    write_trajectories(args.out, _at_least_one(_counted(trajectories, tally), sources, tally))
    summary = tally.summary(sources, args.out)
    if gold:
        summary["gold"] = report.as_dict(gold)
    if args.json:
        print(json.dumps(summary, ensure_ascii=False, allow_nan=False))
    _tell(summary)
    return 0


class Tally:
    """Counts over one import; its memory grows with the questions, not with the trajectories."""

    def __init__(self) -> None:
        self.trajectories = 0
        self.questions: set[str] = set()
        self.search_steps = 0
        self.documents = 0  # results of all steps, a document that came twice counts twice
        self.outcomes: Counter[str] = Counter()
        self.id_sources: Counter[str] = Counter()
        self.with_gold = 0
        self.problems: list[ImportProblem] = []
        self.problem_count = 0

    def add(self, trajectory: Trajectory) -> None:
        """Count one trajectory."""
        self.trajectories += 1
        self.questions.add(trajectory.question_id)
        self.search_steps += len(trajectory.search_steps)
        for step in trajectory.steps:
            self.documents += len(step.documents)
            self.id_sources.update(id_source(document.id) for document in step.documents)
        self.outcomes[trajectory.outcome] += 1
        self.with_gold += trajectory.gold_ids is not None

    def add_problem(self, problem: ImportProblem) -> None:
        """Count one problem, and keep it while few are kept."""
        self.problem_count += 1
        if len(self.problems) < _LISTED:
            self.problems.append(problem)

    def summary(self, sources: list[Source], out: Path) -> dict[str, Any]:
        """The JSON-able result of the command."""
        return {
            "format": ", ".join(dict.fromkeys(source.format for source in sources)),
            "trajectories": self.trajectories,
            "questions": len(self.questions),
            "search_steps": self.search_steps,
            "documents": self.documents,
            "document_ids": {name: self.id_sources[name] for name in ("log", "url", "title", "text")},
            "outcomes": {name: self.outcomes[name] for name in ("correct", "incorrect", "halted", "unknown")},
            "with_gold": self.with_gold,
            "problem_count": self.problem_count,
            "problems": [
                {"file": problem.file, "where": problem.where, "reason": problem.reason} for problem in self.problems
            ],
            "out": str(out),
        }


def _good_ones(sources: list[Source], tally: Tally, strict: bool) -> Iterator[Trajectory]:
    for found in read_sources(sources):
        if isinstance(found, Trajectory):
            yield found
        elif strict:
            raise DataError(f"{found}; --strict stops here, without it the rest is imported")
        else:
            tally.add_problem(found)


def _counted(trajectories: Iterator[Trajectory], tally: Tally) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        tally.add(trajectory)
        yield trajectory


def _at_least_one(trajectories: Iterator[Trajectory], sources: list[Source], tally: Tally) -> Iterator[Trajectory]:
    """Pass trajectories on; an import of none is an error, so that no empty file replaces a good one."""
    yield from trajectories
    if tally.trajectories:
        return
    formats = ", ".join(dict.fromkeys(source.format for source in sources))
    files = str(sources[0].path) if len(sources) == 1 else f"{len(sources)} files"
    first = f"; the first problem is {tally.problems[0]}" if tally.problems else ""
    raise DataError(f"{files}: no trajectory could be read as {formats}{first}")


def _tell(summary: dict[str, Any]) -> None:
    outcomes = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items() if count)
    print(
        f"{summary['trajectories']} trajectories of {summary['questions']} questions ({outcomes}), "
        f"{summary['search_steps']} search steps, {summary['documents']} documents -> {summary['out']}",
        file=sys.stderr,
    )
    if "gold" in summary:
        gold = summary["gold"]
        print(
            f"{summary['with_gold']} trajectories have gold; documents matched by {gold['documents_matched_by']}; "
            f"{gold['questions_matched']} of {gold['questions']} gold questions used",
            file=sys.stderr,
        )
    if summary["problem_count"]:
        print(f"{summary['problem_count']} records could not be read:", file=sys.stderr)
        for problem in summary["problems"][:_SHOWN]:
            print(f"  {ImportProblem(**problem)}", file=sys.stderr)
        if summary["problem_count"] > _SHOWN:
            print(f"  and {summary['problem_count'] - _SHOWN} more (--json lists them)", file=sys.stderr)
