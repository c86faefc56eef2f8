"""An encoder whose embeddings are written down, and entries."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from stopwise.controllers.memory.entries import Entry, Label
from stopwise.models.encoders import Embeddings


class KnownEncoder:
    """Embeds a text of numbers, as "1 0 0", as that vector, scaled to unit length."""

    id = "known"

    def encode(self, texts: Sequence[str]) -> Embeddings:
        rows = np.array([[float(word) for word in text.split()] for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def encoder() -> KnownEncoder:
    return KnownEncoder()


@pytest.fixture
def make_entry() -> Callable[..., Entry]:
    def make(session: str, history: str = "", label: Label = "success", question_id: str = "q1", **more: Any) -> Entry:
        return Entry(session, history, f"what {session} teaches", label, question_id, **more)

    return make
