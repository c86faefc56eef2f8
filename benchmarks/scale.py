"""How far the arena carries: a world of a million documents, made, indexed and searched by the arena's own classes.

    python benchmarks/scale.py --work SCRATCH --out docs/results/scale.json

Parts run in order, each in a process of its own, so that its peak memory is its own. A part that was done with the same
options is not done again; SCRATCH (about 6 GB) keeps what they make. `--parts` names the ones to run.

- ``world``: `stopwise world` at that size.
- ``bm25``: a BM25 index of all of its documents, and searches.
- ``encode``: `--encoded` of the documents, evenly spread, and the queries, by all-MiniLM-L6-v2. Goes on where it was.
- ``index``: vectors for all documents, and an inverted file (IVF) over them, saved. Encoding a million documents takes
  hours on a CPU, so the others are *drawn around the encoded ones*: a random encoded vector, moved by the difference of
  two of its ten nearest neighbours. So they are as far from it, and in the same directions, as its neighbours are. What
  a drawn vector's document says has nothing to do with it: the parts below say how well IVF finds what flat search
  finds, and nothing about evidence.
- ``exact``, ``flat``, ``ivf``: the saved index loaded and searched by numpy, by FAISS, and by IVF at several numbers of
  probes, with recall against flat.
- ``control``: recall of IVF on the really encoded documents alone, beside that on as many vectors drawn around a tenth
  of them: how much easier or harder drawn vectors are than real ones.
- ``collect``: `stopwise collect` of scripted agents over BM25 in that world.

Queries are criteria of the world's questions, one of each question, as agents ask them. Search times are of one query
at a time and leave out its encoding.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.corpus import CorpusDocument, Query, read_corpus, read_queries
from stopwise.data.files import write_json
from stopwise.envs.arena.retrievers import BM25Retriever, DenseRetriever, Retriever, as_result
from stopwise.envs.arena.vector_index import IVF_PROBES, cells_of, read_index
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import MINILM, SentenceTransformerEncoder

Found = dict[str, float]  # scores by document id

TOP = 5
SAME_SCORE = 1e-5  # scores that differ by less are ties: documents with the same vector, and rounding
PROBES = (8, 16, 32, 64, 128, 256, 512)
CONTROL_PROBES = (1, 2, 4, 8, 16, 32, 64, 128)
NEIGHBOURS = 10  # of an encoded vector, whose differences move the drawn ones
DRAWN_BLOCK = 20_000  # vectors drawn at a time
TIMED_PASSAGES = 200
VECTOR_QUERIES = 200  # of `--queries`, for vectors: flat search in a million of them takes long
SLOW_QUERIES = 50  # for `exact`, which takes longest
COLLECTED = 5  # questions that agents are asked


def make_world(options: argparse.Namespace) -> dict[str, Any]:
    """Make the world as a user does, by the command line."""
    started = time.perf_counter()
    size = ["--documents", str(options.documents), "--questions", str(options.questions)]
    _stopwise("world", "--out", str(_world(options)), *size)
    return {"seconds": time.perf_counter() - started, "megabytes": _megabytes(_world(options))}


def index_words(options: argparse.Namespace) -> dict[str, Any]:
    """Index the world by BM25, and search it."""
    started = time.perf_counter()
    retriever = BM25Retriever(_documents(options))
    seconds = time.perf_counter() - started
    queries = _queries(options)
    found, times = _search(retriever, [criterion for criterion, _ in queries])
    hits = [bool(gold & ids.keys()) for (_, gold), ids in zip(queries, found, strict=True)]
    return {"build_seconds": seconds, "search": times, "gold_in_top_5": float(np.mean(hits)), "on_disk": "not saved"}


def encode(options: argparse.Namespace) -> dict[str, Any]:
    """Embed an even sample of the documents, and the queries."""
    encoder = CachedEncoder(SentenceTransformerEncoder(), options.work / "embeddings.sqlite")
    passages = [document.passage for document in _sample(options)]
    encoder.prefetch(passages, lambda done, total: _say("encode", f"{done} of {total} documents"))
    encoder.encoder.encode(passages[:1])  # loads the network, which may not have been needed so far
    started = time.process_time()
    encoder.encoder.encode(passages[:TIMED_PASSAGES])
    rate = len(passages[:TIMED_PASSAGES]) / (time.process_time() - started)
    np.save(options.work / "encoded.npy", encoder.encode(passages))
    np.save(options.work / "queries.npy", encoder.encode([text for text, _ in _queries(options)]))
    return {"encoder": encoder.id, "documents": len(passages), "documents_per_cpu_second": rate}


def index_vectors(options: argparse.Namespace) -> dict[str, Any]:
    """Draw the vectors that are not encoded, build the inverted file, and save."""
    documents = [as_result(document) for document in _documents(options)]
    started = time.perf_counter()
    vectors = draw_around(np.load(options.work / "encoded.npy"), len(documents))
    drawn = time.perf_counter()
    retriever = DenseRetriever(documents, vectors, _encoder(options), "ivf")
    built = time.perf_counter()
    _say("index", f"cells fitted and filled in {built - drawn:.0f} s")
    retriever.save(options.work / "index")
    return {
        "encoded": options.encoded,
        "drawn": len(documents) - options.encoded,
        "dimension": vectors.shape[1],
        "cells": cells_of(len(documents)),
        "draw_seconds": drawn - started,
        "build_seconds": built - drawn,
        "save_seconds": time.perf_counter() - built,
        "megabytes": {
            "vectors": _megabytes(options.work / "index" / "vectors.npy"),
            "ivf": _megabytes(options.work / "index" / "ivf.faiss"),
        },
    }


def draw_around(encoded: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Vectors (count, d): those encoded, evenly spread, and others drawn around them."""
    rng = np.random.default_rng(0)
    dimension = encoded.shape[1]
    near = _neighbours(encoded)
    vectors = np.empty((count, dimension), dtype=np.float32)
    for start in range(0, count, DRAWN_BLOCK):
        stop = min(count, start + DRAWN_BLOCK)
        around = rng.integers(len(encoded), size=stop - start)
        first = rng.integers(NEIGHBOURS, size=stop - start)
        second = (first + rng.integers(1, NEIGHBOURS, size=stop - start)) % NEIGHBOURS  # another one
        moved = encoded[around] + encoded[near[around, first]] - encoded[near[around, second]]
        vectors[start:stop] = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        _say("index", f"{stop} of {count} vectors")
    step = count // len(encoded)
    vectors[: step * len(encoded) : step] = encoded
    return vectors


def _neighbours(encoded: NDArray[np.float32]) -> NDArray[np.int64]:
    """The nearest others of each vector, shape (n, NEIGHBOURS)."""
    near = np.empty((len(encoded), NEIGHBOURS), dtype=np.int64)
    for start in range(0, len(encoded), 1000):
        scores = encoded[start : start + 1000] @ encoded.T
        scores[np.arange(len(scores)), start + np.arange(len(scores))] = -np.inf  # itself
        near[start : start + 1000] = np.argpartition(-scores, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    return near


def search_exact(options: argparse.Namespace) -> dict[str, Any]:
    """Search the saved index by numpy; a few queries only."""
    retriever, seconds = _load(options, "exact")
    _, times = _search(retriever, _vector_queries(options)[:SLOW_QUERIES])
    return {"load_seconds": seconds, "search": times}


def search_flat(options: argparse.Namespace) -> dict[str, Any]:
    """Search the saved index by FAISS, comparing with all vectors."""
    retriever, seconds = _load(options, "faiss")
    found, times = _search(retriever, _vector_queries(options))
    write_json(options.work / "flat_found.json", found)
    encoded = {document.id for document in _sample(options)}
    share = float(np.mean([document in encoded for ids in found for document in ids]))
    return {"load_seconds": seconds, "search": times, "share_of_encoded_in_top_5": share}


def search_ivf(options: argparse.Namespace) -> dict[str, Any]:
    """Search the saved index by IVF; recall against flat."""
    retriever, seconds = _load(options, "ivf")
    flat = json.loads((options.work / "flat_found.json").read_text(encoding="utf-8"))
    texts = _vector_queries(options)
    rows = [_compared(retriever, IVF_PROBES, texts, flat)]
    del retriever
    documents = [as_result(document) for document in _documents(options)]
    vectors = np.load(options.work / "index" / "vectors.npy", mmap_mode="r")
    for probes in sorted(set(PROBES) - {IVF_PROBES}):
        index = read_index(options.work / "index" / "ivf.faiss", probes)
        other = DenseRetriever(documents, vectors, _encoder(options), "ivf", probes, index)
        rows.append(_compared(other, probes, texts, flat))
        del index, other
    return {
        "default_probes": IVF_PROBES,
        "load_seconds": seconds,
        "by_probes": sorted(rows, key=lambda row: row["probes"]),
    }


def search_control(options: argparse.Namespace) -> dict[str, Any]:
    """IVF against flat over the really encoded documents, and over as many drawn around a tenth of them."""
    encoded = np.load(options.work / "encoded.npy")
    documents = [as_result(document) for document in _sample(options)]
    texts = _vector_queries(options)
    result: dict[str, Any] = {"documents": len(encoded), "cells": cells_of(len(encoded))}
    for name, vectors in {"real": encoded, "drawn": draw_around(encoded[::10], len(encoded))}.items():
        flat, _ = _search(DenseRetriever(documents, vectors, _encoder(options), "faiss"), texts)
        result[name] = [
            _compared(DenseRetriever(documents, vectors, _encoder(options), "ivf", probes), probes, texts, flat)
            for probes in CONTROL_PROBES
        ]
    return result


def collect(options: argparse.Namespace) -> dict[str, Any]:
    """Scripted agents over BM25 in the world, as a user runs them."""
    out = options.work / "collected"
    shutil.rmtree(out, ignore_errors=True)  # of a call that was interrupted: a resumed one would not be timed right
    config = options.work / "collect.yaml"
    config.write_text(
        f"corpus: {json.dumps(str(_world(options).resolve()))}\nagents: [chaser, verifier, rephraser]\n"
        f"questions: {COLLECTED}\nretriever: bm25\n",
        encoding="utf-8",
    )
    started = time.perf_counter()
    _stopwise("collect", str(config), "--out", str(out))
    seconds = time.perf_counter() - started
    from stopwise.data.store import read_trajectories

    runs = list(read_trajectories(out / "trajectories.parquet"))
    recalls = [len(_seen(run) & set(run.gold_ids or ())) / len(run.gold_ids or ()) for run in runs]
    return {
        "runs": len(runs),
        "seconds": seconds,
        "searches": float(np.mean([len(run.search_steps) for run in runs])),
        "recall": float(np.mean(recalls)),
    }


def _seen(run: Any) -> set[str]:
    return {document.id for step in run.search_steps for document in step.documents}


class Remembered:
    """An encoder that knows the benchmark's queries by heart."""

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.id = f"{MINILM}, drawn"
        self._vectors = dict(zip(texts, vectors, strict=True))

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of known queries, shape (n, d)."""
        return np.stack([self._vectors[text] for text in texts])


def _encoder(options: argparse.Namespace) -> Remembered:
    return Remembered([text for text, _ in _queries(options)], np.load(options.work / "queries.npy"))


def _load(options: argparse.Namespace, backend: Any) -> tuple[DenseRetriever, float]:
    started = time.perf_counter()
    retriever = DenseRetriever.load(options.work / "index", _documents(options), _encoder(options), backend)
    return retriever, time.perf_counter() - started


def _compared(retriever: Retriever, probes: int, texts: Sequence[str], flat: list[Found]) -> dict[str, Any]:
    """Recall against flat search: by score, where whatever scores as high as flat's last is as good, and by id."""
    found, times = _search(retriever, texts)
    pairs = list(zip(found, flat, strict=True))
    shares = np.array([sum(s >= min(b.values()) - SAME_SCORE for s in a.values()) / len(b) for a, b in pairs])
    return {
        "probes": probes,
        "recall_at_5": float(shares.mean()),
        "standard_error": float(shares.std(ddof=1) / len(shares) ** 0.5),
        "recall_at_5_by_id": float(np.mean([len(a.keys() & b.keys()) / len(b) for a, b in pairs])),
        "search": times,
    }


def _search(retriever: Retriever, texts: Sequence[str]) -> tuple[list[Found], dict[str, Any]]:
    """The documents found for each query, and how long a query takes."""
    found: list[Found] = []
    seconds: list[float] = []
    retriever.search(texts[:1], TOP)  # warms up
    for number, text in enumerate(texts, start=1):
        started = time.perf_counter()
        (documents,) = retriever.search([text], TOP)
        seconds.append(time.perf_counter() - started)
        found.append({document.id: document.score or 0.0 for document in documents})
        if number % 100 == 0:
            _say(retriever.id, f"{number} of {len(texts)} queries")
    median, high = np.quantile(seconds, (0.5, 0.95)) * 1000
    return found, {"queries": len(texts), "median_ms": float(median), "p95_ms": float(high)}


def _world(options: argparse.Namespace) -> Path:
    return options.work / "world"


def _documents(options: argparse.Namespace) -> Iterator[CorpusDocument]:
    return read_corpus(_world(options))


def _sample(options: argparse.Namespace) -> Iterator[CorpusDocument]:
    """The documents that are really encoded, evenly spread."""
    step = options.documents // options.encoded
    return islice(_documents(options), 0, step * options.encoded, step)


def _queries(options: argparse.Namespace) -> list[tuple[str, set[str]]]:
    """Different criteria, one of each question in turn, with their gold."""
    chosen: dict[str, set[str]] = {}
    for number, query in enumerate(read_queries(_world(options))):
        criteria = _criteria(query)
        text, gold = criteria[number % len(criteria)]
        chosen.setdefault(text, gold)
    return list(chosen.items())[: options.queries]


def _vector_queries(options: argparse.Namespace) -> list[str]:
    return [text for text, _ in _queries(options)[:VECTOR_QUERIES]]


def _criteria(query: Query) -> list[tuple[str, set[str]]]:
    return [(criterion.text, set(criterion.gold_ids or ())) for criterion in query.criteria or ()]


def _stopwise(*words: str) -> None:
    from stopwise.cli.main import main as stopwise

    status = stopwise(list(words))
    if status != 0:
        raise SystemExit(status)


def _megabytes(path: Path) -> float:
    """Size on disk, 10^6 bytes."""
    files = [path] if path.is_file() else path.rglob("*")
    return round(sum(file.stat().st_size for file in files if file.is_file()) / 1e6, 1)


def _say(what: str, how_far: str) -> None:
    print(f"{what}: {how_far}", file=sys.stderr, flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "world": make_world,
    "bm25": index_words,
    "encode": encode,
    "index": index_vectors,
    "exact": search_exact,
    "flat": search_flat,
    "ivf": search_ivf,
    "control": search_control,
    "collect": collect,
}
SIZES = ("documents", "questions", "queries", "encoded")
MATTERING = {"world": SIZES[:2], "collect": SIZES[:2], "bm25": SIZES[:3]}  # to parts that do not depend on all sizes


def measured(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """A part's result, from its record or by running it in a process of its own."""
    sizes = {name: getattr(options, name) for name in SIZES}
    mattering = {name: sizes[name] for name in MATTERING.get(part, SIZES)}
    record = options.work / f"{part}.json"
    if record.exists():
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["sizes"] == mattering:
            _say(part, "was done before")
            return known["result"]
    _say(part, "begins")
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    child = subprocess.Popen([sys.executable, __file__, "--work", str(options.work), "--only", part, *words])
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"scale: part {part} failed")
    result = json.loads((options.work / f"{part}.found.json").read_text(encoding="utf-8"))
    result |= {"peak_mb": usage.ru_maxrss // 1024, "cpu_seconds": usage.ru_utime + usage.ru_stime}
    result["threads"] = os.getenv("OMP_NUM_THREADS", "all cores")
    write_json(record, {"sizes": mattering, "result": result})
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts that are missing, and write all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for what the parts make")
    parser.add_argument("--out", type=Path, help="JSON file to write (default: standard output)")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--encoded", type=int, default=20_000, help="documents that are really encoded")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="what to measure")
    parser.add_argument("--only", choices=list(PARTS), help=argparse.SUPPRESS)  # run a part in this process
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.only is not None:
        write_json(options.work / f"{options.only}.found.json", PARTS[options.only](options))
        return 0
    result = {
        "command": "python benchmarks/scale.py --work SCRATCH "
        + " ".join(f"--{name} {getattr(options, name)}" for name in SIZES),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "versions": {name: version(name) for name in ("numpy", "faiss-cpu", "bm25s")},
        "vectors": f"{options.encoded} of {options.documents} documents are really encoded; the other vectors are "
        "drawn around those, since encoding them all takes hours on a CPU",
        **{part: measured(part, options) for part in options.parts},
    }
    if options.out is None:
        print(json.dumps(result, indent=1))
    else:
        write_json(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
