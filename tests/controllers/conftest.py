import numpy as np
import pytest

from stopwise.controllers.base import Hindsight, Observation
from stopwise.signals.tracker import SignalRow


@pytest.fixture(scope="session")
def see():
    """``see(t=3, Nov=0.5)``: an observation after search step 3; a text is a reason why a signal is missing."""

    def make(t=1, *, legal=(True, True, True), interventions=0, since=None, hindsight=None, features=None, **signals):
        values = {name: cell for name, cell in signals.items() if not isinstance(cell, str)}
        nulls = {name: cell for name, cell in signals.items() if isinstance(cell, str)}
        return Observation(
            row=SignalRow(t, values, nulls),
            features=None if features is None else np.asarray(features, dtype=float),
            legal=np.array(legal),
            interventions=interventions,
            since_intervention=since,
            hindsight=None if hindsight is None else Hindsight(*hindsight),
        )

    return make


@pytest.fixture(scope="session")
def run_through(see):
    """Actions of a controller over rows given as mappings, all actions legal."""

    def run(controller, rows, **options):
        controller.reset()
        return [controller.decide(see(t, **options, **row)).action.name for t, row in enumerate(rows, 1)]

    return run
