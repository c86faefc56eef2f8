"""``stopwise annotate``: people judge what controllers suggest, without knowing which controller it was."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stopwise.cli.output import print_json, say

PER_METHOD = 100  # [DS-MCM] 4.8 samples 100 sessions


def add_parser(subparsers: Any) -> None:
    """Add the ``annotate`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "annotate",
        help="let people judge what controllers suggest, blind to the method",
        description="Human evaluation of suggestions: sample interventions of several controllers, let two raters "
        "judge them on a local page without seeing whose they are, and report by method with agreement and kappa.",
        epilog="example: stopwise annotate sample runs/critic runs/ds_mcm --out runs/study; "
        "stopwise annotate rate runs/study --rater ann; stopwise annotate rate runs/study --rater bob; "
        "stopwise annotate report runs/study --out runs/study.json. See docs/annotation.md",
    )
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    _add_sample(steps)
    _add_rate(steps)
    _add_report(steps)
    _add_export(steps)


def _add_sample(steps: Any) -> None:
    parser = steps.add_parser(
        "sample",
        help="draw suggestions of several methods into a study",
        description="Draw interventions that came with a suggestion, the same number of each method, in random order. "
        "STUDY/study.json is what raters see; STUDY/key.json tells the methods, and raters need not have it.",
        epilog="example: stopwise annotate sample critic=runs/one memory=runs/two --out runs/study --per-method 50",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of `stopwise collect` with a controller, of a benchmark in the arena, or a file of trajectories; "
        "METHOD=RUN names the method",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="STUDY", help="folder to write")
    parser.add_argument("--per-method", type=int, default=PER_METHOD, metavar="N", help="default: %(default)s")
    parser.add_argument("--method", action="append", default=[], metavar="NAME", help="only this method; repeatable")
    parser.add_argument("--seed", type=int, default=0, help="of the draw and of the order (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run_sample)


def _add_rate(steps: Any) -> None:
    parser = steps.add_parser(
        "rate",
        help="judge suggestions on a local page",
        description="Serve one rater's pages on this machine alone. Each answer is saved at once, in a file of this "
        "rater's own; call it again to go on. One call a rater at a time. End it with Ctrl-C.",
        epilog="example: stopwise annotate rate runs/study --rater ann --port 8047",
    )
    parser.add_argument("study", type=Path, metavar="STUDY", help="folder with study.json")
    parser.add_argument("--rater", required=True, metavar="NAME", help="small letters, digits, - and _")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--json", action="store_true", help="print the address as one JSON object on stdout")
    parser.set_defaults(run=run_rate)


def _add_report(steps: Any) -> None:
    parser = steps.add_parser(
        "report",
        help="what the raters found, by method",
        description="By method: the share of suggestions that both raters call correct, the mean of each criterion, "
        "with 95%% intervals over questions; agreement and Cohen's kappa (linear weights on the scales). The methods "
        "stay hidden until both raters are finished, unless --partial says otherwise.",
        epilog="example: stopwise annotate report runs/study --out runs/study.json",
    )
    _add_unblinding(parser)
    parser.add_argument("--out", type=Path, metavar="JSON", help="file to write")
    parser.add_argument("--resamples", type=int, default=1000, help="of the bootstrap (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: %(default)s)")
    parser.set_defaults(run=run_report)


def _add_export(steps: Any) -> None:
    parser = steps.add_parser(
        "export",
        help="all answers with their methods as CSV",
        description="One row for each suggestion and rater. A text that a spreadsheet would take for a formula begins "
        "with an apostrophe.",
        epilog="example: stopwise annotate export runs/study --out answers.csv",
    )
    _add_unblinding(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="CSV", help="file to write")
    parser.set_defaults(run=run_export)


def _add_unblinding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, metavar="STUDY", help="folder with study.json, key.json and answers/")
    parser.add_argument("--rater", action="append", default=[], metavar="NAME", help="one of the two; repeatable")
    parser.add_argument("--partial", action="store_true", help="even though raters are not finished")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")


def run_sample(args: argparse.Namespace) -> int:
    """Draw a study and write it."""
    from stopwise.data.files import atomic_folder, sha256_file, write_json
    from stopwise.evaluation.annotation.study import KEY, STUDY, sample, sources_of
    from stopwise.evaluation.record import provenance

    sources = sources_of(args.runs)
    study, key = sample(sources, args.per_method, args.seed, args.method)
    settings = {"per_method": args.per_method, "seed": args.seed, "methods": args.method}
    command = ["stopwise", "annotate", "sample", *args.runs, "--out", str(args.out)]
    files = {str(source.path): source.path for source in sources if source.method in key["methods"]}
    with atomic_folder(args.out, mark=STUDY) as folder:
        write_json(folder / STUDY, study)
        key["study_sha256"] = sha256_file(folder / STUDY)
        write_json(folder / KEY, key | provenance(command, settings, files))
    result = {"out": str(args.out), "items": len(study["items"]), "methods": key["methods"]}
    if args.json:
        print_json(result)
    else:
        for method, drawn in key["methods"].items():
            print(
                f"{method}: {args.per_method} of {drawn['interventions']} suggestions, "
                f"on {drawn['sampled_questions']} of {drawn['questions']} questions"
            )
        say(f"{result['items']} suggestions in {args.out / STUDY}; keep {KEY} beside it from raters: it names methods")
    return 0


def run_rate(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    import sys

    from stopwise.data.files import lock_beside, only_process
    from stopwise.evaluation.annotation.answers import Answers
    from stopwise.evaluation.annotation.server import RaterServer
    from stopwise.evaluation.annotation.study import read_study

    answers = Answers(read_study(args.study), args.rater)
    total = len(answers.study.items)
    remedy = "use its address or end it; another person needs another --rater"
    alone = only_process(answers.path, lock_beside(answers.path), remedy)
    with alone, RaterServer(answers, args.port) as server:
        if args.json:
            print_json(
                {"url": server.url, "items": total, "missing": len(answers.missing), "answers": str(answers.path)}
            )
            sys.stdout.flush()  # whoever started this waits for it
        else:
            print(server.url, flush=True)
            say(f"open it in a browser; {total - len(answers.missing)} of {total} are judged; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:  # how it is meant to end
            missing = len(answers.missing)
            say(
                f"{total - missing} of {total} are judged, in {answers.path}"
                + ("; call it again to go on" * bool(missing))
            )
    return 0


def run_report(args: argparse.Namespace) -> int:
    """Unblind, count and write."""
    from stopwise.cli.output import check_out
    from stopwise.controllers.base import check_number
    from stopwise.data.files import write_json
    from stopwise.evaluation.annotation.report import open_raters, report
    from stopwise.evaluation.annotation.study import KEY, STUDY, read_study
    from stopwise.evaluation.record import provenance

    check_number("--resamples", args.resamples, low=1, whole=True)
    check_number("--seed", args.seed, low=0, whole=True)
    study = read_study(args.study)
    raters = open_raters(study, args.rater, partial=args.partial)
    inputs = {"study": study.folder / STUDY, "key": study.folder / KEY}
    inputs |= {f"answers of {rater.rater}": rater.path for rater in raters}
    if args.out is not None:
        check_out(args.out, *inputs.values())
    result = report(study, raters, resamples=args.resamples, seed=args.seed)
    command = ["stopwise", "annotate", "report", str(args.study), *(["--partial"] if args.partial else [])]
    settings = {"partial": args.partial, "resamples": args.resamples, "seed": args.seed}
    result = provenance(command, settings, inputs) | result
    if args.out is not None:
        write_json(args.out, result)
    if args.json:
        print_json(result | {"out": None if args.out is None else str(args.out)})
    else:
        print_report(result)
        if args.out is not None:
            say(f"result in {args.out}")
    return 0


def run_export(args: argparse.Namespace) -> int:
    """Unblind and write every answer."""
    import csv

    from stopwise.cli.output import check_out
    from stopwise.data.files import atomic_path
    from stopwise.evaluation.annotation.report import open_raters, rows
    from stopwise.evaluation.annotation.study import KEY, STUDY, read_study

    study = read_study(args.study)
    raters = open_raters(study, args.rater, partial=args.partial)
    check_out(args.out, study.folder / STUDY, study.folder / KEY, *(rater.path for rater in raters))
    found = rows(study, raters)
    with atomic_path(args.out) as partial, partial.open("w", encoding="utf-8", newline="") as sink:
        writer = csv.DictWriter(sink, list(found[0]))
        writer.writeheader()
        writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in found)
    if args.json:
        print_json({"out": str(args.out), "rows": len(found)})
    else:
        say(f"{len(found)} rows in {args.out}")
    return 0


def _no_formula(value: Any) -> Any:
    """A text as it is, but never one that a spreadsheet would compute: texts come from strangers."""
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value


def print_report(result: Mapping[str, Any]) -> None:
    """Both tables for people, on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = [name for name in ("correct_by_both", "correct", "reasonable", "actionable")]
    console = Console(width=max(Console().width, 130))
    table = Table("method", "judged by all", *names, title=f"raters: {', '.join(result['raters'])}")
    for method, row in result["methods"].items():
        judged = row["correct"]["of"]
        table.add_row(Text(method), f"{judged} of {row['items']}", *(_cell(row.get(name), "mean") for name in names))
    console.print(table)
    if result["agreement"] is None:
        say("one rater only: no agreement")
        return
    table = Table("criterion", "items", "same answer", "kappa", "weights", title="agreement of the two")
    for name, row in result["agreement"].items():
        table.add_row(name, str(row["items"]), _cell(row["agreement"]), _cell(row["kappa"]), row["weights"])
    console.print(table)


def _cell(found: Mapping[str, Any] | None, key: str = "value") -> str:
    if found is None or found[key] is None:
        return "-" if found is None else found.get("reason", "-")
    low, high = found["ci"] or (None, None)
    return f"{found[key]:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")
