"""What a memory survives: being killed while it is written, and two writers at once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stopwise.controllers.memory.entries import Entry
from stopwise.controllers.memory.memory import FILE, ExperienceMemory
from stopwise.models.encoders import Encoder

# Adds entries "cos sin" at an angle that grows with the number, and says which it has added.
WRITER = """
import math, sys
from pathlib import Path
import numpy as np
from stopwise.controllers.memory.entries import Entry
from stopwise.controllers.memory.memory import ExperienceMemory

class KnownEncoder:
    id = "known"
    def encode(self, texts):
        rows = np.array([[float(word) for word in text.split()] for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

folder, start, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
memory = ExperienceMemory(folder, KnownEncoder(), tau_dup=math.cos(0.9 * 0.05))
for number in range(start, start + count):
    angle = 0.05 * number
    entry = Entry(f"{math.cos(angle)} {math.sin(angle)} {0.001 * number}", "", "z", "success", f"q{number}")
    print(number, int(memory.add(entry)), flush=True)
"""


def start(folder: Path, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_writers_at_once(encoder: Encoder, tmp_path: Path) -> None:
    """They write 60 entries each, 40 of them the same: 80 different ones are kept, whoever comes first."""
    writers = [start(tmp_path / "memory", first, 60) for first in (0, 20)]
    said = [writer.communicate(timeout=120)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    kept = [line.split()[0] for text in said for line in text.splitlines() if line.endswith(" 1")]
    memory = ExperienceMemory(tmp_path / "memory", encoder)
    assert len(memory) == len(kept) == len(set(kept)) == 80
    found = memory.nearest("1 0 0", k=100).successes
    assert {entry.question_id for entry in found} == {f"q{number}" for number in range(80)}


@pytest.mark.slow
def test_killed_while_writing(encoder: Encoder, tmp_path: Path) -> None:
    """Whatever a killed writer said it had added is there, and at most the one entry that was under way beside it."""
    chance = random.Random(0)
    folder = tmp_path / "memory"
    there: set[int] = set()
    for _ in range(12):
        first = len(there)
        writer = start(folder, first, 10_000)
        assert writer.stdout is not None
        line = writer.stdout.readline()  # it has begun
        time.sleep(chance.uniform(0.0, 0.2))
        os.kill(writer.pid, signal.SIGKILL)
        lines = [line, *writer.stdout.read().splitlines()]
        writer.stdout.close()
        writer.wait()
        # a fast writer comes to entries that lie closer together: near duplicates, which it says it has left out
        said = {int(words[0]) for words in map(str.split, lines) if len(words) == 2 and words[1] == "1"}
        memory = ExperienceMemory(folder, encoder, tau_dup=1.0)
        found = {int(entry.question_id[1:]) for entry in memory.nearest("1 0 0", k=100_000).successes}
        assert there | said <= found
        assert len(found - there - said) <= 1
        assert len(memory) == len(found)
        memory.close()
        there = found


def large(folder: Path, encoder: Encoder, make_entry: Callable[..., Entry], count: int) -> ExperienceMemory:
    memory = ExperienceMemory(folder, encoder, tau_dup=1.0, flat_limit=100)
    rows = np.random.default_rng(0).normal(size=(count, 4))
    memory.add_all(make_entry(" ".join(f"{x:.4f}" for x in row), label="failure") for row in rows)
    memory.close()
    return ExperienceMemory(folder, encoder, tau_dup=1.0, flat_limit=100)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_saved_indexes_are_used_or_made_again(
    encoder: Encoder, tmp_path: Path, make_entry: Callable[..., Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memory"
    memory = large(folder, encoder, make_entry, 4000)
    assert memory.kinds() == {"success": "empty", "failure": "ivf"}
    memory.save_indexes()
    memory.add(make_entry("1 1 1 1", label="failure"))
    expected = memory.nearest("1 1 1 0.9", k=5)
    memory.close()

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("the saved index should have been loaded")

    with monkeypatch.context() as patch:
        patch.setattr("stopwise.controllers.memory.index.PoolIndex.build", fail)
        loaded = ExperienceMemory(folder, encoder, flat_limit=100)
        assert loaded.nearest("1 1 1 0.9", k=5) == expected
        loaded.close()
    saved = folder / "failure.faiss"
    saved.write_bytes(saved.read_bytes()[:-1] + b"!")  # damaged: the entries are the truth
    again = ExperienceMemory(folder, encoder, flat_limit=100)
    assert again.kinds()["failure"] == "ivf"
    assert again.nearest("1 1 1 0.9", k=5).failures[0].session == "1 1 1 1"
    assert (folder / FILE).is_file()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_similarities_of_a_large_pool_are_exact(
    encoder: Encoder, tmp_path: Path, make_entry: Callable[..., Entry]
) -> None:
    memory = large(tmp_path / "memory", encoder, make_entry, 3000)
    assert memory.kinds()["failure"] == "ivf"
    found = memory.nearest("1 2 3 4", k=5)
    (query,) = encoder.encode(["1 2 3 4"])
    cosines = encoder.encode([entry.session for entry in found.failures]) @ query
    np.testing.assert_allclose(found.failure_similarities, cosines, atol=5e-4)  # entries are stored as float16
    assert sorted(found.failure_similarities, reverse=True) == list(found.failure_similarities)
    vanished = np.array([10**9])
    assert memory._store.vectors_of(vanished)[0].size == 0


def test_consolidation_of_a_large_pool(encoder: Encoder, tmp_path: Path, make_entry: Callable[..., Entry]) -> None:
    folder = tmp_path / "memory"
    rows = np.random.default_rng(0).normal(size=(2000, 8))
    memory = ExperienceMemory(folder, encoder, tau_dup=1.0)
    for scale in (1.0, 1.02):  # each vector twice, nearly
        memory.add_all(make_entry(" ".join(f"{x:.5f}" for x in (*row[:-1], row[-1] * scale))) for row in rows)
    assert len(memory) > 3500
    memory.close()
    memory = ExperienceMemory(folder, encoder, flat_limit=100)
    assert memory.kinds()["success"] == "ivf"
    memory.consolidate(tau_dup=0.9995)
    assert 1950 <= len(memory) <= 2050
