"""The prompted controllers with the embedded language model, which returns JSON because it is held to the schema."""

import importlib.util

import numpy as np
import pytest

from stopwise.controllers.base import Observation, RunSoFar
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.kinds import connect
from stopwise.controllers.llm_critic import LlmCritic
from stopwise.controllers.raac import Raac
from stopwise.data.records import Document, Step
from stopwise.models.chat_client import ChatClient
from stopwise.models.ledger import Ledger
from stopwise.models.response_cache import ResponseCache
from stopwise.models.smollm2 import PACKAGE
from stopwise.signals.tracker import SignalRow

STEPS = (
    Step("search", "I start with salt.", ("salt town",), (Document("a", "Salt was traded.", "Alba"),)),
    Step("search", "It must be Alba.", ("Alba salt", "Alba mine"), (Document("b", "Lead was mined.", "Solm"),)),
)
SEEN = Observation(
    SignalRow(2, {"Nov": 0.2, "Cov": 0.5, "Div": 0.1, "Sim": 0.6, "residual_z": 3.0}, {}),
    None,
    np.ones(3, dtype=bool),
    run=RunSoFar("Which town grew rich on salt?", STEPS, "q7"),
)


@pytest.mark.slow
@pytest.mark.parametrize("make", [Raac, LlmCritic, lambda: DsMcm(slow=True, recall=0)], ids=["raac", "critic", "slow"])
def test_smollm2_decides(make, tmp_path):
    for needed in ("llguidance", "transformers", "gguf", PACKAGE):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"needs {needed}")
    from stopwise.models.local_lm import LocalLM

    cache = ResponseCache(tmp_path / "replies.sqlite")
    controller = make()
    connect(controller, ChatClient(LocalLM(device="cpu"), cache, Ledger(), tries=1))
    decision = controller.decide(SEEN)
    cache.close()
    assert decision.cost.failure is None
    assert decision.cost.calls == 1
