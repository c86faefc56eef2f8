import numpy as np
import pytest


class Lengths:
    """Embeds a text as its length."""

    id = "lengths"

    def encode(self, texts):
        angles = np.array([len(text) for text in texts]) / 100
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.fixture(scope="session")
def lengths():
    """An encoder that needs no network; it has no state, so that all may share it."""
    return Lengths()
