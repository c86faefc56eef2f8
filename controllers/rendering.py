"""What a small language model reads of a run: one rendering for training, evaluation and the live agent.

A header, then one row a search, only ever appended to. A row is a newline, two digits of the search number, two tokens
a signal (its level from 0 to 9 among training steps, and whether it rose, fell or stayed; ``_`` where it is unknown)
and one *ask* token for each number of interventions used: ``a`` for none, ``b`` for one, and so on. The action is read
off at the ask token of the run's own count, as the next token: ``C``, ``I`` or ``S``.

    07 4+3=9-0_ abc        (without the spaces: search 7, four signals, at most two interventions)

What the controller did is so in the ask token, not in the rows: the rows of a log are the same whatever a policy does,
one forward pass scores every state of a lattice (`stopwise.envs.lattice`), and no action can be misread from text. No
document text stands in it, so that what was retrieved cannot steer the controller.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import check_number
from stopwise.data.errors import DataError, UsageError
from stopwise.signals.definitions import SIGNALS
from stopwise.signals.table import SignalTable
from stopwise.signals.tracker import SignalRow

VERSION = 1
LEVELS = 10
ACTIONS = ("C", "I", "S")  # continue, intervene, stop: each must be a single token
ASKS = "abcdefghij"  # ask tokens by interventions used
DEFAULT_SIGNALS = ("Nov", "content_novelty", "Div", "query_repetition", "steps_since_new", "coverage_gain", "Cov", "RE")
SAME = 1e-6  # a change up to this is none: it is rounding of embeddings

Encode = Callable[[str], Sequence[int]]  # a text's token ids, without special tokens


@dataclass(frozen=True)
class RenderingSpec:
    """Everything that the rendering depends on; part of a policy package."""

    signals: tuple[str, ...]  # S of them, in the order of a row
    edges: tuple[tuple[float, ...], ...]  # (S, up to 9) rising; a value's level is the number of edges at or below it
    interventions: int  # M: a row ends with M + 1 ask tokens
    price: float  # of a search, in units of one run's full recall: the header names it
    context_rows: int = 128  # rows in one context at most; see `context_start`
    # how answers are read: logits of the actions times `sharpness`, plus `offsets`; see `stopwise.train.lm.calibration`
    sharpness: float = 1.0
    offsets: tuple[float, float, float] = (0.0, 0.0, 0.0)
    version: int = VERSION

    def __post_init__(self) -> None:
        unknown = [name for name in self.signals if name not in SIGNALS]
        if unknown or not self.signals:
            raise UsageError(f"rendering: signals {unknown or 'none'}; expected some of {', '.join(SIGNALS)}")
        if len(self.edges) != len(self.signals) or any(len(edges) >= LEVELS for edges in self.edges):
            raise DataError(f"rendering: needs up to {LEVELS - 1} edges for each of {len(self.signals)} signals")
        check_number("rendering: interventions", self.interventions, low=0, high=len(ASKS) - 1, whole=True)
        check_number("rendering: price", self.price, low=0, high=9.9999)
        check_number("rendering: context_rows", self.context_rows, low=2, whole=True)
        check_number("rendering: sharpness", self.sharpness, low=1e-6)
        if len(self.offsets) != len(ACTIONS) or not all(map(math.isfinite, self.offsets)):
            raise DataError(f"rendering: offsets {self.offsets}; expected {len(ACTIONS)} numbers")
        if self.version != VERSION:
            raise DataError(f"rendering: version {self.version}; this stopwise renders version {VERSION}")

    @property
    def row_tokens(self) -> int:
        """Tokens of one row."""
        return 3 + 2 * len(self.signals) + self.interventions + 1

    @property
    def header(self) -> str:
        """What stands before the rows."""
        return f"{' '.join(self.signals)}. C continue, I intervene, S stop. Price {self.price:.4f}."

    def at_price(self, price: float) -> "RenderingSpec":
        """The same rendering with another price in the header."""
        return replace(self, price=price)

    def read_by(self, sharpness: float, offsets: tuple[float, float, float]) -> "RenderingSpec":
        """The same rendering with answers read in another way."""
        return replace(self, sharpness=sharpness, offsets=offsets)

    def level(self, signal: int, value: float) -> int:
        """Level of a value of the signal with this index, 0 to 9."""
        return int(np.searchsorted(self.edges[signal], value, side="right"))

    def row(self, t: int, values: Sequence[float], before: Sequence[float] | None) -> str:
        """One row; every character is one token.

        Args:
            t: number of the search, from 1; from 99 on it stays 99.
            values: of the S signals, NaN for null.
            before: those of the previous search; None at the first.
        """
        cells = []
        for index, value in enumerate(values):
            if np.isnan(value):
                cells.append("__")
                continue
            last = np.nan if before is None else before[index]
            change = "_" if np.isnan(last) else "=" if abs(value - last) <= SAME else "+" if value > last else "-"
            cells.append(f"{self.level(index, value)}{change}")
        return f"\n{min(t, 99):02d}{''.join(cells)}{ASKS[: self.interventions + 1]}"


class Tokens:
    """A rendering in token ids of one tokenizer, checked when it is made."""

    def __init__(self, spec: RenderingSpec, encode: Encode) -> None:
        """Look every symbol up.

        Raises:
            UsageError: an action or a symbol is not a single token of this tokenizer, or two are the same.
        """
        self.spec = spec
        self.header = list(encode(spec.header))
        symbols = "\n0123456789+-=_" + ASKS[: spec.interventions + 1]
        self._ids = {symbol: _single(symbol, encode) for symbol in symbols}
        self.actions = tuple(_single(action, encode) for action in ACTIONS)
        if len({*self._ids.values(), *self.actions}) < len(self._ids) + len(self.actions):
            raise UsageError("rendering: two symbols are the same token of this tokenizer; name another base model")

    def row(self, t: int, values: Sequence[float], before: Sequence[float] | None) -> list[int]:
        """Ids of `RenderingSpec.row`, `row_tokens` of them."""
        return [self._ids[symbol] for symbol in self.spec.row(t, values, before)]

    def run(self, values: NDArray[np.float64]) -> list[int]:
        """Ids of all rows of a run, without the header; `values` (T, S), NaN for null."""
        return self._rows(values, 0, len(values))

    def context(self, values: NDArray[np.float64], start: int, stop: int) -> list[int]:
        """Header and rows ``start`` to ``stop`` (exclusive, from 0) of a run with `values` (T, S)."""
        return self.header + self._rows(values, start, stop)

    def _rows(self, values: NDArray[np.float64], start: int, stop: int) -> list[int]:
        rows = [self.row(t + 1, values[t], values[t - 1] if t else None) for t in range(start, stop)]
        return [token for row in rows for token in row]

    def answers(self, logits: Any) -> Any:
        """Logits of the actions as they are read, of those of the whole vocabulary (..., V): (..., 3), float32.

        Args:
            logits: a tensor of torch.
        """
        chosen = logits[..., list(self.actions)].float()
        spec = self.spec
        if spec.sharpness == 1.0 and not any(spec.offsets):
            return chosen
        return chosen * spec.sharpness + chosen.new_tensor(spec.offsets)

    def read_by(self, sharpness: float, offsets: tuple[float, float, float]) -> "Tokens":
        """The same tokens with answers read in another way; see `RenderingSpec`."""
        other = copy.copy(self)
        other.spec = self.spec.read_by(sharpness, offsets)
        return other

    def as_asked(self, ids: Sequence[int]) -> list[int]:
        """Rows as they are read, of rows in which answers stand in the place of the ask tokens that they answer."""
        size, asks = self.spec.row_tokens, self.spec.interventions + 1
        read = list(ids)
        for used, symbol in enumerate(ASKS[:asks]):
            for place in range(size - asks + used, len(read), size):
                read[place] = self._ids[symbol]
        return read

    def ask_positions(self, rows: int) -> NDArray[np.int64]:
        """Places of the ask tokens after a header and `rows` rows, shape (rows, M + 1)."""
        size, asks = self.spec.row_tokens, self.spec.interventions + 1
        first = len(self.header) + size - asks
        return first + np.arange(rows)[:, None] * size + np.arange(asks)


class RowStream:
    """The rows of a run as they come; gives the same ids as `Tokens.run` on the whole of it."""

    def __init__(self, tokens: Tokens) -> None:
        """Start a run."""
        self._tokens = tokens
        self._before: list[float] | None = None

    def push(self, row: SignalRow) -> list[int]:
        """Ids of the next row."""
        values = [row.values.get(name, float("nan")) for name in self._tokens.spec.signals]
        ids = self._tokens.row(row.t, values, self._before)
        self._before = values
        return ids


def context_start(row: int, context_rows: int) -> int:
    """The first row, from 0, that is read together with `row`.

    A context grows until it holds `context_rows` rows; then it begins anew with the later half of them. So a run of
    any length costs a bounded context, and only one row in ``context_rows / 2`` a new pass over it.
    """
    if row < context_rows:
        return 0
    half = (context_rows + 1) // 2
    return ((row - context_rows) // half + 1) * half


def contexts(rows: int, context_rows: int) -> list[tuple[int, int, int]]:
    """How a run of `rows` rows is cut: (first row read, first row decided, row after the last), in order."""
    found: list[tuple[int, int, int]] = []
    decided = 0
    while decided < rows:
        start = context_start(decided, context_rows)
        stop = min(start + context_rows, rows)
        found.append((start, decided, stop))
        decided = stop
    return found


def fit_edges(table: SignalTable, signals: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """Edges between the tenths of each signal's values over a table's rows, equal ones once; none where it is null."""
    edges = []
    for name in signals:
        known = table.column(name)
        known = known[~np.isnan(known)]
        found = np.unique(np.quantile(known, np.arange(1, LEVELS) / LEVELS)) if len(known) else np.array([])
        edges.append(tuple(float(edge) for edge in found))
    return tuple(edges)


def _single(text: str, encode: Encode) -> int:
    ids: Any = list(encode(text))
    if len(ids) != 1:
        raise UsageError(f"rendering: {text!r} is {len(ids)} tokens of this tokenizer; expected a single one")
    return int(ids[0])
