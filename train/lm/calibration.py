"""Where reinforcement learning begins: imitated preferences, read so that the policy that samples acts well.

Imitation says which action is better, not how often to take it: asked at every search, a policy that stops with
probability .1 where going on is a little better ends a run after ten. Most of what a policy gradient then does is to
lower that rate everywhere at once, and the order of states that imitation has learned is lost on the way. So before it
begins, one sharpness and an offset for each action are chosen by the exact return on training runs: probabilities are
softmax(sharpness * logits + offsets). They stay with the policy (`RenderingSpec`).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from stopwise.controllers.base import softmax
from stopwise.controllers.rendering import Tokens
from stopwise.envs.lattice import expected, masked
from stopwise.models.trunk import FrozenTrunk
from stopwise.train.lm.episodes import LmEpisode, episode_weights
from stopwise.train.lm.scoring import action_logits

SHARPEST = 4.0  # a policy that is sure of everything has no gradient left
RUNS = 100  # training runs that it is chosen on
STEPS = 60  # evaluations of the simplex after the grid

Reading = tuple[float, tuple[float, float, float]]  # sharpness, offsets of continue, intervene, stop


def best_reading(
    network: Any, episodes: Sequence[LmEpisode], tokens: Tokens, trunk: FrozenTrunk | None = None
) -> Reading:
    """The sharpness, from 1 to 4, and offsets at which the sampling policy has the highest return.

    Args:
        network: as for `action_logits`.
        episodes: training runs; a fixed part of them is looked at.
        tokens: the rendering; how it reads answers so far does not matter.
        trunk: as for `action_logits`.
    """
    chosen = list(episodes)[:: max(1, len(episodes) // RUNS)]
    plain = tokens.read_by(1.0, (0.0, 0.0, 0.0))
    training = network.training
    network.eval()
    try:
        with torch.inference_mode():
            logits = [action_logits(network, [run], plain, trunk)[0].double().cpu().numpy() for run in chosen]
    finally:
        network.train(training)
    weights = episode_weights(chosen)

    def loss(point: NDArray[np.float64]) -> float:
        sharpness, offsets = _reading(point)
        total = 0.0
        for run, row, weight in zip(chosen, logits, weights, strict=True):
            policy = masked(softmax(sharpness * row + np.array(offsets)), run.lattice.legal)
            total += weight * float(expected(run.lattice, policy).value)
        return -total

    grid = itertools.product((1.0, 2.0, SHARPEST), (-6.0, -3.0, 0.0), np.arange(-6.0, 4.0, 1.0))
    starts = [np.array(point) for point in grid]
    best = min(starts, key=loss)  # of equals the mildest is taken
    # the simplex keeps the best point that it has seen, and begins with this one
    return _reading(np.asarray(minimize(loss, best, method="Nelder-Mead", options={"maxfev": STEPS}).x))


def _reading(point: NDArray[np.float64]) -> Reading:
    return float(np.clip(point[0], 1.0, SHARPEST)), (0.0, float(point[1]), float(point[2]))
