"""Endpoints: what an OpenAI-compatible server is called, where it is, what it can do and what it costs."""

import os
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from stopwise.data.errors import UsageError
from stopwise.models.chat import Abilities
from stopwise.models.ledger import Prices

Server = Literal["generic", "openai", "vllm", "sglang", "llama.cpp", "transformers"]

# What the servers can do as shipped. "generic" promises nothing beyond messages in, text out.
ABILITIES: dict[str, Abilities] = {
    "generic": Abilities(),
    "openai": Abilities(top_logprobs=20, structured="schema", tools=True, seed=True),
    "vllm": Abilities(top_logprobs=20, structured="schema", tools=True, seed=True),
    "sglang": Abilities(top_logprobs=20, structured="schema", tools=True, seed=True),
    "llama.cpp": Abilities(top_logprobs=20, structured="schema", tools=True, seed=True),
    "transformers": Abilities(seed=True),  # `transformers serve` refuses logprobs and response_format
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call may take and how often it is tried."""

    attempts: int = 5  # calls on the wire for one request
    first_wait: float = 1.0  # seconds before the second attempt; doubles each time, and is drawn up to twice as long
    longest_wait: float = 60.0  # seconds; a server that asks for more (Retry-After) is not waited for
    timeout: float = 120.0  # seconds for a whole reply
    connect_timeout: float = 10.0  # seconds until the server takes the call

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError(f"patience.attempts: {self.attempts}; expected at least 1")
        for name in ("first_wait", "longest_wait", "timeout", "connect_timeout"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"patience.{name}: {getattr(self, name)}; expected seconds")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server and the model to ask for."""

    url: str  # up to and with the version: http://localhost:8000/v1
    model: str  # name that is sent
    server: Server = "generic"  # kind of server, which sets `abilities`
    abilities: Abilities | None = None  # None: as the kind of server has them
    key_variable: str | None = None  # environment variable that holds the key; None: no key is sent
    token_limit_field: str = "max_tokens"  # OpenAI's reasoning models want max_completion_tokens
    served_model: str | None = None  # name that replies must carry; None: whichever comes first, then always that
    patience: Patience = field(default_factory=Patience)
    prices: Prices = field(default_factory=Prices)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"endpoint url {parts.hostname or self.url!r}: expected http://host:port/v1 or https://..."
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            # an address stands in results and cache keys, and must not carry a secret there
            raise UsageError(
                f"endpoint url of {parts.hostname}: holds credentials or a query; expected a plain address; "
                "put the key into an environment variable and name that as `key_variable`"
            )
        if self.server not in ABILITIES:
            raise UsageError(f"endpoint server {self.server!r}: expected one of {', '.join(ABILITIES)}")

    @property
    def id(self) -> str:
        """The model and its address."""
        return f"{self.model}@{self.url.rstrip('/')}"

    @property
    def can(self) -> Abilities:
        """The abilities in force."""
        return ABILITIES[self.server] if self.abilities is None else self.abilities

    def key(self) -> str | None:
        """The key, read from the environment at each call and kept nowhere.

        Raises:
            UsageError: the variable is not set.
        """
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise UsageError(
                f"endpoint {self.id}: the environment variable {self.key_variable} is not set; "
                f"run `export {self.key_variable}=...` with the key of that server"
            )
        if not key.isascii() or not key.isprintable():
            raise UsageError(f"endpoint {self.id}: the key in {self.key_variable} holds characters that no header may")
        return key
