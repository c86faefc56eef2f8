"""Damaged logs end in trajectories or in named problems, never in a crash: every family's sample, mutated by seed."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stopwise.data.codec import trajectory_from_dict, trajectory_to_dict
from stopwise.data.errors import DataError
from stopwise.data.importers import FORMATS, importer
from stopwise.data.importers.detect import sniff
from stopwise.data.importers.toolbox import ImportProblem
from stopwise.data.importers.tools import TOOLS
from stopwise.data.records import Trajectory

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
ODD_VALUES: list[Any] = [
    None, True, 0, -1, 7, 2**70, 0.5, 1e308, float("nan"), float("inf"), "", " ", "x", "\ud800", "\0", "[", "{}",
    "[['x']]", "None", "<think>", "Question:", "{'a': 1}", "http://", "a" * 3000, [], [[]], ["x"], [None, 7], [{}], {},
    {"text": 7}, {"role": "assistant"}, [[["x"]]], {"content": {"content": {}}}, {"type": "text", "text": None},
]  # fmt: skip


def _format_of(sample: Path) -> str:
    return next(name for name in sorted(FORMATS, key=len, reverse=True) if sample.stem.startswith(name))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key below a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in [(value, key), *_places(inner)]]


def _mutate_json(text: str, rng: random.Random) -> str:
    lines = [json.loads(line) for line in text.splitlines()] if "\n{" in text.strip() and text[0] == "{" else None
    try:
        values = lines if lines is not None else [json.loads(text)]
    except json.JSONDecodeError:
        return text
    for _ in range(rng.randint(1, 3)):
        places = _places(values)
        container, key = rng.choice(places)
        action = rng.choice(["retype", "retype", "drop", "swap", "nest"])
        if action == "retype":
            container[key] = copy.deepcopy(rng.choice(ODD_VALUES))
        elif action == "drop":
            del container[key]
        elif action == "swap":
            other, place = rng.choice(places)
            container[key] = copy.deepcopy(other[place])
        else:
            container[key] = [container[key]]
    return "\n".join(json.dumps(value) for value in values) if values else ""


def _mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        size = len(content)
        start, length = rng.randrange(size + 1), rng.choice([1, 1, 2, 8, 64, 300])
        piece = content[start : start + length]
        content = (
            rng.choice(
                [
                    content[:start] + content[start + length :],  # drop
                    content[:start] + piece + piece + content[start + length :],  # double
                    content[:start],  # truncate
                    content[:start] + bytes(rng.randrange(256) for _ in piece) + content[start + length :],  # flip
                    content[start:] + content[:start],  # reorder
                    content[:start]
                    + rng.choice([b"\0", b"\r\n", b"\xff", b"\\ud800", b'"', b"}", b"\xef\xbb\xbf"])
                    + content[start:],
                ]
            )
            or b" "
        )
    return content


def _mutated(sample: Path, seed: int) -> bytes:
    rng = random.Random(f"{sample.name} {seed}")
    content = sample.read_bytes()
    if rng.random() < 0.6 and sample.suffix != ".txt":
        text = content.decode()
        try:
            content = _mutate_json(text, rng).encode("utf-8", "surrogatepass") or b" "
        except (json.JSONDecodeError, KeyError, IndexError, TypeError):  # the place went with an earlier mutation
            content = sample.read_bytes()[: rng.randrange(1, len(content))]
    return content if rng.random() < 0.3 else _mutate_bytes(content, rng)


def _check(path: Path, format: str) -> int:
    """Read a file as a format; everything that comes out must be storable, or be a problem with a reason."""
    trajectories = 0
    try:
        for found in importer(format).read(path, TOOLS):
            if isinstance(found, ImportProblem):
                assert found.reason
                assert found.file == str(path)
            else:
                trajectories += 1
                line = json.dumps(trajectory_to_dict(found), allow_nan=False, ensure_ascii=False)
                assert trajectory_from_dict(json.loads(line.encode("utf-8"))) == found
                assert found.question
                for step in found.steps:
                    assert not (step.error and step.documents)
    except DataError:
        pass  # the file as a whole
    return trajectories


def _check_many(tmp_path: Path, sample: Path, count: int) -> None:
    path = tmp_path / "log"
    survivors = 0
    for seed in range(count):
        path.write_bytes(_mutated(sample, seed))
        try:
            survivors += _check(path, _format_of(sample))
            sniff(path)
        except DataError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed} of {sample.name}: {path.read_bytes()!r}") from error
    assert survivors  # the mutations leave something to read


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_each_sample_is_recognised_and_read_without_a_problem(sample):
    assert sniff(sample).format == _format_of(sample)
    found = list(importer(_format_of(sample)).read(sample, TOOLS))
    assert found
    assert all(isinstance(item, Trajectory) for item in found)


def test_every_format_has_a_sample():
    assert {_format_of(sample) for sample in SAMPLES} == set(FORMATS)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_mutated_logs_do_not_crash(tmp_path, sample):
    _check_many(tmp_path, sample, 60)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_many_mutated_logs_do_not_crash(tmp_path, sample):
    _check_many(tmp_path, sample, 1200)  # 20,000 and more over all samples


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.suffix != ".txt"], ids=lambda path: path.name)
def test_deep_values_anywhere_do_not_crash(tmp_path, sample):
    path = tmp_path / "log"
    deep: Any = "x"
    for _ in range(940):
        deep = [deep]
    text = sample.read_text(encoding="utf-8")
    value = json.loads(text.splitlines()[0]) if sample.suffix == ".jsonl" else json.loads(text)
    for container, key in _places(value):
        kept, container[key] = container[key], deep
        try:
            path.write_text(json.dumps(value))
            _check(path, _format_of(sample))
        except RecursionError as error:
            if "while encoding" not in str(error):  # the test's own
                raise
        container[key] = kept


_KEYS = [
    "id", "question", "question_id", "messages", "history", "role", "content", "type", "text", "tool_calls",
    "function", "name", "arguments", "args", "result", "output", "input", "steps", "source", "full_traces", "values",
    "traj", "prompt", "gen_text_store", "intermediate_steps", "assistant", "user", "attributes", "context", "span_id",
    "events", "problem", "observation", "results", "documents", "logprobs", "metrics", "query_id", "retrieved_docids",
    "mistake_step", "data",
]  # fmt: skip
_VALUES = st.recursive(
    st.sampled_from(ODD_VALUES)
    | st.sampled_from(["user", "assistant", "tool", "human", "ai", "search", "function_call"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=6),
    max_leaves=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(value=_VALUES)
def test_any_json_of_known_keys_is_read_by_every_importer(tmp_path, value):
    path = tmp_path / "log"
    path.write_text(json.dumps(value))
    for format in FORMATS:
        _check(path, format)
