"""An experience memory of a million entries: how fast, how exact, how large, and how it grows.

    python benchmarks/memory_scale.py --logs samples --work runs/memory_scale --out docs/results/memory_scale.json

Some sessions of the logs are really encoded, as entries (session and history). The others are drawn around these: a
random direction, at a cosine drawn from those between real entries and their nearest neighbours. All go into the
memory's file with the texts of a real entry. Measured: writing and building, loading, both pools' top 2 for sessions
about other questions (on one thread, against an exact search), sizes, and how many entries a memory keeps of two
streams, one of near duplicates and one of the real sessions in their order. Embeddings are cached, so an interrupted
call resumes.
"""

import argparse
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.cli.output import Progress, logs_path
from stopwise.controllers.memory.entries import LABELS, Entry
from stopwise.controllers.memory.index import FLAT_LIMIT, PROBES
from stopwise.controllers.memory.memory import FILE, TAU_DUP, ExperienceMemory, unit
from stopwise.controllers.memory.sessions import EXTRACTIVE, extract_abstraction, history_summary, session_text
from stopwise.controllers.memory.store import EntryStore
from stopwise.data.files import write_json
from stopwise.data.store import read_trajectories
from stopwise.evaluation.record import provenance
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import Embeddings, SentenceTransformerEncoder
from stopwise.train.memory import label_of

Vectors = NDArray[np.float32]

K = 2  # entries of each pool, as in the paper
WRITE = 10_000  # entries a transaction
EXACT = 50_000  # entries that are compared at a time in the exact search
SAME = 0.995  # cosine of a near duplicate to what it is drawn around
CENTRES = 1000  # things that really differ, in the stream of near duplicates


class Given:
    """An encoder of texts that are row numbers of given vectors."""

    id = "given"

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """See `Encoder.encode`."""
        return self._vectors[[int(text) for text in texts]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", required=True, help="trajectories with known outcomes, or 'samples'")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--encoded", type=int, default=20_000, help="entries that are really encoded")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--stream", type=int, default=20_000, help="length of the stream of near duplicates")
    parser.add_argument("--flat-limit", type=int, default=FLAT_LIMIT, help="entries of a pool searched exactly")
    parser.add_argument("--cache", type=Path, help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--work", type=Path, required=True, help="folder for the memory; it is emptied")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)
    generator = np.random.default_rng(options.seed)
    progress = Progress()
    encoder = CachedEncoder(SentenceTransformerEncoder(), options.cache)
    logs = logs_path(options.logs)

    everything = list(sessions(logs))
    held_out = questions_for(everything, options.queries)
    entries = [entry for entry in everything if entry.question_id not in held_out][: options.encoded]
    queries = [entry for entry in everything if entry.question_id in held_out][: options.queries]
    if len(entries) < options.encoded:
        parser.error(
            f"{logs}: has {len(entries)} sessions of questions that are not asked for; expected {options.encoded}"
        )
    started = time.perf_counter()
    texts = [text for entry in entries for text in (entry.session, entry.history) if text]
    texts += [entry.session for entry in queries]
    fresh = encoder.prefetch(texts, lambda done, total: progress("encoding", done, total))
    encoding = {"texts": len(texts), "encoded_now": fresh, "seconds": time.perf_counter() - started}
    asked = encoder.encode([entry.session for entry in queries])

    shutil.rmtree(options.work, ignore_errors=True)
    folder = options.work / "memory"
    memory = ExperienceMemory(folder, encoder)
    real = np.concatenate([memory.embed(entries[at : at + 512]) for at in range(0, len(entries), 512)])
    memory.close()
    spread = neighbour_cosines(real, generator)
    build = write(folder, encoder.id, entries, real, spread, options.entries, generator)
    started = time.perf_counter()
    memory = ExperienceMemory(folder, encoder, flat_limit=options.flat_limit)
    build["index_seconds"] = time.perf_counter() - started
    memory.save_indexes()
    kinds, counts = memory.kinds(), memory.counts()
    memory.close()
    started = time.perf_counter()
    memory = ExperienceMemory(folder, encoder, flat_limit=options.flat_limit)
    loading = time.perf_counter() - started
    search = measure(memory, encoder.id, asked)
    memory.close()
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}

    command = ["python", "benchmarks/memory_scale.py", *(arguments if arguments is not None else sys.argv[1:])]
    result = provenance(command, {k: str(v) for k, v in vars(options).items()}, {"logs": logs}) | {
        "encoder": encoder.id,
        "entries": counts,
        "search_by": kinds,
        "probes": PROBES,
        "tau_dup": TAU_DUP,
        "encoding": encoding,
        "drawn_cosines": dict(
            zip(("p10", "p50", "p90"), map(float, np.quantile(spread, [0.1, 0.5, 0.9])), strict=True)
        ),
        "build": build | {"seconds": build["write_seconds"] + build["index_seconds"]},
        "load_seconds": loading,
        "search": search,
        "bytes": sizes | {"all": sum(sizes.values()), "an_entry": sum(sizes.values()) / sum(counts.values())},
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "growth": {
            "near_duplicates": growth(options.work / "near", near_duplicates(real, options.stream, generator)),
            "real_sessions": growth(options.work / "real", real),
        },
    }
    write_json(options.out, result)
    print(f"build {result['build']['seconds']:.0f} s, load {loading:.1f} s, {sizes}")
    print(f"both pools' top {K}: {search}")
    for name, rows in result["growth"].items():
        print(name, rows)
    return 0


def questions_for(entries: Sequence[Entry], count: int) -> set[str]:
    """The last questions of the logs that have `count` sessions together: none of theirs becomes an entry."""
    held_out: set[str] = set()
    sizes = Counter(entry.question_id for entry in entries)
    for entry in reversed(entries):
        if sum(sizes[question] for question in held_out) >= count:
            break
        held_out.add(entry.question_id)
    return held_out


def sessions(logs: Path) -> Iterator[Entry]:
    """Entries of the search steps of runs with a known outcome, in the order of the logs."""
    for run in read_trajectories(logs):
        label = label_of(run)
        for position, step in enumerate(run.steps):
            if step.kind != "search" or label is None:
                continue
            yield Entry(
                session_text(run.question, step),
                history_summary(run.steps[:position]),
                extract_abstraction(run.steps[: position + 1], label),
                label,
                run.question_id,
                question=run.question,
                agent=run.agent,
                dataset=run.dataset,
                abstraction_by=EXTRACTIVE,
            )


def neighbour_cosines(real: Vectors, generator: np.random.Generator) -> NDArray[np.float64]:
    """Cosines between up to 2,000 real entries and the nearest of the others."""
    chosen = generator.permutation(len(real))[:2000]
    cosines = real[chosen] @ real.T
    cosines[np.arange(len(chosen)), chosen] = -1.0
    return np.minimum(cosines.max(axis=1), 1.0).astype(np.float64)


def around(centres: Vectors, cosines: NDArray[np.float64], generator: np.random.Generator) -> Vectors:
    """Unit vectors (N, D) at given cosines (N,) to centres (N, D), in random directions."""
    noise = generator.standard_normal(centres.shape, dtype=np.float32)
    across = unit(noise - (noise * centres).sum(axis=1, keepdims=True) * centres)
    wide = cosines.astype(np.float32)[:, None]
    return wide * centres + np.sqrt(1 - wide**2) * across


def write(
    folder: Path,
    encoder: str,
    entries: Sequence[Entry],
    real: Vectors,
    spread: NDArray[np.float64],
    count: int,
    generator: np.random.Generator,
) -> dict[str, float]:
    """Fill a memory's file: the real entries, then others around them; returns seconds."""
    told = Progress()
    drawing = 0.0
    started = time.perf_counter()
    store = EntryStore(folder / FILE, encoder)
    at = 0
    while at < count:
        many = min(WRITE, count - at)
        begun = time.perf_counter()
        if at < len(real):
            many = min(many, len(real) - at)
            rows, vectors = np.arange(at, at + many), real[at : at + many]
        else:
            rows = generator.integers(len(real), size=many)
            vectors = around(real[rows], generator.choice(spread, many), generator)
        drawing += time.perf_counter() - begun
        with store.transaction():
            store.insert([entries[row] for row in rows], vectors.astype(np.float16))
        at += many
        told("writing", at, count)
    store.close()
    return {"write_seconds": time.perf_counter() - started - drawing, "drawing_seconds": drawing}


def measure(memory: ExperienceMemory, encoder: str, asked: Embeddings) -> dict[str, Any]:
    """Times of single searches on one thread, and recall against an exact search."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    for vector in asked[:50]:  # warm up
        memory.nearest_to(vector, K)
    search, whole = [], []
    found: list[list[set[int]]] = []
    for vector in asked:
        begun = time.perf_counter()
        ids = [ids for _, ids in memory.search(vector, K)]
        search.append(time.perf_counter() - begun)
        found.append([set(map(int, some)) for some in ids])
        begun = time.perf_counter()
        memory.nearest_to(vector, K)
        whole.append(time.perf_counter() - begun)
    faiss.omp_set_num_threads(threads)
    store = EntryStore(memory.folder / FILE, encoder)
    shared = [
        [len(one[pool] & set(map(int, best))) / K for one, best in zip(found, exact(store, pool, asked), strict=True)]
        for pool in range(len(LABELS))
    ]
    store.close()
    milliseconds = 1000 * np.array([search, whole])
    return {
        "queries": len(asked),
        "threads": 1,
        "search_ms": quantiles(milliseconds[0]),
        "search_and_entries_ms": quantiles(milliseconds[1]),
        "recall": {label: float(np.mean(rows)) for label, rows in zip(LABELS, shared, strict=True)}
        | {"both": float(np.mean(shared))},
    }


def exact(store: EntryStore, pool: int, asked: Embeddings) -> NDArray[np.int64]:
    """Ids (Q, K) of the entries of a pool that are really the most similar, by comparing with all."""
    ids, values = store.vectors(pool)
    cosines, found = np.full((len(asked), K), -np.inf, np.float32), np.full((len(asked), K), -1, np.int64)
    for at in range(0, len(ids), EXACT):
        part = ids[at : at + EXACT]
        cosines = np.concatenate([cosines, asked @ unit(values[at : at + EXACT]).T], axis=1)
        found = np.concatenate([found, np.broadcast_to(part, (len(asked), len(part)))], axis=1)
        top = np.argsort(-cosines, axis=1, kind="stable")[:, :K]
        cosines, found = np.take_along_axis(cosines, top, 1), np.take_along_axis(found, top, 1)
    return found


def quantiles(values: NDArray[np.float64]) -> dict[str, float]:
    """Median, 95th percentile and mean."""
    return {"median": float(np.median(values)), "p95": float(np.quantile(values, 0.95)), "mean": float(values.mean())}


def near_duplicates(real: Vectors, count: int, generator: np.random.Generator) -> Vectors:
    """A stream that repeats itself: each vector lies near one of some real ones that lie apart."""
    rows = generator.integers(min(CENTRES, len(real)), size=count)
    centres = real[generator.permutation(len(real))[: min(CENTRES, len(real))]]
    return around(centres[rows], np.full(count, SAME), generator)


def growth(folder: Path, vectors: Vectors) -> list[dict[str, int]]:
    """How many entries a memory keeps as a stream goes on."""
    memory = ExperienceMemory(folder, Given(vectors), flat_limit=len(vectors))
    rows, kept, marks = [], 0, sorted({round(len(vectors) * share) for share in (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)})
    done = 0
    for mark in marks:
        kept += memory.add_all(Entry(str(row), "", "z", "success", "q") for row in range(done, mark))
        done = mark
        rows.append({"seen": done, "kept": kept})
    memory.close()
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
