"""``stopwise probe``: what could have been answered after each search of logged runs."""

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from stopwise.cli.output import SAMPLES, Progress, check_out, logs_path, print_json, say
from stopwise.data.errors import UsageError

BLOCK = 64  # runs that are read side by side


def add_parser(subparsers: Any) -> None:
    """Add the ``probe`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "probe",
        help="add answer probes to logs: what could be answered after each search",
        description="After each search of a logged run, let a reader answer the question from what the run had seen "
        "by then, on a branch that the run never knew ([RAAC] 3.2); 'no candidate' is an answer too. Answers are "
        "judged where the log holds a reference answer (`stopwise import --gold`). Probes tell what stopping early "
        "would have cost in accuracy. They are the reader's, not the agent's: its name is noted in every run. Replies "
        "of a language model are cached, so an interrupted call goes on where it was.",
        epilog="example: stopwise probe logs.parquet --reader llm --llm configs/llm.yaml --out probed.parquet",
    )
    parser.add_argument("logs", metavar="LOGS", help=f"file that `stopwise import` wrote, or {SAMPLES!r}")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="trajectories to write (Parquet)")
    parser.add_argument(
        "--reader",
        choices=("extractive", "llm"),
        default="extractive",
        help="extractive: the best supported name, without a language model; llm needs --llm",
    )
    parser.add_argument(
        "--judge",
        choices=("match", "llm"),
        default="match",
        help="match: equal but for case, punctuation and articles; llm needs --llm",
    )
    parser.add_argument("--llm", type=Path, metavar="FILE", help="config of the language model, as configs/llm.yaml")
    parser.add_argument(
        "--support", type=float, metavar="S", help="of extractive: least support of an answer, 0 to 1 (default: 0.5)"
    )
    parser.add_argument("--anew", action="store_true", help="replace the probes that runs have (default: keep them)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Probe, write and report."""
    from stopwise.data.records import Trajectory
    from stopwise.data.store import count_trajectories, read_trajectories, write_trajectories
    from stopwise.models.ledger import add_to_bill, bill_beside
    from stopwise.models.parallel import SideBySide
    from stopwise.signals.answer_probes import AnswerProber

    logs = logs_path(args.logs)
    check_out(args.out, logs)
    client, reader, judge = _make(args)
    count = count_trajectories(logs)
    prober = AnswerProber(reader, judge, anew=args.anew)
    tally = {"searches": 0, "probed": 0, "no_candidate": 0, "judged": 0, "correct": 0}
    last = {"runs": 0, "correct": 0}  # of the probes after each run's last search
    progress = Progress()

    def probed() -> Iterator[Trajectory]:
        runs, done = read_trajectories(logs), 0
        with SideBySide(1 if client is None else client.parallel) as side:
            while block := list(islice(runs, BLOCK)):
                for one in side.map(prober.probe, block):
                    _count(one, tally, last)
                    yield one
                done += len(block)
                progress("probing", done, count)

    try:
        write_trajectories(args.out, probed())
    finally:  # what an interrupted call has spent is spent
        if client is not None:
            add_to_bill(bill_beside(args.out), {"model": client.id, **client.ledger.report()})
    result: dict[str, Any] = {
        "trajectories": count,
        **tally,
        "last": last,
        "reader": reader.id,
        "judge": judge.id,
        "failures": dict(sorted(prober.failures.items())),
        "out": str(args.out),
    }
    if client is not None:
        result["llm"] = client.ledger.report()
    if args.json:
        print_json(result)
        return 0
    failed = sum(prober.failures.values())
    say(
        f"{tally['probed']} of {tally['searches']} searches have a probe, {tally['no_candidate']} without a candidate; "
        f"{tally['correct']} of {tally['judged']} judged answers are correct; reader {reader.id}, judge {judge.id}"
        + (f"; {failed} failures" if failed else "")
    )
    if last["runs"]:
        say(f"after the last search {last['correct']} of {last['runs']} runs have a correct answer; {args.out}")
    return 0


def _make(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Client or None, reader, judge."""
    from stopwise.data.config import load_config
    from stopwise.models.chat_config import ChatConfig, open_chat
    from stopwise.signals.answer_probes import AnswerJudge, LLMReader, MatchJudge
    from stopwise.signals.extractive_reader import SUPPORT, ExtractiveReader

    asks = [f"--{name} llm" for name in ("reader", "judge") if getattr(args, name) == "llm"]
    llm: Path | None = args.llm
    if asks and llm is None:
        raise UsageError(f"{asks[0]}: needs a language model; say --llm FILE, as configs/llm.yaml")
    if llm is not None and not asks:
        raise UsageError("--llm: goes with --reader llm or --judge llm")
    if args.support is not None and (args.reader != "extractive" or not 0 <= args.support <= 1):
        raise UsageError(f"--support {args.support}; goes with --reader extractive, and is from 0 to 1")
    client = None if llm is None else open_chat(load_config(ChatConfig, llm))
    if client is not None and args.reader == "llm":
        reader: Any = LLMReader(client)
    else:
        reader = ExtractiveReader(SUPPORT if args.support is None else args.support)
    judge: Any = AnswerJudge(client) if client is not None and args.judge == "llm" else MatchJudge()
    return client, reader, judge


def _count(run: Any, tally: dict[str, int], last: dict[str, int]) -> None:
    probes = [step.answer_probe for step in run.search_steps]
    there = [probe for probe in probes if probe is not None]
    tally["searches"] += len(probes)
    tally["probed"] += len(there)
    tally["no_candidate"] += sum(probe.answer is None for probe in there)
    tally["judged"] += sum(probe.correct is not None for probe in there)
    tally["correct"] += sum(probe.correct is True for probe in there)
    if probes and probes[-1] is not None and isinstance(run.meta.get("reference_answer"), str):
        last["runs"] += 1
        last["correct"] += probes[-1].correct is True
