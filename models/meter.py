"""What the calls of one piece of work cost, apart from all others that share a client.

A ledger counts what a whole command really pays. A meter counts what one run's agent, or its controller, would have
paid without a cache: a reply from the cache counts with the calls, tokens and seconds that it took when it was made,
or the figures of a run would depend on what ran before it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from stopwise.models.chat import Purpose, Usage


@dataclass(frozen=True, slots=True)
class Spent:
    """What calls took."""

    calls: int = 0  # on the wire
    tokens: int = 0  # prompt and generated together
    seconds: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.calls + other.calls, self.tokens + other.tokens, self.seconds + other.seconds)


class Meter:
    """Counts by purpose. Not for several threads at once."""

    def __init__(self) -> None:
        self._spent: dict[str, Spent] = {}

    def of(self, *purposes: Purpose) -> Spent:
        """What was spent for these purposes together."""
        return sum((self._spent.get(purpose, Spent()) for purpose in purposes), Spent())

    def add(self, purpose: Purpose, spent: Spent) -> None:
        """Count something."""
        self._spent[purpose] = self.of(purpose) + spent


_ACTIVE: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metering(meter: Meter) -> Iterator[Meter]:
    """Count the calls that this thread makes in here, by whatever client, on `meter` alone."""
    token = _ACTIVE.set(meter)
    try:
        yield meter
    finally:
        _ACTIVE.reset(token)


def count_call(purpose: Purpose, calls: int, usage: Usage, seconds: float) -> None:
    """Count a call on the active meter, if there is one."""
    meter = _ACTIVE.get()
    if meter is not None:
        meter.add(purpose, Spent(calls, usage.prompt + usage.completion, seconds))
