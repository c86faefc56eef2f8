"""Randomness of the arena: every number is a function of a seed and of what it is for.

Nothing has to be stored or rewound: a fork of an episode draws the same numbers for the same purposes, which is what
*common random numbers* are, and a look aside (a probe) cannot disturb a run.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

TOP_K = 20  # log-probabilities kept of a choice


@dataclass(frozen=True, slots=True)
class Chance:
    """Uniform numbers in [0, 1), by purpose."""

    seed: str

    def uniform(self, *purpose: str | int) -> float:
        """The number for this purpose; the same seed and purpose give the same number."""
        text = "\x1f".join((self.seed, *map(str, purpose)))
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 11) * 2.0**-53

    def between(self, low: float, high: float, *purpose: str | int) -> float:
        """A number in [low, high), uniform."""
        return low + (high - low) * self.uniform(*purpose)


@dataclass(frozen=True, slots=True)
class Choice:
    """One draw from a distribution over options."""

    index: int  # of the option drawn
    top: tuple[float, ...]  # natural-log probabilities of the likeliest `TOP_K` options, highest first, to six decimals


def choose(weights: Sequence[float], number: float) -> Choice:
    """Draw an option with probability in proportion to its weight.

    Args:
        weights: one an option, not negative, not all zero.
        number: uniform in [0, 1).
    """
    total = math.fsum(weights)
    probabilities = [weight / total for weight in weights]
    cumulative = 0.0
    index = max(position for position, probability in enumerate(probabilities) if probability > 0)
    for position, probability in enumerate(probabilities):
        cumulative += probability
        if number < cumulative:
            index = position
            break
    logs = (round(math.log(probability), 6) for probability in probabilities if probability > 0)
    top = sorted(logs, reverse=True)
    return Choice(index, tuple(top[:TOP_K]))


def softmax_weights(utilities: Sequence[float], temperature: float) -> list[float]:
    """Unnormalised softmax weights; the highest is 1."""
    highest = max(utilities)
    return [math.exp((utility - highest) / temperature) for utility in utilities]
