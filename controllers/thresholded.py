"""Learned classifiers of actions with two thresholds: when to stop, and else when to intervene."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller, Distribution, Legal, Observation
from stopwise.data.records import Action

Floats = NDArray[np.float64]


class Thresholded(Controller):
    """Stop when its probability reaches a threshold; else intervene when its share of the rest reaches another one.

    Both thresholds are chosen on validation questions. Without the second one, as in every policy that was trained
    where intervening was forbidden, the more probable one of continue and intervene is taken.
    """

    threshold: float
    intervene_threshold: float | None

    @abstractmethod
    def probabilities(self, features: Floats) -> Floats:
        """Probabilities (N, 3) before the masks, of features (N, F) with NaN for null."""

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`."""
        assert observation.features is not None
        return self._explained(self.probabilities(observation.features[None, :])[0])

    def _explained(self, probabilities: Distribution) -> tuple[Distribution, str]:
        """A row of probabilities, and the one of stop for people."""
        return probabilities, f"probability of stop {probabilities[Action.STOP]:.2f}, threshold {self.threshold:.2f}"

    def choose(self, probabilities: Distribution, legal: Legal) -> Action:
        """Stop from the threshold on, or where nothing else is legal; then intervene from the other one on."""
        return choose_by_thresholds(probabilities, legal, self.threshold, self.intervene_threshold)

    @property
    def params(self) -> Mapping[str, Any]:
        """The thresholds; features and weights are stored beside them."""
        second = {} if self.intervene_threshold is None else {"intervene_threshold": self.intervene_threshold}
        return {"threshold": self.threshold, **second}


def choose_by_thresholds(probabilities: Distribution, legal: Legal, stop: float, intervene: float | None) -> Action:
    """The action at a pair of thresholds; `stopwise.envs.lattice.by_thresholds` is the same over arrays.

    Args:
        probabilities: (3,) after the masks.
        legal: (3,).
        stop: probability of stop from which it stops.
        intervene: share of intervening in the rest from which it intervenes; None: where it is the likelier one.
    """
    if legal[Action.STOP] and (probabilities[Action.STOP] >= stop or legal.sum() == 1):
        return Action.STOP
    if intervene is None:
        return Action(int(np.where(legal, probabilities, -1.0)[: Action.STOP].argmax()))
    nudges = legal[Action.INTERVENE] and intervene_share(probabilities) >= intervene
    return Action.INTERVENE if nudges else Action.CONTINUE


def intervene_share(probabilities: Floats) -> Floats:
    """Probability of intervening given that the run is not stopped, shape (...,), from (..., 3); 0 where it is."""
    going_on = probabilities[..., Action.CONTINUE] + probabilities[..., Action.INTERVENE]
    share = np.zeros_like(going_on)
    np.divide(probabilities[..., Action.INTERVENE], going_on, out=share, where=going_on > 0)
    return share
