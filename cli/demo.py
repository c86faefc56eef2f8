"""``stopwise demo``: the whole chain on the shipped sample logs."""

import argparse
import time
from pathlib import Path
from typing import Any

from stopwise.cli.output import SAMPLES, Progress, logs_path, print_json, say, signals_path

TOLERANCE = 1e-3  # of a recomputed value: embeddings are rounded to float16, and batches differ between machines
FLIPS = 0.01  # share of steps at which a thresholded signal (SE, Cov) may lie on the other side of its threshold
PART = 10  # every tenth run is computed anew
QUESTIONS = 100  # of the samples, for time: the whole takes three times as long
POLICIES = ("fixed_budget", "step_index", "heuristic", "ds_mcm", "logistic", "boosted", "privileged")


def add_parser(subparsers: Any) -> None:
    """Add the ``demo`` command to the parser's commands."""
    parser = subparsers.add_parser(
        "demo",
        help="run the whole chain on the shipped sample logs",
        description="On the shipped sample logs: compute a tenth of the signals anew and compare them with the shipped "
        "ones, print the AUROC table, train controllers, print the benchmark table, export a policy and replay it.",
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="where results go (default demo)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the chain; each step is the command that a user would type."""
    import contextlib
    import sys

    started = time.monotonic()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    # with --json, what the commands print for people goes to stderr
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        cache = str(out / "embeddings.sqlite")
        signals, logs = take_part(out)
        _title("1. signals", f"every {PART}th of these runs computed anew")
        checked = recompute(signals, logs, Path(cache))
        print_check(checked)
        _title("2. analyze", "how well does each signal tell the steps that bring new evidence?")
        _command("analyze", str(signals), "--out", str(out / "analysis.json"))
        _title("3. train", "weights from training questions, choices from validation questions")
        for name in POLICIES:
            config = str(_config(f"{name}.yaml"))
            _command("train", config, f"signals={signals}", "--out", str(out / "runs" / name))
        _title("4. benchmark", "on test questions that nothing above has seen")
        config = out / "benchmark.yaml"
        config.write_text(_config("benchmark.yaml").read_text().replace("runs/", f"{out / 'runs'}/"), encoding="utf-8")
        _command("benchmark", str(config), f"signals={signals}", "--out", str(out / "benchmark"))
        _title("5. export", "a policy package for the live agent")
        package = out / "policy"
        _command("export", str(out / "runs" / "logistic"), "--out", str(package), "--benchmark", str(out / "benchmark"))
        _title("6. replay", f"the package over every {PART}th run, signals computed anew")
        _command("replay", str(package), str(logs), "--out", str(out / "decisions.jsonl"), "--cache", cache)
    files = [
        str(out / name) for name in ("analysis.json", "runs", "benchmark/result.json", "policy", "decisions.jsonl")
    ]
    seconds = time.monotonic() - started
    if args.json:
        print_json({"signals_checked": checked, "files": files, "seconds": seconds})
    else:
        print(f"\nDone in {seconds:.0f} s. Files left: {', '.join(files)}")
    return 0


def take_part(out: Path) -> tuple[Path, Path]:
    """Write the demo's part of the samples: the signals of its questions' runs, and the logs of every tenth run.

    The questions are those with the lowest salted hashes, so that every split has its share.
    """
    import hashlib

    from stopwise.data.store import read_trajectories, write_trajectories
    from stopwise.signals.table import read_table, write_table

    table = read_table(signals_path(SAMPLES))
    names = {episode.question_id for episode in table.episodes}
    chosen = set(sorted(names, key=lambda name: hashlib.sha256(f"demo/{name}".encode()).digest())[:QUESTIONS])
    indices = [index for index, episode in enumerate(table.episodes) if episode.question_id in chosen]
    signals, logs = out / "signals.parquet", out / "logs.parquet"
    write_table(signals, table.select(indices))
    tenth = {table.episodes[index].id for index in indices[::PART]}
    write_trajectories(logs, (run for run in read_trajectories(logs_path(SAMPLES)) if run.id in tenth))
    print(f"sample logs: {len(table)} runs on {len(names)} questions; this demo uses {len(indices)} on {len(chosen)}")
    return signals, logs


def recompute(signals: Path, logs: Path, cache: Path) -> dict[str, Any]:
    """Compute the signals of some runs anew and compare them with the shipped ones.

    Raises:
        DataError: they differ by more than rounding explains.
    """
    from stopwise.data.errors import DataError
    from stopwise.data.store import read_trajectories
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import SentenceTransformerEncoder
    from stopwise.signals.compute import run_signals, texts_of
    from stopwise.signals.table import read_table

    table = read_table(signals)
    encoder = CachedEncoder(SentenceTransformerEncoder(), cache)
    if encoder.id != table.info.encoder:
        raise DataError(f"samples: made with encoder {table.info.encoder}, found {encoder.id}")
    place = {episode.id: index for index, episode in enumerate(table.episodes)}
    runs = [(place[run.id], run) for run in read_trajectories(logs)]
    config = table.info.config
    progress = Progress()
    texts = (text for _, run in runs for text in texts_of(run, config))
    encoder.prefetch(texts, lambda done, total: progress("embedding texts", done, total))
    calibrations = {(agent, source): line for agent, source, line in table.info.calibrations}
    compared, differing, largest = 0, dict.fromkeys(table.names, 0), dict.fromkeys(table.names, 0.0)
    for index, run in runs:
        shipped = [table.row(row) for row in range(table.offsets[index], table.offsets[index + 1])]
        for old, new in zip(shipped, run_signals(run, config, encoder, calibrations), strict=True):
            compared += 1
            if old.nulls != new.nulls:
                raise DataError(
                    f"samples: run {run.id}, step {old.t}: nulls {dict(new.nulls)}; shipped {dict(old.nulls)}"
                )
            for name, value in old.values.items():
                difference = abs(value - new.values[name])
                largest[name] = max(largest[name], difference)
                differing[name] += difference > TOLERANCE
    share = {name: count / compared for name, count in differing.items()}
    wrong = [name for name in share if share[name] > FLIPS]
    if wrong:
        raise DataError(f"samples: {wrong[0]} differs from the shipped value at {share[wrong[0]]:.1%} of the steps")
    return {
        "runs": len(runs),
        "steps": compared,
        "tolerance": TOLERANCE,
        "share_differing": share,
        "largest_difference": largest,
    }


def print_check(checked: dict[str, Any]) -> None:
    """One line for people."""
    differing = {name: share for name, share in checked["share_differing"].items() if share > 0}
    flips = ", ".join(f"{name} at {share:.2%} of the steps" for name, share in differing.items())
    print(
        f"{checked['steps']} search steps of {checked['runs']} runs: all signals equal the shipped ones "
        f"to {checked['tolerance']:g}" + (f", but for rounding across a threshold: {flips}" if flips else "")
    )


def _config(name: str) -> Path:
    import stopwise.data

    # beside the other stage folders; importlib.resources fails on the config folder of an editable install
    return Path(stopwise.data.__file__).parents[1] / "configs" / name


def _command(*words: str) -> None:
    from stopwise.cli.main import main
    from stopwise.data.errors import StopwiseError

    say(f"$ stopwise {' '.join(words)}")
    status = main(words)
    if status != 0:
        raise StopwiseError(f"`stopwise {words[0]}` failed, see above")


def _title(name: str, about: str) -> None:
    print(f"\n== {name}: {about}", flush=True)
