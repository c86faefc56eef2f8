import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stopwise.data.errors import DataError, UsageError
from stopwise.models import embedding_cache
from stopwise.models.embedding_cache import CachedEncoder, default_cache


class Counting:
    """Random unit rows, other ones at each call, and a note of every text: what is equal came from the cache."""

    def __init__(self, name="counting", fail_after=None):
        self.id = name
        self.encoded = []
        self._fail_after = fail_after
        self._generator = np.random.default_rng(0)

    def encode(self, texts):
        if self._fail_after is not None and len(self.encoded) >= self._fail_after:
            raise KeyboardInterrupt
        self.encoded += texts
        rows = self._generator.normal(size=(len(texts), 12))
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def opened(tmp_path):
    """Open caches by encoder and file name; they are closed in the end."""
    caches = []

    def open_cache(encoder, name="cache.sqlite"):
        caches.append(CachedEncoder(encoder, name if name == ":memory:" else tmp_path / name))
        return caches[-1]

    yield open_cache
    for cache in caches:
        cache.close()


@pytest.mark.parametrize("name", [":memory:", "cache.sqlite", "new/folder/cache.sqlite"])
def test_no_text_is_encoded_twice(opened, name):
    encoder = Counting()
    cache = opened(encoder, name)
    first = cache.encode(["a", "b", "a"])
    second = cache.encode(["c", "b", "a"])
    assert encoder.encoded == ["a", "b", "c"]
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(second[[2, 1]], first[:2])
    assert cache.id == "counting"


def test_the_cache_survives_reopening(opened):
    encoder = Counting()
    cache = opened(encoder)
    before = cache.encode(["a", "Tarn 川", ""])
    cache.close()
    again = opened(encoder)
    np.testing.assert_array_equal(again.encode(["a", "Tarn 川", ""]), before)
    assert len(encoder.encoded) == 3


def test_values_are_those_of_float16_scaled_to_unit_length(opened):
    class Fixed(Counting):
        def encode(self, texts):
            self.rows = super().encode(texts)
            return self.rows

    encoder = Fixed()
    found = opened(encoder).encode(["a", "b"])
    rounded = encoder.rows.astype(np.float16).astype(np.float64)
    expected = (rounded / np.linalg.norm(rounded, axis=1, keepdims=True)).astype(np.float32)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)


def test_a_row_does_not_depend_on_its_company(opened):
    cache = opened(Counting())
    texts = [f"text {n}" for n in range(700)]  # beyond SQLite's bound on placeholders
    together = cache.encode(texts)
    for index in (0, 499, 500, 699):
        np.testing.assert_array_equal(cache.encode([texts[index]])[0], together[index])


def test_encoders_do_not_share_values(opened):
    one, other = Counting("one"), Counting("other")
    opened(one).encode(["a"])
    opened(other).encode(["a"])
    assert one.encoded == other.encoded == ["a"]


def test_texts_that_are_not_quite_unicode_are_texts(opened):
    encoder = Counting()
    cache = opened(encoder)
    cache.encode(["\ud800", "\x00"])
    cache.encode(["\x00", "\ud800"])
    assert len(encoder.encoded) == 2


def test_no_texts_are_no_rows(opened):
    encoder = Counting()
    assert len(opened(encoder).encode([])) == 0
    assert encoder.encoded == []


def test_prefetch_encodes_what_is_missing_once_and_short_texts_first(opened):
    encoder = Counting()
    cache = opened(encoder)
    cache.encode(["present"])
    told = []
    assert cache.prefetch(iter(["long text", "present", "b", "long text"]), lambda *what: told.append(what)) == 2
    assert encoder.encoded == ["present", "b", "long text"]
    assert told == [(2, 2)]
    assert cache.prefetch(["long text", "b"]) == 0
    assert cache.prefetch([]) == 0


def test_an_interrupted_prefetch_resumes(opened, monkeypatch):
    monkeypatch.setattr(embedding_cache, "BLOCK", 10)
    texts = [f"text {n:03}" for n in range(45)]
    broken = Counting(fail_after=20)
    cache = opened(broken)
    with pytest.raises(KeyboardInterrupt):
        cache.prefetch(texts)
    cache.close()
    assert len(broken.encoded) == 20
    fresh = Counting()
    told = []
    assert opened(fresh).prefetch(texts, lambda *what: told.append(what)) == 25
    assert sorted(broken.encoded + fresh.encoded) == texts
    assert told == [(10, 25), (20, 25), (25, 25)]


_WRITER = """
import sys
import numpy as np
from stopwise.models.embedding_cache import CachedEncoder

class Own:
    id = "shared"
    def encode(self, texts):  # each process computes other values: who comes first decides
        rows = np.random.default_rng(int(sys.argv[2])).normal(size=(len(texts), 8))
        return rows.astype(np.float32)

for start in range(0, 300, 10):
    cache = CachedEncoder(Own(), sys.argv[1])
    cache.encode([f"text {n}" for n in range(start, start + 20)])
    cache.close()
cache = CachedEncoder(Own(), sys.argv[1])
cache.prefetch(f"text {n}" for n in range(310))
np.save(sys.argv[3], cache.encode([f"text {n}" for n in range(310)]))
cache.close()
"""


def test_two_processes_write_one_cache(tmp_path):
    results = [tmp_path / f"{seed}.npy" for seed in (1, 2, 3)]
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, tmp_path / "cache.sqlite", str(seed), path], env=os.environ)
        for seed, path in enumerate(results)
    ]
    assert [writer.wait(timeout=50) for writer in writers] == [0, 0, 0]
    one, *others = (np.load(path) for path in results)
    for other in others:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("content", [b"this is a text file, and no database at all\n" * 40, b"\x00\x01" * 2000])
def test_a_file_that_is_no_database_is_one_clear_error(tmp_path, content):
    path = tmp_path / "cache.sqlite"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is not an embedding cache .*; delete it or name another file") as caught:
        CachedEncoder(Counting(), path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_one_clear_error(tmp_path):
    path = tmp_path / "other.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE embeddings (name TEXT)")
    other.commit()
    other.close()
    with pytest.raises(DataError, match="is not an embedding cache"):
        CachedEncoder(Counting(), path)


def test_a_damaged_cache_is_one_clear_error(opened, tmp_path):
    cache = opened(Counting())
    cache.prefetch(f"text {n}" for n in range(2000))
    cache.close()
    path = tmp_path / "cache.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(DataError, match=r"cache\.sqlite: is not an embedding cache"):
        opened(Counting()).encode(["text 5"])


def test_a_path_that_cannot_hold_a_cache_is_one_clear_error(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"folder: cannot be opened"):
        CachedEncoder(Counting(), tmp_path / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be opened"):
        CachedEncoder(Counting(), tmp_path / "file" / "cache.sqlite")


def test_where_the_cache_is(monkeypatch):
    for name in ("STOPWISE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_cache() == Path("/home/ada/.cache/stopwise/embeddings.sqlite")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_cache() == Path("/home/ada/.cache/stopwise/embeddings.sqlite")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_cache() == Path("/cache/stopwise/embeddings.sqlite")
    monkeypatch.setenv("STOPWISE_CACHE", "/own")
    assert default_cache() == Path("/own/embeddings.sqlite")


def test_the_default_path_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("STOPWISE_CACHE", str(tmp_path / "own"))
    cache = CachedEncoder(Counting())
    cache.encode(["a"])
    cache.close()
    assert (tmp_path / "own" / "embeddings.sqlite").exists()
