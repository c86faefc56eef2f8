"""How fast logs are imported, and in how much memory.

Rates: each family's sample, multiplied to `--megabytes`, read by its importer and by plain ``json.loads`` line by line
(text families: split into lines). The samples are small, about 1 kB a run with texts of a few words, so the ratio shows
what an importer costs a run; real runs hold far more text, which costs nearly nothing more. With `--files`, the same
for logs of your own. Memory: peak and CPU time of whole imports by the command line, start and writing included: of
10,000 and of 100,000 trajectories, of 10 MB observations, and of a file of `--large` megabytes.

    python benchmarks/import_rates.py [--megabytes 5] [--files PATH...] [--memory] [--large MB] [--json]
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stopwise.data.importers import importer
from stopwise.data.importers.detect import sniff
from stopwise.data.importers.tools import TOOLS

SAMPLES = Path(__file__).parent.parent / "tests" / "data" / "importers" / "samples"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--megabytes", type=float, default=5, help="size of each family's file")
    parser.add_argument("--files", nargs="*", type=Path, default=[], help="logs of your own, measured as they are")
    parser.add_argument("--memory", action="store_true", help="measure peak memory too (a few minutes)")
    parser.add_argument("--large", type=float, default=0, metavar="MB", help="import a file of this size too")
    parser.add_argument("--no-rates", action="store_true", help="measure whole imports only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/import_rates.py", *sys.argv[1:]]),
        "python": platform.python_version(),
        "pyarrow": version("pyarrow"),
        "processor": platform.machine(),
    }
    with tempfile.TemporaryDirectory() as folder:
        result["rates"] = []
        if not args.no_rates:
            result["rates"] = [rate(sample, Path(folder), args.megabytes) for sample in samples()]
            result["rates"].append(rate(_full_texts(Path(folder), args.megabytes), Path(folder), 0))
        result["rates"] += [rate(path, Path(folder), 0) for path in args.files]
        result["memory"] = [whole(row, Path(folder)) for row in _files(Path(folder), args.memory, args.large)]
    if args.json:
        print(json.dumps(result, indent=1))
        return
    if result["rates"]:
        print(f"{'sample':24} {'MB/s':>8} {'json.loads':>11} {'ratio':>6}")
    for row in result["rates"]:
        print(f"{row['sample']:24} {row['mb_s']:8.1f} {row['json_loads_mb_s']:11.1f} {row['ratio']:6.2f}")
    for row in result["memory"]:
        print(
            f"{row['what']}: {row['trajectories']} trajectories, {row['file_mb']:.0f} MB, peak {row['peak_mb']} MB, "
            f"{row['mb_s']} MB a second of CPU time"
        )


def samples() -> Iterator[Path]:
    yield from sorted(SAMPLES.iterdir())


def _full_texts(folder: Path, megabytes: float) -> Path:
    """Our own format with documents of 2.4 kB, drawn from 3,000: about what a retriever returns."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    texts = [" ".join(rng.choices(words, k=370)) for _ in range(3000)]
    path = folder / "stopwise_full_texts.jsonl"
    with path.open("w") as target:
        for number in range(int(megabytes * 1e6 / 50_000) + 1):  # 20 documents a run
            steps = [
                {"kind": "search", "queries": ["a b"], "documents": [{"id": f"d{i}", "text": texts[i]} for i in drawn]}
                for drawn in (rng.sample(range(3000), 5) for _ in range(4))
            ]
            run = {"id": f"t{number}", "question_id": f"q{number}", "question": f"what is {number}?", "steps": steps}
            target.write(json.dumps(run) + "\n")
    return path


def rate(sample: Path, folder: Path, megabytes: float) -> dict[str, Any]:
    """Megabytes a second of CPU time: the importer, and plain parsing of the same file."""
    format = sniff(sample).format
    path = folder / f"measured_{sample.name}"
    text = sample.read_text(encoding="utf-8")
    is_text = sample.suffix == ".txt"
    if sample.suffix == ".json":
        text = json.dumps(json.loads(text), ensure_ascii=False) + "\n"
    path.write_text(text * max(1, int(megabytes * 1e6 / len(text))), encoding="utf-8")
    size = path.stat().st_size / 1e6

    def parse() -> int:
        with path.open(encoding="utf-8") as source:
            return sum(1 if is_text else bool(json.loads(line)) for line in source)

    seconds = timed(lambda: sum(1 for _ in importer(format).read(path, TOOLS)))
    plain = timed(parse)
    path.unlink()
    return {
        "sample": sample.name,
        "format": format,
        "mb_s": round(size / seconds, 1),
        "json_loads_mb_s": round(size / plain, 1),
        "ratio": round(plain / seconds, 3),
    }


def timed(work: Callable[[], object]) -> float:
    """CPU seconds, the better of two."""
    found = []
    for _ in range(2):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def _files(folder: Path, memory: bool, large: float) -> Iterator[tuple[str, Path]]:
    """Files to import whole; each is deleted after use."""
    for what, count, characters in (
        ("few", 10_000, [300] * 5),
        ("many", 100_000, [300] * 5),
        ("of 10 kB each", 10_000, [2_000] * 5),
        ("one document of 10 MB", 1, [10_000_000]),
        ("five documents of 10 MB", 1, [10_000_000] * 5),
    ):
        if memory:
            yield what, _short_runs(folder / "log.jsonl", count, characters)
    if large:
        yield "large", _full_texts(folder, large)


def _short_runs(path: Path, count: int, characters: list[int]) -> Path:
    with path.open("w") as target:
        for number in range(count):
            documents = [{"id": f"d{number}-{i}", "text": chr(97 + i) * size} for i, size in enumerate(characters)]
            step = {"kind": "search", "queries": [f"query {number}"], "documents": documents}
            run = {"id": f"t{number}", "question_id": f"q{number}", "question": f"{number}?", "steps": [step]}
            target.write(json.dumps(run) + "\n")
    return path


def whole(file: tuple[str, Path], folder: Path) -> dict[str, Any]:
    """One import by the command line: peak memory, and megabytes a second of CPU time."""
    what, path = file
    command = [sys.executable, "-m", "stopwise.cli", "import", str(path), "--out", str(folder / "out.parquet")]
    child = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    summary = json.loads(child.stdout.read())
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, f"{what}: exit status {status}"
    size = path.stat().st_size / 1e6
    path.unlink()
    seconds = usage.ru_utime + usage.ru_stime
    return {
        "what": what,
        "trajectories": summary["trajectories"],
        "file_mb": round(size, 1),
        "peak_mb": usage.ru_maxrss // 1024,
        "cpu_s": round(seconds, 1),
        "mb_s": round(size / seconds, 1),
    }


if __name__ == "__main__":
    main()
