"""Controllers by name, for config files and policy packages."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from stopwise.controllers.base import Controller
from stopwise.controllers.baselines import FixedBudget, NeverStop, Random
from stopwise.controllers.boosted import Boosted, Privileged
from stopwise.controllers.ds_mcm import DsMcm
from stopwise.controllers.heuristic import Heuristic
from stopwise.controllers.llm_critic import LlmCritic
from stopwise.controllers.lm import SmallLM
from stopwise.controllers.logistic import Logistic
from stopwise.controllers.memory.entries import Recall
from stopwise.controllers.oracle import Oracle
from stopwise.controllers.prompted import Prompted
from stopwise.controllers.raac import Raac
from stopwise.controllers.review_stopping import Chao1, Knee, Target
from stopwise.data.errors import DataError, UsageError
from stopwise.models.chat_client import ChatClient
from stopwise.signals.features import FeatureSpec

RULES: dict[str, type[Controller]] = {
    kind.kind: kind
    for kind in (NeverStop, FixedBudget, Random, Heuristic, DsMcm, Oracle, Raac, LlmCritic, Knee, Target, Chao1)
}  # made from parameters alone
LEARNED: dict[str, type[Logistic] | type[Boosted]] = {
    kind.kind: kind for kind in (Logistic, Boosted, Privileged)
}  # need features and weights


def make_rule(kind: str, params: Mapping[str, Any]) -> Controller:
    """A controller that needs no weights.

    Raises:
        UsageError: the kind or a parameter is unknown, or a value is not allowed.
    """
    if kind not in RULES:
        hint = "; train it and name its run as `policy`" if kind in (*LEARNED, SmallLM.kind) else ""
        raise UsageError(f"controller {kind!r} is not one of {', '.join(RULES)}{hint}")
    try:
        return RULES[kind](**params)
    except TypeError as error:
        raise UsageError(f"controller {kind}: {error}; found parameters {', '.join(params) or 'none'}") from error


def make_learned(
    kind: str, params: Mapping[str, Any], features: FeatureSpec | None, weights: Mapping[str, NDArray[Any]]
) -> Controller:
    """A controller with weights.

    Raises:
        UsageError: the kind is unknown.
        DataError: the weights do not fit the features.
    """
    if kind == SmallLM.kind:
        return SmallLM(None, weights, **params)
    if kind in LEARNED:
        if features is None:
            raise DataError(f"controller {kind}: names no features; export the policy again")
        return LEARNED[kind](features, weights, **params)
    raise UsageError(f"controller {kind!r} is not one of {', '.join((*LEARNED, SmallLM.kind))}")


def asks_model(controller: Controller) -> bool:
    """Whether it cannot decide without a language model."""
    return isinstance(controller, Prompted) and controller.asks_model


def asks_memory(controller: Controller) -> bool:
    """Whether it cannot decide without an experience memory."""
    return isinstance(controller, DsMcm) and controller.asks_memory


def connect(controller: Controller, client: ChatClient | None, memory: Recall | None = None) -> None:
    """Give a controller the language model and the experience memory that it asks; others are left alone.

    Raises:
        UsageError: it asks one, and that is None.
    """
    if isinstance(controller, Prompted) and controller.asks_model:
        if client is None:
            raise UsageError(f"{controller.kind}: asks a language model; name one under `llm`, see configs/llm.yaml")
        controller.client = client
    if isinstance(controller, DsMcm) and controller.asks_memory:
        if memory is None:
            raise UsageError("ds_mcm: the slow monitor asks a memory; name one under `memory`, or set recall: 0")
        controller.memory = memory


def connect_like(controller: Controller, other: Controller) -> None:
    """Connect a controller to what `other`, of the same kind, is connected to."""
    if isinstance(other, Prompted):
        connect(controller, other.client, other.memory if isinstance(other, DsMcm) else None)
