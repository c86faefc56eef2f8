"""``stopwise signals``: the signals of every search step of a log file, as a signal table."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from stopwise.cli.output import SAMPLES, Progress, check_out, logs_path, print_json, say
from stopwise.data.errors import UsageError


def add_parser(subparsers: Any) -> None:
    """Add the ``signals`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "signals",
        help="compute the signals of every search step",
        description="Compute the signals of every search step of imported logs. Thresholds and the RE-SE calibration "
        "are fitted on the training questions of the file and stored with the table. Embeddings are cached, so an "
        "interrupted call resumes.",
        epilog="example: stopwise signals logs.parquet --out signals.parquet",
    )
    parser.add_argument("logs", metavar="LOGS", help=f"file that `stopwise import` wrote, or {SAMPLES!r}")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these signals (default: all)")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="signal table to write (Parquet)")
    parser.add_argument("--encoder", default=None, metavar="ID", help="sentence-transformers model (default: MiniLM)")
    parser.add_argument("--se", choices=("agglomerative", "hdbscan"), default="agglomerative", help="clustering for SE")
    parser.add_argument("--se-cut", type=float, metavar="D", help="cosine distance of the SE cut (default: fitted)")
    parser.add_argument(
        "--pairing", choices=("read_docs", "same_step"), default="read_docs", help="which SE a thought's RE goes with"
    )
    parser.add_argument(
        "--cov-judge",
        choices=("encoder", "llm", "gold"),
        default="encoder",
        help="who judges coverage; llm needs --llm, gold is privileged",
    )
    parser.add_argument("--llm", type=Path, metavar="FILE", help="config of the language model, as configs/llm.yaml")
    parser.add_argument(
        "--dynamic-criteria",
        action="store_true",
        help="where runs hold no criteria, let the judge llm infer them and change them as documents come in "
        "(default: those that the question states)",
    )
    parser.add_argument("--privileged", action="store_true", help="allow --cov-judge gold: it all but equals the label")
    parser.add_argument(
        "--score-reasoning",
        metavar="M",
        help="compute RE by scoring the logged thoughts with language model M (SmolLM2-135M-Instruct, a Hugging Face "
        "id or a folder) in place of logged log-probabilities; resumable, marked scored:M",
    )
    parser.add_argument(
        "--score-window",
        type=int,
        metavar="N",
        help="characters of a run that M reads at most (default: 16000); smaller for models with a small context",
    )
    parser.add_argument("--cache", type=Path, metavar="FILE", help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compute, write and report."""
    from stopwise.data.files import sha256_file
    from stopwise.data.store import count_trajectories, read_trajectories
    from stopwise.models.ledger import add_to_bill, bill_beside
    from stopwise.signals.compute import compute_table
    from stopwise.signals.table import write_table
    from stopwise.signals.tracker import DEFAULT_CUT, SignalConfig

    names = _names(args.only)
    if args.cov_judge == "gold" and not args.privileged:
        raise UsageError(
            "--cov-judge gold: coverage by gold all but equals the label; for an upper bound say --privileged too"
        )
    if args.se_cut is not None and not 0 <= args.se_cut <= 2:
        raise UsageError(f"--se-cut {args.se_cut}; expected a cosine distance from 0 to 2")
    if (args.llm is not None or args.dynamic_criteria) and args.cov_judge != "llm":
        raise UsageError("--llm and --dynamic-criteria: go with --cov-judge llm")
    if args.score_window is not None and args.score_reasoning is None:
        raise UsageError("--score-window: goes with --score-reasoning M")
    logs = logs_path(args.logs)
    check_out(args.out, logs)
    count = count_trajectories(logs)
    progress = Progress()
    coverage = make_coverage(args.llm, args.dynamic_criteria) if args.cov_judge == "llm" else None
    config = SignalConfig(
        signals=names,
        se=args.se,
        se_cut=DEFAULT_CUT if args.se_cut is None else args.se_cut,
        pairing=args.pairing,
        coverage_judge=args.cov_judge,
        coverage_model=None if coverage is None else coverage.id,
    )
    scorer = make_scorer(args.score_reasoning, args.score_window) if args.score_reasoning is not None else None

    def read() -> Any:
        runs = read_trajectories(logs)
        report = lambda what, done, total: progress(what, done, count)  # noqa: E731
        return runs if scorer is None else scorer.score(runs, report)

    try:
        table = compute_table(
            read,
            config,
            make_encoder(names, args.encoder, args.cache),
            fit_se_cut=args.se_cut is None,
            make_judge=coverage,
            parallel=1 if coverage is None else coverage.parallel,
            logs_sha256=sha256_file(logs),
            progress=lambda what, done, total: progress(what, done, count if total is None else total),
        )
    finally:  # what an interrupted call has spent is spent
        if coverage is not None:
            add_to_bill(bill_beside(args.out), {"model": coverage.model, **coverage.report()["cost"]})
    write_table(args.out, table)
    summary = summarise(table)
    result = {"signals": summary, **describe(table), "out": str(args.out)}
    if coverage is not None:
        result["llm"] = coverage.report()
    if args.json:
        print_json(result)
    else:
        print_table(summary, result)
    return 0


def make_encoder(names: tuple[str, ...], model: str | None, cache: Path | None) -> Any:
    """A cached encoder, or None when no named signal needs one."""
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder
    from stopwise.signals.definitions import BY_NAME, with_prerequisites

    if "RE_z" in names:
        names = (*names, "SE")  # its mean and spread are taken from the steps that have a residual
    if not any(need.endswith("_embedding") for name in with_prerequisites(names) for need in BY_NAME[name].needs):
        return None
    return CachedEncoder(SentenceTransformerEncoder(model or MINILM), cache)


def make_scorer(model: str, window: int | None = None) -> Any:
    """Scores reasoning with a local language model that reads at most `window` characters; cached by content."""
    from stopwise.models.local_lm import LocalLM
    from stopwise.models.transcript import WINDOW, Window
    from stopwise.signals.scored_reasoning import ReasoningScorer

    shown = WINDOW if window is None else Window(conversation=window)
    return ReasoningScorer(LocalLM(model), window=shown)


def make_coverage(config: Path | None, dynamic: bool) -> Any:
    """Coverage by the language model of a config file."""
    from stopwise.data.config import load_config
    from stopwise.models.chat_config import ChatConfig, open_chat
    from stopwise.signals.coverage_llm import LLMCoverage

    if config is None:
        raise UsageError("--cov-judge llm: needs a language model; say --llm FILE, as configs/llm.yaml")
    return LLMCoverage(open_chat(load_config(ChatConfig, config)), dynamic=dynamic)


def summarise(table: Any) -> dict[str, Any]:
    """Mean, standard deviation, count and nulls by reason of every signal; JSON-able."""
    summary = {}
    for name in table.names:
        values = table.column(name)
        values = values[~np.isnan(values)]
        summary[name] = {
            "mean": float(values.mean()) if len(values) else None,
            "std": float(values.std()) if len(values) else None,
            "n": len(values),
            "nulls": table.null_counts(name),
        }
    return summary


def describe(table: Any) -> dict[str, Any]:
    """Where a table comes from, JSON-able."""
    info = table.info
    return {
        "trajectories": len(table),
        "decision_points": len(table.values),
        "with_gold": int(table.has_gold.sum()),
        "encoder": info.encoder,
        "coverage_judge": info.config.coverage_judge,
        "coverage_model": info.config.coverage_model,
        "se_cut": info.config.se_cut,
        "fitted": list(info.fitted),
        "re_sources": list(info.re_sources),
        "logs_sha256": info.logs_sha256,
    }


def print_table(summary: dict[str, Any], result: dict[str, Any]) -> None:
    """The summary for people, on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table("signal", "mean", "std", "n", "missing, by reason")
    for name, row in summary.items():
        nulls = ", ".join(f"{count} {reason}" for reason, count in row["nulls"].items())
        figures = ["-" if row[key] is None else f"{row[key]:.3f}" for key in ("mean", "std")]
        table.add_row(name, *figures, str(row["n"]), nulls)
    Console().print(table)
    fitted = ", ".join(result["fitted"]) or "nothing"
    if "llm" in result:
        bill = result["llm"]["cost"]["operation"]["total"]
        say(
            f"language model: {bill['calls']} calls, {bill['from_cache']} replies from the cache, "
            f"{bill['prompt_tokens'] + bill['completion_tokens']} tokens, {bill['money']:.4f} money, "
            f"{result['llm']['failed']} steps kept their coverage because of failures"
        )
    say(f"{result['decision_points']} search steps of {result['trajectories']} runs; fitted: {fitted}; {result['out']}")


def _names(only: list[str] | None) -> tuple[str, ...]:
    import difflib

    from stopwise.signals.definitions import BY_NAME, SIGNALS

    names = [part for word in only or [] for part in word.split(",") if part]
    for name in names:
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, SIGNALS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected some of {', '.join(SIGNALS)}"
            raise UsageError(f"--only {name}: no such signal; {hint}")
    return tuple(dict.fromkeys(names)) or SIGNALS
