import threading

import numpy as np
import pytest

from stopwise.envs.arena.worker import GroupEncoder
from stopwise.models.embedding_cache import CachedEncoder


class BatchDependent:
    """An embedding depends on how many texts are in its batch, as padding makes it, only much more."""

    id = "batch"

    def encode(self, texts):
        rows = np.array([[1.0, len(text), len(texts)] for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _encoder(singly, prepared=()):
    stored = CachedEncoder(BatchDependent(), ":memory:")
    stored.prefetch(prepared)
    return GroupEncoder(CachedEncoder(BatchDependent(), ":memory:"), stored, frozenset(prepared), singly=singly)


@pytest.mark.parametrize("singly", [True, False])
def test_texts_of_the_corpus_come_from_the_store(singly):
    prepared = ["one", "three", "seven"]
    encoder = _encoder(singly, prepared)
    expected = CachedEncoder(BatchDependent(), ":memory:").encode(prepared)  # a batch of three
    np.testing.assert_array_equal(encoder.encode(["one", "other", "seven"])[[0, 2]], expected[[0, 2]])
    np.testing.assert_array_equal(encoder.encode(prepared), expected)
    assert encoder.encode([]).shape[0] == 0


def test_texts_one_by_one_do_not_depend_on_who_comes_first():
    forth, back = _encoder(singly=True), _encoder(singly=True)
    forth.encode(["a", "bb"])
    back.encode(["bb", "ccc", "dddd"])
    np.testing.assert_array_equal(forth.encode(["a", "bb", "ccc"]), back.encode(["a", "bb", "ccc"]))
    # in batches they would
    forth, back = _encoder(singly=False), _encoder(singly=False)
    forth.encode(["a", "bb"])
    back.encode(["bb", "ccc", "dddd"])
    assert not np.array_equal(forth.encode(["bb"]), back.encode(["bb"]))


def test_threads_take_turns():
    encoder = _encoder(singly=True)
    texts = [[f"text {number % 7}" for number in range(start, start + 5)] for start in range(16)]
    found = [None] * len(texts)

    def work(number):
        found[number] = encoder.encode(texts[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rows, asked in zip(found, texts, strict=True):
        np.testing.assert_array_equal(rows, _encoder(singly=True).encode(asked))
