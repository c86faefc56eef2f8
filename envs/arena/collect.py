"""Collecting runs: agents over questions, with or without a controller, in groups that are each finished or not begun.

A group is the unit of work: its runs go side by side, its results are written as one part, and everything in it is a
function of the config and of the group's number. So a collection that was killed goes on where it was, and ends with
the bytes of an undisturbed one, whatever the number of workers.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stopwise.controllers.memory.memory import FILE as MEMORY
from stopwise.data.config import plain
from stopwise.data.corpus import read_corpus
from stopwise.data.errors import UsageError
from stopwise.data.files import atomic_path, only_process, read_json, sha256_file, write_json
from stopwise.data.shipped import signals_path
from stopwise.data.store import read_trajectories, write_trajectories
from stopwise.envs.arena.branch_store import BRANCH_SCHEMA
from stopwise.envs.arena.collection import CollectConfig, Job, groups_of
from stopwise.envs.arena.retrievers import DenseRetriever
from stopwise.envs.arena.worker import (
    EMBEDDINGS,
    INDEX,
    Control,
    Worker,
    branches_part,
    run_in_worker,
    start_worker,
    texts_of_corpus,
    trajectories_part,
)
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import Encoder
from stopwise.models.ledger import BILL, read_bill

TRAJECTORIES = "trajectories.parquet"
BRANCHES = "branches.parquet"
RECORD = "collection.json"  # the config that the folder's files were made by
LOCK = ".lock"  # held while a process works on the folder


def collect(
    config: CollectConfig,
    out: Path,
    make_encoder: Callable[[str | None], Encoder],
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Collect into a folder, or go on with what is there.

    Args:
        config: what to run.
        out: folder of the results; made if missing. A folder of the same config is resumed.
        make_encoder: makes the encoder from its name; must be importable, as worker processes call it.
        progress: called with what is being done, how much of it, and how much there is.

    Returns:
        JSON-able: how many runs and branches there are, and the files.

    Raises:
        UsageError: the folder holds another collection, another process works on it, or the config cannot be run.
        DataError: the corpus cannot be read, or has no question to ask.
    """
    report = progress or (lambda what, done, total: None)
    out = Path(out)
    groups = groups_of(config)
    control = Control(config, make_encoder=make_encoder)  # what cannot be run is refused before anything is written
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file; expected a folder")
    with closing(control), only_process(out, out / LOCK):
        return _collect(config, out, make_encoder, report, groups, control)


def _collect(
    config: CollectConfig,
    out: Path,
    make_encoder: Callable[[str | None], Encoder],
    report: Callable[[str, int, int], None],
    groups: Sequence[Sequence[Job]],
    control: Control,
) -> dict[str, Any]:
    _claim(config, out)
    result: dict[str, Any] = {"out": str(out), "trajectories": str(out / TRAJECTORIES)}
    if config.branch is not None:
        result["branches"] = str(out / BRANCHES)
    total = sum(map(len, groups))
    if not (out / TRAJECTORIES).exists():
        parts = out / "parts"
        parts.mkdir(exist_ok=True)
        missing = [number for number in range(len(groups)) if not trajectories_part(parts, number).exists()]
        done = total - sum(len(groups[number]) for number in missing)
        report("collecting runs", done, total)
        _prepare(config, out, make_encoder, report, embeds=control.embeds)
        for number in _work(config, out, missing, make_encoder, control):
            done += len(groups[number])
            report("collecting runs", done, total)
        _merge(config, out, parts, len(groups))
    shutil.rmtree(out / "parts", ignore_errors=True)  # also what a kill between merging and here has left
    shutil.rmtree(out / INDEX, ignore_errors=True)
    for name in (EMBEDDINGS, f"{EMBEDDINGS}-wal", f"{EMBEDDINGS}-shm"):
        (out / name).unlink(missing_ok=True)
    if (out / BILL).exists():
        result["llm"] = read_bill(out / BILL)
    return result | {"runs": total, "groups": len(groups)}


def _claim(config: CollectConfig, out: Path) -> None:
    """Write down what the folder is for, or check that it is for the same."""
    corpus = Path(config.corpus)
    hashes = {
        name: sha256_file(corpus / name) for name in ("corpus.jsonl", "queries.jsonl") if (corpus / name).exists()
    }
    record = plain(config) | {"workers": None, "sha256": hashes}  # how many work on it changes nothing
    if config.llm is not None:  # nor what may be spent, and how fast
        endpoint = record["llm"]["endpoint"] and record["llm"]["endpoint"] | {"patience": None, "prices": None}
        record["llm"] = {"endpoint": endpoint, "local": config.llm.local, "tries": config.llm.tries}
    choice = config.controller  # what its decisions depend on, beside its parameters
    if choice is not None and choice.signals is not None:
        record["sha256"]["signals"] = sha256_file(signals_path(choice.signals))
    if choice is not None and choice.memory is not None:
        record["sha256"]["memory"] = sha256_file(Path(choice.memory) / MEMORY)
    place = out / RECORD
    if place.exists():
        if read_json(place) != record:
            raise UsageError(f"{out}: holds a collection of another config ({place.name}); name another folder")
        for left in out.glob(".*.part"):  # by a kill in the middle of a write
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        return
    if any(path.name != LOCK and not path.name.startswith(f".{RECORD}.") for path in out.iterdir()):
        raise UsageError(f"{out}: is not empty and holds no collection; name another folder")
    write_json(place, record)


def _prepare(
    config: CollectConfig,
    out: Path,
    make_encoder: Callable[[str | None], Encoder],
    report: Callable[[str, int, int], None],
    *,
    embeds: bool,
) -> None:
    """Embed the corpus once, for all groups, workers and resumed calls."""
    if config.retriever == "dense" and not (out / INDEX).exists():
        report("embedding documents", 0, 1)
        encoder = make_encoder(config.encoder)
        DenseRetriever.build(read_corpus(Path(config.corpus)), encoder, config.backend).save(out / INDEX)
        report("embedding documents", 1, 1)
    if embeds:
        store = CachedEncoder(make_encoder(config.encoder), out / EMBEDDINGS)
        store.prefetch(
            texts_of_corpus(read_corpus(Path(config.corpus))),
            lambda done, total: report("embedding texts for the signals", done, total),
        )
        store.close()


def _work(
    config: CollectConfig,
    out: Path,
    numbers: Sequence[int],
    make_encoder: Callable[[str | None], Encoder],
    control: Control,
) -> Iterator[int]:
    """Run groups; yields the number of each that is finished."""
    if config.workers == 1 or len(numbers) < 2:
        worker = Worker(config, out, make_encoder, control)
        for number in numbers:
            worker.run(number)
            yield number
        return
    with ProcessPoolExecutor(
        min(config.workers, len(numbers)), get_context("spawn"), start_worker, (config, out, make_encoder)
    ) as pool:
        futures = {pool.submit(run_in_worker, number): number for number in numbers}
        for future in as_completed(futures):
            future.result()
            yield futures[future]


def _merge(config: CollectConfig, out: Path, parts: Path, count: int) -> None:
    """Join the parts in the order of the groups; trajectories last, since they mean that all is there."""
    if config.branch is not None:
        with atomic_path(out / BRANCHES) as partial, pq.ParquetWriter(partial, BRANCH_SCHEMA) as writer:
            for number in range(count):
                writer.write_table(pq.read_table(branches_part(parts, number), schema=BRANCH_SCHEMA))
    write_trajectories(
        out / TRAJECTORIES,
        (trajectory for number in range(count) for trajectory in read_trajectories(trajectories_part(parts, number))),
    )
