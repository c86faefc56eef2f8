"""A study: suggestions to be judged, in random order, and apart from them the key that tells whose they are.

[DS-MCM] 4.8 draws sessions in which the monitor was triggered, and shows two annotators the query, the history and the
present session; a suggestion counts as correct when both say so. The paper names one judgement; the two scales beside
it are ours, after its words "reasonable and actionable".

What a rater is shown lies in ``study.json``, which names no method and no file. ``key.json`` tells them; raters need
not have it.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import read_json, sha256_file
from stopwise.data.records import Action, Step, Trajectory
from stopwise.data.store import read_trajectories
from stopwise.envs.arena.collect import RECORD, TRAJECTORIES

STUDY = "study.json"  # what raters see
KEY = "key.json"  # whose suggestion each is
VERSION = 1

_ITEM = {"question", "earlier", "step", "suggestion"}
_THOUGHT = 4000  # characters; what is cut says so
_DOCUMENT = 3000
_QUERY = 500
_TITLE = 200
_SUGGESTION = 4000


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a rater says about a suggestion."""

    name: str
    question: str
    answers: Mapping[int, str]  # value, ascending: what it means
    ordered: bool  # whether the values are a scale, for the weights of kappa


CRITERIA = (
    Criterion(
        "correct",
        "Is the suggestion correct? Would you tell the agent this, or much the same, at this point? "
        "Say no as well where nothing was wrong with the step.",
        {0: "no", 1: "yes"},
        ordered=False,
    ),
    Criterion(
        "reasonable",
        "Is it reasonable: does it fit the question and what the agent has found so far?",
        {1: "1, not at all", 2: "2", 3: "3, partly", 4: "4", 5: "5, fully"},
        ordered=True,
    ),
    Criterion(
        "actionable",
        "Is it actionable: does it tell the agent what to do next?",
        {1: "1, could be said of any step", 2: "2", 3: "3, partly", 4: "4", 5: "5, the next search follows from it"},
        ordered=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Source:
    """A file of runs and the method whose suggestions it holds."""

    method: str
    path: Path
    optional: bool = False  # one arm of many: without suggestions it is passed over


@dataclass(frozen=True, slots=True)
class Guided:
    """A step after which a method made a suggestion."""

    method: str
    path: Path
    trajectory: str
    step: int  # its place among the trajectory's steps, from 0
    question_id: str


def sources_of(words: Iterable[str]) -> list[Source]:
    """What the words of a command line name: PATH or METHOD=PATH.

    A path is a folder of `stopwise collect` (the method is its controller), one of an arena benchmark (its arms are
    the methods), or a file of trajectories (the method must be named, or is the file's name). Several paths may be
    given one METHOD on purpose.

    Raises:
        UsageError: two paths would be the same method by accident, or a benchmark is given one method.
        DataError: there is no such path, or it holds no such runs.
    """
    found: list[Source] = []
    unnamed: dict[str, Path] = {}
    for word in words:
        name, sign, rest = word.partition("=")
        given = name if sign and not Path(word).exists() else None
        path = Path(word if given is None else rest)
        if given == "":
            raise UsageError(f"{word}: names no method; expected METHOD=PATH")
        sources = _sources(path, given)
        for source in sources:
            if any(source.method == other.method and source.path.samefile(other.path) for other in found):
                raise UsageError(f"{path}: is named twice for {source.method!r}; its suggestions would count twice")
            if given is None and source.method in unnamed:
                raise UsageError(
                    f"{path}: its method would be {source.method!r}, as that of {unnamed[source.method]}; "
                    f"tell them apart, as NAME={path}"
                )
        if given is None:
            unnamed |= {source.method: path for source in sources}
        found += sources
    return found


def _sources(path: Path, given: str | None) -> list[Source]:
    if path.is_file():
        return [Source(given or path.stem, path)]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    if (path / RECORD).is_file():
        return [Source(given or _controller_of(path), path / TRAJECTORIES)]
    arms = sorted((path / "arms").glob("*.json")) if (path / "arms").is_dir() else []
    finished = [arm for arm in arms if arm.with_suffix(".parquet").is_file()]
    if not finished:
        raise DataError(f"{path}: holds neither a finished collection nor the arms of a benchmark in the arena")
    if given is not None:
        raise UsageError(f"{given}={path}: a benchmark holds several methods; leave the name out, and see --method")
    return [Source(_name_of(arm), arm.with_suffix(".parquet"), optional=True) for arm in finished]


def _name_of(arm: Path) -> str:
    """What an arm's record calls it."""
    record = read_json(arm)
    if not isinstance(record, dict) or not isinstance(record.get("arm"), str):
        raise DataError(f"{arm}: is no record of an arm; run the benchmark again")
    return record["arm"]


def _controller_of(folder: Path) -> str:
    """What a collection's record calls its controller."""
    if not (folder / TRAJECTORIES).is_file():
        raise DataError(f"{folder}: the collection is not finished; call `stopwise collect` again")
    record = read_json(folder / RECORD)
    choice = record.get("controller") if isinstance(record, dict) else {}
    if choice is None:
        raise DataError(f"{folder}: was collected without a controller, so nothing was suggested")
    name = (choice.get("kind") or choice.get("policy")) if isinstance(choice, dict) else None
    if not isinstance(name, str):
        raise DataError(f"{folder / RECORD}: names no controller; say METHOD={folder}")
    return name if choice.get("kind") else Path(name).name


def guided_steps(source: Source) -> Iterator[Guided]:
    """The steps of a file after which the controller intervened with a suggestion."""
    for run in read_trajectories(source.path):
        for place, step in enumerate(run.steps):
            if step.logged_action is Action.INTERVENE and (step.guidance or "").strip():
                yield Guided(source.method, source.path, run.id, place, run.question_id)


def sample(
    sources: Sequence[Source], per_method: int, seed: int = 0, methods: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a study.

    Each method gives the same number of suggestions. Questions come in an order that the seed draws, one order for all
    methods, so that they are compared on the same questions where they can be; a question gives a method a second
    suggestion only when all its others have given one.

    Args:
        sources: files of runs.
        per_method: suggestions of each method.
        seed: of everything that is drawn.
        methods: those to take; empty takes all that have made suggestions.

    Returns:
        The study as raters see it, and the key; JSON-able.

    Raises:
        UsageError: a method is unknown, or fewer than two are there to be told apart.
        DataError: a method has made too few suggestions, or a file cannot be read.
    """
    if per_method < 1:
        raise UsageError(f"--per-method {per_method}; expected 1 or more")
    steps: dict[str, list[Guided]] = {}
    for source in sources:
        if not methods or source.method in methods:
            found = list(guided_steps(source))
            if found or not source.optional or methods:
                steps.setdefault(source.method, []).extend(found)
    unknown = [name for name in methods if name not in steps]
    if unknown:
        known = ", ".join(dict.fromkeys(source.method for source in sources))
        raise UsageError(f"--method {unknown[0]}: no such method; found {known}")
    if len(steps) < 2:
        raise UsageError(
            f"suggestions of {', '.join(steps) or 'no method'} alone; expected two methods or more, "
            "or there is nothing to be blind to; name further runs"
        )
    for method, some in steps.items():
        if len(some) < per_method:
            raise DataError(
                f"{method}: {len(some)} interventions with a suggestion; expected {per_method}; name more runs, "
                "or lower --per-method. Runs of before suggestions were kept must be made again"
            )
    chosen = [one for method in sorted(steps) for one in _draw(steps[method], per_method, seed)]
    random.Random(f"{seed}/order").shuffle(chosen)
    shown = _shown(chosen)
    study = {"kind": "stopwise.study", "version": VERSION, "items": [shown[one] for one in chosen]}
    key = {
        "kind": "stopwise.study_key",
        "version": VERSION,
        "seed": seed,
        "methods": {
            method: {
                "interventions": len(steps[method]),
                "questions": len({one.question_id for one in steps[method]}),
                "sampled_questions": len({one.question_id for one in chosen if one.method == method}),
            }
            for method in sorted(steps)
        },
        "items": [
            {
                "method": one.method,
                "question_id": one.question_id,
                "trajectory": one.trajectory,
                "step": one.step,
                "file": str(one.path),
            }
            for one in chosen
        ],
    }
    return study, key


def _draw(steps: Sequence[Guided], count: int, seed: int) -> list[Guided]:
    """`count` of one method's steps: question after question, a step each, and again from the first one."""
    by_question: dict[str, list[Guided]] = {}
    for one in steps:
        by_question.setdefault(one.question_id, []).append(one)
    for some in by_question.values():  # the method is not in it: of equal runs it is the same step that is drawn
        some.sort(key=lambda one: _digest(seed, one.trajectory, one.step))
    order = sorted(by_question, key=lambda question: _digest(seed, question))
    rounds = max(map(len, by_question.values()))
    return [by_question[q][turn] for turn in range(rounds) for q in order if turn < len(by_question[q])][:count]


def _digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()


def _shown(chosen: Sequence[Guided]) -> dict[Guided, dict[str, Any]]:
    """What raters see of each; the files are streamed a second time, so that no more runs than these are held."""
    shown: dict[Guided, dict[str, Any]] = {}
    for path in dict.fromkeys(one.path for one in chosen):
        wanted: dict[str, list[Guided]] = {}
        for one in chosen:
            if one.path == path:
                wanted.setdefault(one.trajectory, []).append(one)
        for run in read_trajectories(path):
            for one in wanted.get(run.id, ()):
                shown[one] = item_of(run, one.step)
    return shown


def item_of(run: Trajectory, place: int) -> dict[str, Any]:
    """Question, history, present step and suggestion, without anything that tells the method or the outcome."""
    step = run.steps[place]
    return {
        "question": run.question,
        "earlier": [_step(other, with_text=False) for other in run.steps[:place]],
        "step": _step(step, with_text=True),
        "suggestion": cut(step.guidance or "", _SUGGESTION),
    }


def _step(step: Step, *, with_text: bool) -> dict[str, Any]:
    documents = [
        {"title": cut(document.title or document.id, _TITLE)}
        | ({"text": cut(document.text or "", _DOCUMENT)} if with_text else {})
        for document in step.documents
    ]
    return {
        "kind": step.kind,
        "thought": cut(step.thought or "", _THOUGHT),
        "queries": [cut(query, _QUERY) for query in step.queries],
        "documents": documents,
        "error": None if step.error is None else cut(step.error, _QUERY),
    }


def cut(text: str, limit: int) -> str:
    """A text of at most `limit` characters, and how many are left out."""
    return text if len(text) <= limit else f"{text[:limit]} [... {len(text) - limit} more characters]"


@dataclass(frozen=True, slots=True)
class Study:
    """A study as raters see it."""

    folder: Path
    items: tuple[dict[str, Any], ...]  # as `item_of` makes them; an item's number is its place, from 1
    sha256: str  # of its file: answers belong to it alone


def read_study(folder: Path) -> Study:
    """Read what raters see; the key is not looked at.

    Raises:
        DataError: the folder holds no study, or one of another version.
    """
    path = Path(folder) / STUDY
    if not path.is_file():
        raise DataError(f"{folder}: holds no {STUDY}; make a study with `stopwise annotate sample RUN... --out STUDY`")
    found = _checked(path, "stopwise.study")
    if not all(isinstance(item, dict) and item.keys() == _ITEM for item in found["items"]):
        raise DataError(f"{path}: an item is not {', '.join(sorted(_ITEM))}; sample the study again")
    return Study(Path(folder), tuple(found["items"]), sha256_file(path))


def read_key(study: Study) -> dict[str, Any]:
    """Read whose suggestions they are.

    Raises:
        DataError: there is no key, or it is that of another study.
    """
    path = study.folder / KEY
    if not path.is_file():
        raise DataError(f"{path}: no such file; it tells the methods, and lies where the study was sampled")
    key = _checked(path, "stopwise.study_key")
    if key.get("study_sha256") != study.sha256:
        raise DataError(f"{path}: is the key of another study than {study.folder / STUDY}")
    return key


def _checked(path: Path, kind: str) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict) or found.get("kind") != kind or not isinstance(found.get("items"), list):
        raise DataError(f"{path}: is no file of kind {kind}; sample the study again")
    if found.get("version") != VERSION:
        raise DataError(f"{path}: has version {found.get('version')}; this stopwise reads version {VERSION}")
    return found
