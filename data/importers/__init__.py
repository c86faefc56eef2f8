"""Readers of other tools' logs: one module a format family.

An importer is a module with ``PICTURE`` (one line that shows the format), ``evidence(sample) -> float`` (how surely a
file is of its family) and ``read(path, tools) -> Iterator[Trajectory | ImportProblem]``. To add one, write the module
and name it in `FORMATS`.
"""

import importlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol, cast

from stopwise.data.errors import DataError, UsageError
from stopwise.data.importers.inputs import expand
from stopwise.data.importers.toolbox import ImportProblem, Sample
from stopwise.data.importers.tools import TOOLS, Tools
from stopwise.data.records import Trajectory

# format name: module
FORMATS = {
    "react": "stopwise.data.importers.react",
    "search_tags": "stopwise.data.importers.search_tags",
    "chat": "stopwise.data.importers.chat",
    "qwen_chat": "stopwise.data.importers.qwen_chat",
    "dr_tulu": "stopwise.data.importers.dr_tulu",
    "langchain": "stopwise.data.importers.langchain",
    "otel": "stopwise.data.importers.otel",
    "who_and_when": "stopwise.data.importers.who_and_when",
    "browsecomp_plus": "stopwise.data.importers.browsecomp_plus",
    "responses": "stopwise.data.importers.responses",
    "smolagents": "stopwise.data.importers.smolagents",
    "atif": "stopwise.data.importers.atif",
    "stopwise": "stopwise.data.importers.stopwise_jsonl",
}


class Importer(Protocol):
    """What a format's module offers."""

    PICTURE: str
    evidence: Callable[[Sample], float]
    read: Callable[[Path, Tools], Iterator[Trajectory | ImportProblem]]


@dataclass(frozen=True, slots=True)
class Source:
    """One file to import."""

    path: Path
    format: str  # a key of FORMATS
    runner_up: str | None = None  # the format that was thought of next


def importer(format: str) -> Importer:
    """The module that reads a format.

    Raises:
        UsageError: there is no such format.
    """
    if format not in FORMATS:
        near = get_close_matches(format, FORMATS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected auto or one of {', '.join(FORMATS)}"
        raise UsageError(f"--format {format}: no such format; {hint}")
    return cast(Importer, importlib.import_module(FORMATS[format]))


@dataclass(frozen=True, slots=True)
class Plan:
    """What an import will read."""

    sources: tuple[Source, ...]
    skipped: tuple[ImportProblem, ...]  # files of folders and patterns that are no logs


def choose(paths: Sequence[Path], format: str = "auto", leave_out: Collection[Path] = ()) -> Plan:
    """Say for each file how it will be read.

    Args:
        paths: files, folders or patterns.
        format: a key of `FORMATS`, or "auto" to go by content.
        leave_out: files that are no logs where a folder or a pattern holds them, as an earlier import's output.

    Raises:
        DataError: a file that was named cannot be read or its format is not clear, or no file of a folder is a log.
        UsageError: there is no such format.
    """
    from stopwise.data.importers.detect import sniff

    if format != "auto":
        importer(format)
    sources: list[Source] = []
    skipped: list[ImportProblem] = []
    left_out = {path.absolute() for path in leave_out}
    inputs = [item for item in expand(paths) if item.named or item.path.absolute() not in left_out]
    if not inputs:
        raise DataError(f"{paths[0]}: holds no file")
    for item in inputs:
        if item.unreadable:
            skipped.append(ImportProblem(str(item.path), "", item.unreadable))
            continue
        if format != "auto":
            sources.append(Source(item.path, format))
            continue
        try:
            choice = sniff(item.path)
        except DataError as error:
            if item.named or len(inputs) == 1:
                raise
            skipped.append(_problem(item.path, error))
        else:
            sources.append(Source(item.path, choice.format, choice.runner_up))
    if not sources:
        raise DataError(f"{paths[0]}: none of its {len(skipped)} files is a log; the first: {skipped[0]}")
    return Plan(tuple(sources), tuple(skipped))


def _problem(path: Path, error: DataError) -> ImportProblem:
    return ImportProblem(str(path), "", str(error).removeprefix(f"{path}: "))


def read_logs(
    paths: Sequence[Path], format: str = "auto", tools: Tools = TOOLS
) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of all files in order, streamed; raises as `choose`."""
    plan = choose(paths, format)
    yield from plan.skipped
    yield from read_sources(plan.sources, tools)


def read_sources(sources: Sequence[Source], tools: Tools = TOOLS) -> Iterator[Trajectory | ImportProblem]:
    """Trajectories of chosen files in order, streamed, their ids made unique.

    With several files an id begins with its file's path below the folder that they share; an id that comes again in one
    file of another tool gets ``#2``, ``#3`` and so on (our own format has no such runs). A file that cannot be read to
    its end is a problem.
    """
    folder = os.path.commonpath([source.path.absolute().parent for source in sources]) if sources else ""
    for source in sources:
        prefix = ""
        if len(sources) > 1:
            prefix = Path(os.path.relpath(source.path.absolute(), folder)).with_suffix("").as_posix()
        seen: set[int] = set()  # hashes: ids of a large file take much memory
        try:
            for found in importer(source.format).read(source.path, tools):
                if isinstance(found, ImportProblem):
                    yield found
                    continue
                name, number = found.id, 1
                while hash(name) in seen:
                    number += 1
                    name = f"{found.id}#{number}"
                seen.add(hash(name))
                if prefix:  # a file that is named as its only run needs no second name
                    name = prefix if name == source.path.stem else f"{prefix}/{name}"
                yield found if name == found.id else replace(found, id=name)
        except DataError as error:
            yield _problem(source.path, error)
