"""What controllers that ask a language model have in common: the model, what a decision cost, failing to continue.

A prompted controller is made from parameters alone, like any rule, and goes into configs and policy packages as such;
the model is connected afterwards, where it runs. Calls go through `ChatClient`: cached, retried, bounded and counted.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from stopwise.controllers.base import Controller, Cost, Decision, Observation, check_number
from stopwise.data.errors import UsageError
from stopwise.models.chat import ChatFailure, ChatRequest, Message
from stopwise.models.chat_client import ChatClient
from stopwise.models.prompts import load_prompt

Answer = TypeVar("Answer")

MAX_TOKENS = 300  # of a reply; a model that thinks before it answers wants more

PromptVersions = Mapping[str, str]  # name of a prompt -> its version


class Prompted(Controller):
    """Base class: call `ask` in `distribution`, and continue where it returns None."""

    prompts: ClassVar[tuple[str, ...]] = ()  # names of the prompt files that it may use
    max_tokens: int = MAX_TOKENS
    client: ChatClient | None = None  # set by `stopwise.controllers.kinds.connect`; copies share it
    _spent: Cost = Cost()

    @property
    def asks_model(self) -> bool:
        """Whether these parameters need a language model."""
        return True

    @property
    def described(self) -> Mapping[str, Any]:
        """The model, the name under which it answers, and the versions of the prompts; see `Controller.described`."""
        if not self.asks_model:
            return {}
        return {
            "model": None if self.client is None else self.client.id,
            "served_model": None if self.client is None else self.client.served_model,
            "prompts": [load_prompt(name).version for name in self._used_prompts()],
        }

    def ask(self, text: str, kind: type[Answer], check: Callable[[Answer], str | None] | None = None) -> Answer | None:
        """Ask the model one thing; None when it brings no usable reply, which is then the decision's `Cost.failure`.

        Args:
            text: the prompt.
            kind: frozen dataclass of the JSON reply.
            check: says what is wrong with a reply of the right shape, or None.

        Raises:
            UsageError: no model is connected.
            BudgetSpent: the call would cost more than there is.
        """
        if self.client is None:
            raise UsageError(f"{self.kind}: no language model is connected; name one under `llm`, see configs/llm.yaml")
        request = ChatRequest((Message("user", text),), max_tokens=self.max_tokens)
        spent = self._spent
        try:
            asked = self.client.ask(request, kind, "controller", check)
        except ChatFailure as failure:
            tokens = failure.usage.prompt + failure.usage.completion
            self._spent = Cost(
                spent.calls + failure.attempts, spent.tokens + tokens, spent.seconds + failure.seconds, failure.kind
            )
            return None
        replies = asked.replies
        self._spent = Cost(
            calls=spent.calls + sum(reply.attempts for reply in replies),
            tokens=spent.tokens + sum(reply.usage.prompt + reply.usage.completion for reply in replies),
            seconds=spent.seconds + sum(reply.seconds for reply in replies),
        )
        return asked.answer

    def decide(self, observation: Observation) -> Decision:
        """See `Controller.decide`; the decision carries what its calls cost."""
        self._spent = Cost()
        decision = super().decide(observation)
        return replace(decision, cost=self._spent)

    def no_reply(self) -> str:
        """The message of a decision that had to do without the model."""
        return f"the model brought no usable reply ({self._spent.failure}); the run goes on"

    def _used_prompts(self) -> tuple[str, ...]:
        """Names of the prompts that these parameters use."""
        return self.prompts

    def _prepare(self, max_tokens: int, given: PromptVersions | None) -> None:
        """Set the bound of replies, and refuse to run under other prompts than those that a package was made with.

        Raises:
            UsageError: the bound is no whole number above 0, or a version differs from that of this stopwise.
        """
        check_number(f"{self.kind}: max_tokens", max_tokens, low=1, whole=True)
        self.max_tokens = max_tokens
        for name, version in (given or {}).items():
            known = load_prompt(name).version if name in self._used_prompts() else None
            if version != known:
                raise UsageError(
                    f"{self.kind}: prompts.{name}: {version}; expected {known or 'no such prompt'}: "
                    "the prompt has changed since, so its results would not carry over"
                )

    @property
    def _versions(self) -> dict[str, str]:
        return {name: load_prompt(name).version for name in self._used_prompts()}
