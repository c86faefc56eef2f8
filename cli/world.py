"""``stopwise world``: make a searchable world with questions and gold, compose one, or check a population on one."""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stopwise.cli.output import Progress, print_json, say
from stopwise.data.errors import UsageError


def add_parser(subparsers: Any) -> None:
    """Add the ``world`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "world",
        help="make a world of documents and questions, compose one, or check the agents on one",
        description="Write a generated world in BEIR layout: documents, questions, criteria, gold. With --compose K: "
        "join every K questions of CORPUS into one. With --check: run the scripted agents on CORPUS, or on the world "
        "that is being made, and print the figures of the population beside the bands that it should be in.",
        epilog="examples: stopwise world --documents 5000 --questions 1000 --out world; "
        "stopwise world --compose 4 hotpotqa --out deep; stopwise world --check world --figure population.svg",
    )
    parser.add_argument("corpus", nargs="?", type=Path, metavar="CORPUS", help="a folder in BEIR layout")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write")
    parser.add_argument("--documents", type=int, metavar="N", help="documents to make (default: 5000)")
    parser.add_argument("--questions", type=int, metavar="M", help="questions to make (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed gives the same bytes")
    parser.add_argument("--compose", type=int, metavar="K", help="join every K questions of CORPUS into one")
    parser.add_argument("--check", action="store_true", help="run the agents and print the population's figures")
    parser.add_argument("--sample", type=int, default=100, metavar="N", help="questions for --check (default: 100)")
    parser.add_argument("--agents", nargs="+", metavar="KIND", help="kinds that --check runs (default: all)")
    parser.add_argument("--retriever", choices=("dense", "bm25"), default="dense", help="what --check searches with")
    parser.add_argument("--k", type=int, default=5, metavar="K", help="documents a query in --check (default: 5)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the population (.svg or .png)")
    parser.add_argument("--encoder", metavar="ID", help="sentence-transformers model of --check (default: MiniLM)")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make, compose or check."""
    _refuse_nonsense(args)
    result: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = args.corpus
        if args.compose is not None:
            from stopwise.data.compose import write_composed

            folder = _target(args, stack)
            result |= {"questions": write_composed(args.corpus, folder, args.compose, args.seed), "parts": args.compose}
        elif folder is None:
            folder = _target(args, stack)
            result |= _make(args, folder)
        if args.out is not None:
            result["out"] = str(args.out)
        if args.check:
            result |= check(args, folder)
    if args.json:
        print_json(result)
    else:
        if args.out is not None:
            say(f"{result['questions']} questions written to {args.out}")
        if args.check:
            print_figures(result)
    return 0


def _refuse_nonsense(args: argparse.Namespace) -> None:
    if args.compose is not None and args.corpus is None:
        raise UsageError("--compose K joins the questions of a corpus; name its folder")
    if args.corpus is not None and args.compose is None and not args.check:
        raise UsageError(f"{args.corpus}: nothing to do with it; say --compose K or --check")
    if args.corpus is not None and (args.documents is not None or args.questions is not None):
        raise UsageError("--documents and --questions are of a new world; leave the corpus out, or them")
    if args.out is None and not args.check:
        raise UsageError("name the folder to write with --out DIR")
    if args.corpus is not None and args.out is not None and args.compose is None:
        raise UsageError("--check of a corpus writes no folder; leave --out away")
    if args.figure is not None and not args.check:
        raise UsageError("--figure draws what --check finds; say --check too")
    if args.sample < 1 or args.k < 1:
        raise UsageError("--sample and --k must be 1 or more")


def _target(args: argparse.Namespace, stack: ExitStack) -> Path:
    """Where the world is written: --out, or a folder that goes away after the check."""
    return args.out if args.out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory())) / "world"


def _make(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from stopwise.data.world.generate import WorldConfig, write_world

    sizes = {"documents": args.documents, "questions": args.questions}
    config = WorldConfig(seed=args.seed, **{key: value for key, value in sizes.items() if value is not None})
    progress = Progress()
    write_world(folder, config, lambda done, total: progress("writing documents", done, total))
    return {"documents": config.documents, "questions": config.questions, "seed": config.seed}


def check(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the population on a corpus; figures of all agents and of each, beside the bands."""
    from stopwise.data.corpus import read_corpus, read_queries
    from stopwise.envs.arena.kinds import KINDS
    from stopwise.envs.arena.loop import LoopConfig
    from stopwise.envs.arena.population import BANDS, figures, run_population, sample_queries
    from stopwise.envs.arena.puzzle import make_reader

    unknown = sorted(set(args.agents or ()) - set(KINDS))
    if unknown:
        raise UsageError(f"--agents {unknown[0]}: there is no such kind; expected some of {', '.join(KINDS)}")
    kinds = [KINDS[name] for name in args.agents or KINDS]
    documents = list(read_corpus(folder))
    queries = sample_queries(read_queries(folder), args.sample)
    progress = Progress()
    retriever = _retriever(args, documents, progress)
    reader = make_reader(documents)
    by_agent: dict[str, list[Any]] = {}
    for kind in kinds:
        runs: list[Any] = []
        for trajectory in run_population([kind], queries, reader, retriever, LoopConfig(k=args.k)):
            runs.append(trajectory)
            progress(f"running {kind.name}", len(runs), len(queries))
        by_agent[kind.name] = runs
    everyone = figures([trajectory for runs in by_agent.values() for trajectory in runs])
    if args.figure is not None:
        from stopwise.envs.arena.figure import draw_population

        draw_population(args.figure, by_agent, f"{len(queries)} questions, {retriever.id}, top {args.k}")
    values = asdict(everyone)
    return {
        "retriever": retriever.id,
        "k": args.k,
        "asked": len(queries),
        "figures": values,
        "bands": {name: list(band) for name, band in BANDS.items()},
        "within_bands": all(low <= values[name] <= high for name, (low, high) in BANDS.items()),
        "by_agent": {name: asdict(figures(runs)) for name, runs in by_agent.items()},
    }


def _retriever(args: argparse.Namespace, documents: Sequence[Any], progress: Progress) -> Any:
    from stopwise.envs.arena.retrievers import BM25Retriever, DenseRetriever

    if args.retriever == "bm25":
        return BM25Retriever(documents)
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder

    encoder = CachedEncoder(SentenceTransformerEncoder(args.encoder or MINILM), args.cache)
    encoder.prefetch(
        (document.passage for document in documents), lambda done, total: progress("embedding documents", done, total)
    )
    return DenseRetriever.build(documents, encoder)


def print_figures(result: dict[str, Any]) -> None:
    """The population's figures for people, on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result['asked']} questions, {result['retriever']}, top {result['k']}")
    table.add_column("figure")
    table.add_column("band")
    table.add_column("all", justify="right")
    for agent in result["by_agent"]:
        table.add_column(agent, justify="right")
    for name, value in result["figures"].items():
        band = result["bands"].get(name)
        shown = "" if band is None else f"{band[0]:g} to {band[1]:g}"
        outside = band is not None and not band[0] <= value <= band[1]
        cells = [f"{figures[name]:.3g}" for figures in result["by_agent"].values()]
        table.add_row(name, shown, f"{value:.3g}" + (" outside" if outside else ""), *cells)
    Console().print(table)
