"""``stopwise import``: other tools' logs into one Parquet file of trajectories."""

import argparse
import gc
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from stopwise.cli.output import check_out
from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import atomic_path, check_file_target
from stopwise.data.importers import FORMATS, Plan, choose, importer, read_sources
from stopwise.data.importers.toolbox import ImportProblem, id_source
from stopwise.data.importers.tools import TOOLS
from stopwise.data.questions import QuestionReport, settle_question_ids
from stopwise.data.records import Trajectory

_LISTED = 1000  # problems that the JSON summary lists; all are counted
_SHOWN = 5  # problems shown to a person
_FILES_SHOWN = 20  # files whose format is said


def add_parser(subparsers: Any) -> None:
    """Add the ``import`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "import",
        help="read other tools' logs into one Parquet file of trajectories",
        description="Read logs of deep-search agents, whatever tool wrote them, into one Parquet file of trajectories. "
        "The format is recognised by content; records that cannot be read are reported, listed beside the output, and "
        "the rest is imported. gzip and Zstandard are unpacked.",
        epilog="example: stopwise import runs/ --gold hotpot_dev.json --out logs.parquet",
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="log files, folders, 'patterns*', or - for standard input"
    )
    parser.add_argument(
        "--format", default="auto", metavar="F", help=f"auto (the default), or one of {', '.join(FORMATS)}"
    )
    parser.add_argument(
        "--gold", type=Path, metavar="FILE", help="relevant documents: HotpotQA questions, TREC qrels or BEIR qrels"
    )
    parser.add_argument(
        "--search-tool", action="append", default=[], metavar="NAME", help="a tool that searches; may be given again"
    )
    parser.add_argument("--agent", metavar="NAME", help="the agent's name, where a log does not say it")
    parser.add_argument("--dataset", metavar="NAME", help="the dataset's name, where a log does not say it")
    parser.add_argument("--strict", action="store_true", help="stop at the first record that cannot be read")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the Parquet file to write")
    parser.add_argument("--list-formats", action="store_true", help="show each format in one line, and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Import, write, and report; raises `StopwiseError` where nothing could be imported."""
    if args.list_formats:
        return _list_formats(args.json)
    if not args.paths:
        raise UsageError("import: no PATH given; name log files, folders, or - for standard input")
    if "" in args.paths:  # as from a variable that is not set; Path("") is the folder that one stands in
        raise UsageError("import: a PATH is empty, ''; name log files, folders, or - for standard input")
    if args.out is None:
        raise UsageError("import: --out FILE is missing; name the Parquet file to write")
    check_file_target(args.out)
    named = [Path(word) for word in args.paths]
    check_out(args.out, *named, args.gold)
    from stopwise.data.importers.inputs import spooled_stdin

    with spooled_stdin(named) as paths, _rare_collection():
        summary = _import(args, paths)
    if args.json:
        print(json.dumps(summary, ensure_ascii=False, allow_nan=False))
    _tell(summary)
    return 0


def _import(args: argparse.Namespace, paths: list[Path]) -> dict[str, Any]:
    from stopwise.data.gold import GoldReport, join_gold, load_gold
    from stopwise.data.store import write_trajectories

    gold = load_gold(args.gold) if args.gold else None
    plan = choose(paths, args.format, leave_out=(args.out, problems_file(args.out)))
    for source in plan.sources[:_FILES_SHOWN]:
        also = f" (runner-up: {source.runner_up})" if source.runner_up else ""
        print(f"reading {source.path} as {source.format}{also}", file=sys.stderr)
    if len(plan.sources) > _FILES_SHOWN:
        print(f"reading {len(plan.sources) - _FILES_SHOWN} more files", file=sys.stderr)
    with Tally() as tally:
        found = chain(plan.skipped, read_sources(plan.sources, TOOLS.with_search(args.search_tool)))
        trajectories = _named(_good_ones(found, tally, args.strict), args.agent, args.dataset)
        report = GoldReport()
        if gold:
            trajectories = join_gold(trajectories, gold, report)
        questions = QuestionReport()
        trajectories = settle_question_ids(trajectories, questions)
        write_trajectories(args.out, _at_least_one(_counted(trajectories, tally), plan, tally))
        summary = tally.summary(plan, args.out, questions)
        if gold:
            summary["gold"] = report.as_dict(gold)
        summary["problems_file"] = tally.write_problems(args.out)
    return summary


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Collect garbage rarely: records hold no cycles, and looking for some takes a fifth of an import's time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def problems_file(out: Path) -> Path:
    """Where the problems of an import are listed."""
    return out.with_name(out.name + ".problems.jsonl")


def _list_formats(as_json: bool) -> int:
    pictures = {name: importer(name).PICTURE for name in FORMATS}
    if as_json:
        print(json.dumps({"formats": pictures}, ensure_ascii=False))
    else:
        width = max(map(len, pictures))
        print("\n".join(f"{name:{width}}  {picture}" for name, picture in pictures.items()))
    return 0


class Tally:
    """Counts over one import; its memory grows with neither the trajectories nor the problems."""

    def __init__(self) -> None:
        self.trajectories = 0
        self.search_steps = 0
        self.documents = 0  # results of all steps, a document that came twice counts twice
        self.outcomes: Counter[str] = Counter()
        self.id_sources: Counter[str] = Counter()
        self.with_gold = 0
        self.problems: list[ImportProblem] = []
        self.problem_count = 0
        # all problems, one JSON object a line; closed on exit
        self._spool: IO[bytes] = SpooledTemporaryFile(max_size=1 << 20)  # noqa: SIM115

    def __enter__(self) -> "Tally":
        return self

    def __exit__(self, *error: object) -> None:
        self._spool.close()

    def add(self, trajectory: Trajectory) -> None:
        """Count one trajectory."""
        self.trajectories += 1
        self.search_steps += len(trajectory.search_steps)
        for step in trajectory.steps:
            self.documents += len(step.documents)
            self.id_sources.update(id_source(document.id) for document in step.documents)
        self.outcomes[trajectory.outcome] += 1
        self.with_gold += trajectory.gold_ids is not None

    def add_problem(self, problem: ImportProblem) -> None:
        """Count one problem, and keep it while few are kept."""
        self.problem_count += 1
        self._spool.write(json.dumps(asdict(problem), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        if len(self.problems) < _LISTED:
            self.problems.append(problem)

    def write_problems(self, out: Path) -> str | None:
        """List all problems beside `out`; a list that an earlier import left there is removed when there are none."""
        target = problems_file(out)
        if not self.problem_count:
            target.unlink(missing_ok=True)
            return None
        self._spool.seek(0)
        with atomic_path(target) as partial, partial.open("wb") as file:
            shutil.copyfileobj(self._spool, file)
        return str(target)

    def summary(self, plan: Plan, out: Path, questions: QuestionReport) -> dict[str, Any]:
        """The JSON-able result of the command."""
        return {
            "format": ", ".join(dict.fromkeys(source.format for source in plan.sources)),
            "files": len(plan.sources),
            "trajectories": self.trajectories,
            "questions": questions.questions,
            "question_ids": questions.as_dict(),
            "search_steps": self.search_steps,
            "documents": self.documents,
            "document_ids": {name: self.id_sources[name] for name in ("log", "url", "title", "text")},
            "outcomes": {name: self.outcomes[name] for name in ("correct", "incorrect", "halted", "unknown")},
            "with_gold": self.with_gold,
            "problem_count": self.problem_count,
            "problems": [asdict(problem) for problem in self.problems],
            "out": str(out),
        }


def _good_ones(found: Iterable[Trajectory | ImportProblem], tally: Tally, strict: bool) -> Iterator[Trajectory]:
    for item in found:
        if isinstance(item, Trajectory):
            yield item
        elif strict:
            raise DataError(f"{item}; --strict stops here, without it the rest is imported")
        else:
            tally.add_problem(item)


def _named(trajectories: Iterator[Trajectory], agent: str | None, dataset: str | None) -> Iterator[Trajectory]:
    """Fill in names that the logs lack; what a log says itself stays."""
    for run in trajectories:
        names = {"agent": run.agent or agent, "dataset": run.dataset or dataset}
        yield run if (run.agent, run.dataset) == tuple(names.values()) else replace(run, **names)


def _counted(trajectories: Iterator[Trajectory], tally: Tally) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        tally.add(trajectory)
        yield trajectory


def _at_least_one(trajectories: Iterator[Trajectory], plan: Plan, tally: Tally) -> Iterator[Trajectory]:
    """Pass trajectories on; an import of none is an error, so that no empty file replaces a good one."""
    yield from trajectories
    if tally.trajectories:
        return
    formats = ", ".join(dict.fromkeys(source.format for source in plan.sources))
    files = str(plan.sources[0].path) if len(plan.sources) == 1 else f"{len(plan.sources)} files"
    first = f"; the first problem is {tally.problems[0]}" if tally.problems else ""
    raise DataError(f"{files}: no trajectory could be read as {formats}{first}")


def _tell(summary: dict[str, Any]) -> None:
    outcomes = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items() if count)
    print(
        f"{summary['trajectories']} trajectories of {summary['questions']} questions ({outcomes}), "
        f"{summary['search_steps']} search steps, {summary['documents']} documents -> {summary['out']}",
        file=sys.stderr,
    )
    if not summary["search_steps"]:
        print(
            "no search step in any of them: is it the right format, and does stopwise know the tool that searches "
            "(--search-tool NAME)?",
            file=sys.stderr,
        )
    if "gold" in summary:
        gold = summary["gold"]
        print(
            f"{summary['with_gold']} trajectories have gold; documents matched by {gold['documents_matched_by']}; "
            f"{gold['questions_matched']} of {gold['questions']} gold questions used",
            file=sys.stderr,
        )
    _tell_questions(summary["question_ids"])
    if summary["problem_count"]:
        print(f"{summary['problem_count']} records could not be read:", file=sys.stderr)
        for problem in summary["problems"][:_SHOWN]:
            print(f"  {ImportProblem(**problem)}", file=sys.stderr)
        print(f"  all are listed in {summary['problems_file']}", file=sys.stderr)


def _tell_questions(ids: dict[str, Any]) -> None:
    """Say where questions did not keep the ids that their logs gave them."""
    lines = {
        "numbered": "had a bare number as question id: it became dataset:number, or an id made from the question",
        "merged": "ask a question that came before under another id, and share that one",
        "parted": "had a counted question id that came before with another question, and have an id of their own",
    }
    for name, text in lines.items():
        if ids[name]:
            print(f"{ids[name]} trajectories {text}", file=sys.stderr)
    for name, text in ids["reworded_examples"].items():
        print(f"question id {name} has several texts, taken as one question; a later one: {text!r}", file=sys.stderr)
