"""``stopwise inspect``: what a file of trajectories holds, and one trajectory as a readable page."""

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopwise.data.errors import DataError
from stopwise.data.records import Step, Trajectory

if TYPE_CHECKING:
    from stopwise.signals.table import SignalTable
    from stopwise.signals.tracker import SignalRow

# trajectory and step fields whose absence a user should see at once
_TRAJECTORY_FIELDS = ("answer", "correct", "gold_ids", "criteria", "agent", "dataset")
_STEP_FIELDS = ("thought", "logprobs", "answer_probe", "logged_action", "tokens_in", "tokens_out", "seconds")
_DOCUMENT_FIELDS = ("text", "title", "url", "score")
_TEXT_SHOWN = 160  # characters of a document on the page


def add_parser(subparsers: Any) -> None:
    """Add the ``inspect`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what a file of trajectories holds, or one trajectory",
        description="Without ID: a summary of the file, by agent and dataset. With ID: that trajectory, step by step, "
        "each document marked new or seen, and gold where it is known. With --signals: the signals of each search "
        "step, or why there is none.",
        epilog="example: stopwise inspect logs.parquet; stopwise inspect logs.parquet row-17",
    )
    parser.add_argument("logs", type=Path, metavar="LOGS", help="Parquet file that `stopwise import` wrote")
    parser.add_argument("id", nargs="?", metavar="ID", help="id of one trajectory, or its number in the file from 1")
    parser.add_argument("--signals", type=Path, metavar="FILE", help="what `stopwise signals LOGS` wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the summary or the page."""
    table = None if args.signals is None else signals_of(args.logs, args.signals)
    if args.id is not None:
        trajectory = find_trajectory(args.logs, args.id)
        rows = None if table is None else signal_rows(table, trajectory)
        if args.json:
            from stopwise.data.codec import trajectory_to_dict

            page = trajectory_to_dict(trajectory)
            if rows is not None:
                page["signals"] = [{"t": row.t, "values": dict(row.values), "nulls": dict(row.nulls)} for row in rows]
            print(json.dumps(page, ensure_ascii=False, allow_nan=False))
        else:
            _print_page(trajectory, rows)
        return 0
    summary = summarise(args.logs, table)
    if args.json:
        print(json.dumps(summary, ensure_ascii=False, allow_nan=False))
    else:
        _print_summary(summary)
    return 0


def signals_of(logs: Path, path: Path) -> "SignalTable":
    """The signal table of a file of trajectories.

    Raises:
        DataError: it is no signal table, or was computed from other logs.
    """
    from stopwise.data.files import sha256_file
    from stopwise.data.store import count_trajectories
    from stopwise.signals.table import read_table

    count = count_trajectories(logs)  # also checks that it is a file of trajectories
    table = read_table(path)
    if len(table) != count or table.info.logs_sha256 not in (None, sha256_file(logs)):
        raise DataError(f"{path}: was computed from other logs than {logs}; compute the signals again")
    return table


def signal_rows(table: "SignalTable", trajectory: Trajectory) -> list["SignalRow"]:
    """The signals of each search step of a trajectory.

    Raises:
        DataError: the table does not hold the trajectory as it is.
    """
    index = next((i for i, episode in enumerate(table.episodes) if episode.id == trajectory.id), None)
    if index is None or table.lengths[index] != len(trajectory.search_steps):
        raise DataError(f"trajectory {trajectory.id!r}: the signals hold another one; compute the signals again")
    return [table.row(row) for row in range(table.offsets[index], table.offsets[index + 1])]


def find_trajectory(path: Path, name: str) -> Trajectory:
    """The trajectory with this id, else the one at this position (from 1).

    Raises:
        DataError: the file has neither, or cannot be read.
    """
    from stopwise.data.store import read_trajectories

    position = int(name) if name.isascii() and name.isdigit() else None
    placed: Trajectory | None = None
    ids: list[str] = []
    for number, trajectory in enumerate(read_trajectories(path), 1):
        if trajectory.id == name:
            return trajectory
        if number == position:
            placed = trajectory
        if len(ids) < 3:
            ids.append(trajectory.id)
    if placed is None:
        raise DataError(f"{path}: holds no trajectory {name!r}; the first ids are {', '.join(ids) or '(none)'}")
    return placed


def summarise(path: Path, table: "SignalTable | None" = None) -> dict[str, Any]:
    """JSON-able summary of a file: counts, and how often each field is missing, for each agent and dataset.

    With a signal table also how often each signal is missing, and why.
    """
    from stopwise.data.store import read_trajectories

    groups: dict[tuple[str | None, str | None], Group] = {}
    for trajectory in read_trajectories(path):
        groups.setdefault((trajectory.agent, trajectory.dataset), Group()).add(trajectory)
    rows = [
        {"agent": agent, "dataset": dataset, **group.as_dict()}
        for (agent, dataset), group in sorted(groups.items(), key=lambda item: tuple(str(key) for key in item[0]))
    ]
    if table is not None:
        for row in rows:
            mask = [(e.agent, e.dataset) == (row["agent"], row["dataset"]) for e in table.episodes]
            part = table.select([i for i, chosen in enumerate(mask) if chosen])
            row["missing_signals"] = {
                name: {"missing": sum(nulls.values()), "of": len(part.values), "reasons": nulls}
                for name, nulls in ((name, part.null_counts(name)) for name in part.names)
            }
    return {"file": str(path), "trajectories": sum(row["trajectories"] for row in rows), "groups": rows}


class Group:
    """Counts over the trajectories of one agent on one dataset."""

    def __init__(self) -> None:
        self.trajectories = 0
        self.questions: set[str] = set()
        self.steps: Counter[int] = Counter()  # trajectories by number of steps
        self.searches: Counter[int] = Counter()  # trajectories by number of search steps
        self.kinds: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.documents = 0
        self.errors = 0

    def add(self, trajectory: Trajectory) -> None:
        """Count one trajectory."""
        self.trajectories += 1
        self.questions.add(trajectory.question_id)
        self.steps[len(trajectory.steps)] += 1
        self.searches[len(trajectory.search_steps)] += 1
        self.outcomes[trajectory.outcome] += 1
        self.missing.update(name for name in _TRAJECTORY_FIELDS if getattr(trajectory, name) is None)
        for step in trajectory.steps:
            self.kinds[step.kind] += 1
            self.errors += step.error is not None
            self.documents += len(step.documents)
            self.missing.update(f"step.{name}" for name in _STEP_FIELDS if getattr(step, name) is None)
            for document in step.documents:
                self.missing.update(f"document.{name}" for name in _DOCUMENT_FIELDS if getattr(document, name) is None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able counts."""
        totals = {name: self.trajectories for name in _TRAJECTORY_FIELDS}
        totals |= {f"step.{name}": self.kinds.total() for name in _STEP_FIELDS}
        totals |= {f"document.{name}": self.documents for name in _DOCUMENT_FIELDS}
        return {
            "trajectories": self.trajectories,
            "questions": len(self.questions),
            "outcomes": {name: self.outcomes[name] for name in ("correct", "incorrect", "halted", "unknown")},
            "steps": _spread(self.steps),
            "searches": _spread(self.searches),
            "step_kinds": dict(sorted(self.kinds.items())),
            "errors": self.errors,
            "documents": self.documents,
            "missing": {name: {"missing": self.missing[name], "of": total} for name, total in totals.items()},
        }


def _spread(counts: Counter[int]) -> dict[str, float]:
    values = sorted(counts.elements())
    return {"min": values[0], "median": statistics.median(values), "max": values[-1]}


def _print_summary(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout)
    console.print(
        f"{summary['file']}: {summary['trajectories']} trajectories", highlight=False, markup=False, soft_wrap=True
    )
    for group in summary["groups"]:
        table = Table(show_header=False)
        name = f"agent {group['agent'] or '(not logged)'}, dataset {group['dataset'] or '(not logged)'}"
        console.print(name, style="bold", highlight=False, markup=False, soft_wrap=True)
        table.add_row("trajectories", f"{group['trajectories']} of {group['questions']} questions")
        table.add_row("outcomes", ", ".join(f"{count} {name}" for name, count in group["outcomes"].items()))
        for name in ("steps", "searches"):
            spread = group[name]
            table.add_row(name, f"median {spread['median']:g}, min {spread['min']}, max {spread['max']}")
        table.add_row("step kinds", ", ".join(f"{count} {name}" for name, count in group["step_kinds"].items()))
        table.add_row("documents", f"{group['documents']}; {group['errors']} steps with an error")
        for name, missing in group["missing"].items():
            if missing["missing"]:
                share = "all" if missing["missing"] == missing["of"] else f"{missing['missing']} of {missing['of']}"
                table.add_row(f"no {name}", share)
        for name, missing in group.get("missing_signals", {}).items():
            if missing["missing"]:
                share = "all" if missing["missing"] == missing["of"] else f"{missing['missing']} of {missing['of']}"
                reasons = ", ".join(f"{count} {reason}" for reason, count in missing["reasons"].items())
                table.add_row(f"no signal {name}", f"{share}: {reasons}")
        console.print(table)


def _print_page(trajectory: Trajectory, rows: Sequence["SignalRow"] | None = None) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout)

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style))

    line(trajectory.question, "bold")
    gold = None if trajectory.gold_ids is None else set(trajectory.gold_ids)
    line(
        f"id {trajectory.id} · question {trajectory.question_id} · {trajectory.outcome}, ended by {trajectory.ended_by}"
    )
    line(f"agent {trajectory.agent or '(not logged)'} · dataset {trajectory.dataset or '(not logged)'}")
    if gold is not None:
        line(f"gold: {', '.join(sorted(gold)) or '(none)'}")
    for criterion in trajectory.criteria or ():
        line(f"asks for: {criterion.text}")
    seen: set[str] = set()
    signals = iter(rows or ())
    for number, step in enumerate(trajectory.steps, 1):
        line("")
        line(f"{number}. {step.kind}" + "".join(f"  {query}" for query in step.queries), "bold cyan")
        for text, style in _step_lines(step, seen, gold):
            line(text, style)
        if step.kind == "search" and (row := next(signals, None)) is not None:
            line(f"   signals: {_signals(row)}", "magenta")
        seen.update(document.id for document in step.documents)
    line("")
    line(f"answer: {trajectory.answer if trajectory.answer is not None else '(none)'}", "bold")
    if "reference_answer" in trajectory.meta:
        line(f"reference: {trajectory.meta['reference_answer']}")


def _step_lines(step: Step, seen: set[str], gold: set[str] | None) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if step.thought:
        lines.append((f"   thought: {_short(step.thought, 2 * _TEXT_SHOWN)}", "italic"))
    if step.error:
        lines.append((f"   error: {_short(step.error, _TEXT_SHOWN)}", "red"))
    for document in step.documents:
        marks = "seen" if document.id in seen else "new "
        marks += " GOLD" if gold and document.id in gold else ""
        score = "" if document.score is None else f" {document.score:.3g}"
        text = _short(document.text or "(no text)", _TEXT_SHOWN)
        style = "green" if "GOLD" in marks else ("dim" if document.id in seen else "")
        lines.append((f"   [{marks}]{score} {document.title or document.id}: {text}", style))
    facts = [
        f"{name} {value}"
        for name, value in (
            ("controller", step.logged_action.name.lower() if step.logged_action is not None else None),
            ("probe", step.answer_probe.answer if step.answer_probe else None),
            ("tokens in", step.tokens_in),
            ("tokens out", step.tokens_out),
            ("seconds", step.seconds),
        )
        if value is not None
    ]
    if facts:
        lines.append((f"   {' · '.join(facts)}", "dim"))
    return lines


def _signals(row: "SignalRow") -> str:
    values = [f"{name} {value:.3g}" for name, value in row.values.items()]
    nulls = [f"{name} null ({reason})" for name, reason in row.nulls.items()]
    return " · ".join([*values, *nulls])


def _short(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
