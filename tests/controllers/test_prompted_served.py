"""Each prompted controller over HTTP, with a real server and a real, if very small, model."""

import numpy as np
import pytest

from stopwise.controllers.base import Observation, RunSoFar
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.kinds import connect
from stopwise.controllers.llm_critic import LlmCritic
from stopwise.controllers.raac import Raac
from stopwise.data.records import Action, Document, Step
from stopwise.models.endpoints import Patience
from stopwise.signals.tracker import SignalRow

pytestmark = pytest.mark.slow

RUN = RunSoFar("Which town?", (Step("search", "I look.", ("town",), (Document("a", "It is Alba."),)),), "q0")
ROW = SignalRow(1, {"Nov": 0.0, "Cov": 0.5, "Div": 0.0, "Sim": 0.5, "residual_z": 3.0}, {})

MAKE = {
    "raac": Raac,
    "llm_critic": LlmCritic,
    "ds_mcm without memory": lambda: DsMcm(slow=True, recall=0),
}


@pytest.mark.parametrize("name", MAKE)
def test_the_whole_path(served_smollm2, client_of, name):
    url, model = served_smollm2
    client = client_of(url=url, model=model, server="transformers", patience=Patience(timeout=300))
    controller = MAKE[name]()
    connect(controller, client, None)
    decision = controller.decide(Observation(ROW, None, np.array((True, True, True)), run=RUN))
    # what a model of this size answers is its own affair; what was spent, and that a failure is continue, is ours
    assert decision.cost.calls in (1, 2)
    assert decision.cost.tokens > 0
    assert decision.cost.seconds > 0
    assert decision.action is Action.CONTINUE or decision.cost.failure is None
    assert decision.cost.failure in (None, "no JSON in reply", "wrong schema", "wrong answer")
    assert controller.described["served_model"]
