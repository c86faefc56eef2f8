"""Splits by question, made by hash: a question never changes its split, whatever else a file holds."""

import hashlib
from typing import Literal

Split = Literal["train", "val", "cal", "test"]

SPLITS: tuple[Split, ...] = ("train", "val", "cal", "test")
SHARES = {"train": 0.50, "val": 0.15, "cal": 0.10, "test": 0.25}  # of the questions, in expectation


def split_of(question_id: str) -> Split:
    """The split that a question belongs to: *train* fits, *val* chooses, *cal* guards, *test* is looked at once.

    The question's id is hashed to a number in [0, 1), and the cumulative shares are its bins.
    """
    digest = hashlib.sha256(question_id.encode("utf-8", "surrogatepass")).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    upper = 0.0
    for split in SPLITS:
        upper += SHARES[split]
        if position < upper:
            return split
    return SPLITS[-1]
