"""From a config to a chat client: an endpoint or a local model, with cache, budget and prices."""

from dataclasses import dataclass, field
from pathlib import Path

from stopwise.data.errors import UsageError
from stopwise.models.chat import ChatModel
from stopwise.models.chat_client import ChatClient
from stopwise.models.endpoints import Endpoint
from stopwise.models.http_chat import HttpChat
from stopwise.models.ledger import Budget, Ledger
from stopwise.models.local_lm import LocalLM
from stopwise.models.response_cache import ResponseCache


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """A language model and the bounds of its use. Exactly one of `endpoint` and `local` is set."""

    endpoint: Endpoint | None = None  # an OpenAI-compatible server
    local: str | None = None  # SmolLM2-135M-Instruct, a Hugging Face id or a folder
    budget: Budget = field(default_factory=Budget)
    cache: str | None = None  # file of replies; None: in stopwise's cache folder
    parallel: int = 8  # calls under way at one time, at most
    tries: int = 2  # times that an answer is asked for when replies cannot be read

    def __post_init__(self) -> None:
        if (self.endpoint is None) == (self.local is None):
            raise UsageError("llm: expected either `endpoint` or `local`, and not both")
        for name in ("parallel", "tries"):
            if getattr(self, name) < 1:
                raise UsageError(f"llm.{name}: {getattr(self, name)}; expected at least 1")


def open_chat(config: ChatConfig, ledger: Ledger | None = None) -> ChatClient:
    """The client that a config describes.

    Args:
        config: what to call.
        ledger: shared by the clients of one run, with the budget that counts; None: one of its own.
    """
    model: ChatModel
    if config.endpoint is not None:
        config.endpoint.key()  # a missing key is told now, not after an hour
        model, prices = HttpChat(config.endpoint), config.endpoint.prices
    else:
        model, prices = LocalLM(config.local or ""), None
    cache = ResponseCache(None if config.cache is None else Path(config.cache))
    return ChatClient(
        model,
        cache,
        ledger or Ledger(config.budget),
        prices=prices,
        parallel=config.parallel,
        tries=config.tries,
    )
