"""Logged runs as a language model is trained on them: token ids, lattice, targets."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import softmax
from stopwise.controllers.guards import Guards
from stopwise.controllers.rendering import RenderingSpec, Tokens, contexts
from stopwise.data.records import Action
from stopwise.envs.interventions import InterventionModel
from stopwise.envs.lattice import Lattice, lattices, question_weights
from stopwise.envs.rewards import Reward
from stopwise.signals.table import SignalTable
from stopwise.train.lm.config import SftOptions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """One context of a run: most runs have a single one."""

    ids: list[int]  # header and rows
    skip: int  # rows that stand in it for context only, from its beginning
    rows: int  # rows in it


@dataclass(frozen=True)
class LmEpisode:
    """One run, ready to be scored."""

    run: str  # trajectory id
    question: str
    parts: tuple[Part, ...]
    lattice: Lattice
    targets: Floats | None = None  # (T, M + 1, 3) distributions over actions
    weights: Floats | None = None  # (T, M + 1)

    @property
    def tokens(self) -> int:
        """Tokens of one pass over it."""
        return sum(len(part.ids) for part in self.parts)


def make_episodes(
    table: SignalTable,
    tokens: Tokens,
    reward: Reward,
    guards: Guards,
    intervention: InterventionModel,
) -> list[LmEpisode]:
    """Render every run with gold and at least one search.

    Raises:
        DataError: the table lacks a signal of the rendering.
    """
    spec = tokens.spec
    columns = np.stack([table.column(name) for name in spec.signals], axis=1)
    made = []
    for index, lattice in enumerate(lattices(table, reward, guards, intervention)):
        if lattice is None or not table.has_gold[index]:
            continue
        values = columns[table.offsets[index] : table.offsets[index + 1]]
        parts = tuple(
            Part(tokens.context(values, start, stop), decided - start, stop - start)
            for start, decided, stop in contexts(len(values), spec.context_rows)
        )
        made.append(LmEpisode(table.episodes[index].id, table.episodes[index].question_id, parts, lattice))
    return made


def with_targets(episodes: Sequence[LmEpisode], values: Sequence[Floats], options: SftOptions) -> list[LmEpisode]:
    """Add what supervised fine-tuning is to imitate: a distribution and a weight at each state.

    - ``returns``: an action's share is its realised return's lead over that of the worst legal one, and the state
      weighs the sum of the leads. So the weighted cross-entropy bounds the return that is given up, in expectation over
      the noise of the returns (cost-sensitive classification, as in `stopwise.train.fit.cost_sensitive`).
    - ``hard``: all on the action with the best regressed value, weighing its lead over the second best.
    - ``soft``: softmax(q / temperature), all states alike.
    - ``teacher``: the probabilities of `stopwise.train.teacher`, all states alike.

    Targets do not depend on the interventions used, but for what they leave legal.

    Args:
        episodes: E runs.
        values: for each, what its labels are made of (T, 3), NaN for an action without an outcome: realised returns for
            ``returns``, probabilities for ``teacher``, regressed action values q for the others.
        options: kind of labels, temperature, balance.
    """
    made: list[LmEpisode] = []
    best_of: list[NDArray[np.int64]] = []
    for episode, used in zip(episodes, values, strict=True):
        legal = episode.lattice.legal[:, :, 0] & ~np.isnan(used)[:, None, :]  # (T, M + 1, 3)
        scores = np.where(legal, used[:, None, :], -np.inf)
        best = scores.argmax(axis=-1)
        ranked = np.sort(scores, axis=-1)
        if options.labels == "soft":
            targets, weights = softmax(scores / options.temperature), np.ones(best.shape)
        elif options.labels == "teacher":
            shares = np.where(legal, used[:, None, :], 0.0)
            total = shares.sum(axis=-1, keepdims=True)
            targets = np.where(total > 0, shares / np.where(total > 0, total, 1.0), np.eye(len(Action))[best])
            weights = np.ones(best.shape)
        elif options.labels == "hard":
            targets = np.eye(len(Action))[best]
            weights = np.where(np.isfinite(ranked[..., -2]), ranked[..., -1] - ranked[..., -2], 0.0)
        else:
            worst = np.where(legal, scores, np.inf).min(axis=-1, keepdims=True)
            lead = np.where(legal, scores - worst, 0.0)
            weights = lead.sum(axis=-1)
            total = np.where(weights > 0, weights, 1.0)[..., None]
            targets = np.where(weights[..., None] > 0, lead / total, np.eye(len(Action))[best])
        made.append(replace(episode, targets=targets, weights=weights))
        best_of.append(best)
    return _normalised(made, best_of, balanced=options.balanced)


def _normalised(
    episodes: Sequence[LmEpisode], best_of: Sequence[NDArray[np.int64]], *, balanced: bool
) -> list[LmEpisode]:
    """Weights of mean 1 over all states; if balanced, of equal sums for each action that is best somewhere."""
    if not episodes:
        return []
    weights = np.concatenate([np.asarray(episode.weights).ravel() for episode in episodes])
    best = np.concatenate([one.ravel() for one in best_of])
    sums = np.bincount(best, weights, minlength=len(Action))
    factor = np.ones(len(Action))
    if balanced:
        factor = np.divide(weights.sum() / np.count_nonzero(sums), sums, out=np.zeros(len(Action)), where=sums > 0)
    mean = float((weights * factor[best]).mean())
    scale = factor / mean if mean > 0 else factor
    return [
        replace(episode, weights=np.asarray(episode.weights) * scale[best])
        for episode, best in zip(episodes, best_of, strict=True)
    ]


def episode_weights(episodes: Sequence[LmEpisode]) -> Floats:
    """Weights (E,) that sum to 1: every question counts once."""
    codes = {question: number for number, question in enumerate(dict.fromkeys(e.question for e in episodes))}
    return question_weights(np.array([codes[episode.question] for episode in episodes]))


def sample_runs(table: SignalTable, count: int | None, salt: str) -> SignalTable:
    """A fixed sample of a table's runs that have gold and a search: those with the lowest hash of their id."""
    usable = table.has_gold & (table.lengths > 0)
    if count is not None and usable.sum() > count:
        keys = [hashlib.sha256(f"{salt}/{episode.id}".encode()).hexdigest() for episode in table.episodes]
        order = sorted(np.flatnonzero(usable), key=lambda index: keys[index])
        usable = np.zeros(len(table), dtype=bool)
        usable[order[:count]] = True
    return table.select(usable)


def at_prices(spec: RenderingSpec, reward: Reward, prices: Sequence[float]) -> list[tuple[RenderingSpec, Reward]]:
    """The rendering and the reward at each search price."""
    return [(spec.at_price(price), replace(reward, search=price)) for price in prices]
