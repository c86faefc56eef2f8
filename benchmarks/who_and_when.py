"""Who made the decisive mistake, and when: Who&When by a language model, with and without a memory ([DS-MCM] 4.4).

    python benchmarks/who_and_when.py --data who_and_when --llm configs/llm.yaml --out who_and_when.json

`--data` is a folder with the subsets Hand-Crafted and Algorithm-Generated of the benchmark, which is not shipped here.
Without `--llm` only the references are computed: guessing, and always naming the same step.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stopwise.cli.output import Progress
from stopwise.controllers.memory.memory import ExperienceMemory
from stopwise.data.config import load_config
from stopwise.data.files import sha256_file, write_json
from stopwise.evaluation.record import provenance
from stopwise.evaluation.who_and_when import SUBSETS, Case, Judge, always, case_entries, guess, read_cases, score
from stopwise.models.chat_config import ChatConfig, open_chat
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import SentenceTransformerEncoder

SAME_STEPS = (0, 1, 2, 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the benchmark")
    parser.add_argument("--llm", type=Path, help="config of the language model, as configs/llm.yaml")
    parser.add_argument("--methods", nargs="+", default=["all_at_once", "step_by_step"])
    parser.add_argument("--cases", type=int, help="the first so many of each subset (default: all)")
    parser.add_argument("--k", type=int, default=2, help="entries of each pool that are shown")
    parser.add_argument("--cache", type=Path, help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)

    subsets = {name: read_cases(options.data / folder) for name, folder in SUBSETS.items()}
    judged = {name: cases[: options.cases] for name, cases in subsets.items()}
    rows: list[dict[str, Any]] = []
    for name, cases in judged.items():
        rows.append({"subset": name, "method": "guess", **guess(cases)})
        rows += [{"subset": name, "method": f"always step {s}", **score(cases, always(cases, s))} for s in SAME_STEPS]
    bill = None
    if options.llm is not None:
        client = open_chat(load_config(ChatConfig, options.llm))
        encoder = CachedEncoder(SentenceTransformerEncoder(), options.cache)
        with tempfile.TemporaryDirectory() as scratch:
            memories = {name: fill(Path(scratch) / name, subsets, name, encoder) for name in judged}
            for method in options.methods:
                for remembered in (False, True):
                    for name, cases in judged.items():
                        judge = Judge(client, method, memories[name] if remembered else None, options.k)
                        rows.append(
                            {"subset": name, "method": method, "memory": remembered, "judge": judge.id}
                            | score(cases, blames(judge, cases, f"{method} {name}"))
                        )
            for memory in memories.values():
                memory.close()
        bill = client.ledger.report()
    command = ["python", "benchmarks/who_and_when.py", *(arguments if arguments is not None else sys.argv[1:])]
    sizes = {name: len(cases) for name, cases in subsets.items()}
    result = provenance(command, {"k": options.k}, {}) | {"cases": sizes, "rows": rows, "llm": bill}
    write_json(options.out, result | {"data_sha256": {name: digest(options.data / SUBSETS[name]) for name in subsets}})
    for row in rows:
        told = "with memory" if row.get("memory") else ""
        agent, step = row["agent"]["mean"], row["step"]["mean"]
        print(f"{row['subset']:20} {row['method']:14} {told:11} agent {agent:.3f} step {step:.3f}")
    return 0


def digest(folder: Path) -> str:
    """SHA-256 over a folder's files, in the order of their names."""
    return hashlib.sha256("".join(sha256_file(path) for path in sorted(folder.glob("*.json"))).encode()).hexdigest()


def fill(folder: Path, subsets: dict[str, list[Case]], name: str, encoder: CachedEncoder) -> ExperienceMemory:
    """The memory for judging a subset: of all others, without its questions."""
    memory = ExperienceMemory(folder, encoder, query="session_and_history")
    for other, cases in subsets.items():
        if other != name:
            memory.add_all(case_entries(cases, subsets[name]))
    memory.check_disjoint({case.question_id for case in subsets[name]}, [case.question for case in subsets[name]])
    return memory


def blames(judge: Judge, cases: Sequence[Case], what: str) -> list[Any]:
    """The judge's answers, told on stderr as they come."""
    progress = Progress()
    found = []
    for number, case in enumerate(cases, start=1):
        found.append(judge.blame(case))
        progress(what, number, len(cases))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
