"""LLM-Critic: a model that judges every step by itself, without signals and without memory ([DS-MCM] 4.1.2)."""

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from stopwise.controllers.base import Distribution, Observation, certain
from stopwise.controllers.ds_mcm import OnFlag
from stopwise.controllers.prompted import MAX_TOKENS, Prompted, PromptVersions
from stopwise.controllers.slow_monitor import Critique, Verdict, check_critique, critic_prompt
from stopwise.data.errors import UsageError
from stopwise.data.records import Action


class LlmCritic(Prompted):
    """Ask the critic after every search step; where it finds an error, intervene with its suggestion, or stop.

    It is not asked where its verdict could change nothing, since what it would do is not open. A failed call is
    continue, and counted.
    """

    kind: ClassVar[str] = "llm_critic"
    prompts: ClassVar[tuple[str, ...]] = ("critic",)
    reads_text = True
    guides = True

    def __init__(
        self, on_flag: OnFlag = "intervene", max_tokens: int = MAX_TOKENS, prompts: PromptVersions | None = None
    ) -> None:
        """Set what follows an error.

        Args:
            on_flag: the paper intervenes.
            max_tokens: of a reply.
            prompts: versions that the prompts must have; None takes them as they are.

        Raises:
            UsageError: a value is not allowed.
        """
        if on_flag not in get_args(OnFlag):
            raise UsageError(f"llm_critic: on_flag {on_flag!r}; expected one of {', '.join(get_args(OnFlag))}")
        self.on_flag: OnFlag = on_flag
        self._prepare(max_tokens, prompts)

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`.

        Raises:
            ValueError: there are no texts to read.
        """
        if observation.run is None:
            raise ValueError("llm_critic: needs the run's texts, which a signal table does not have")
        action = Action.STOP if self.on_flag == "stop" else Action.INTERVENE
        if not observation.legal[action]:
            return certain(Action.CONTINUE), None
        critique = self.ask(critic_prompt(observation.run), Critique, check_critique)
        if critique is None:
            return certain(Action.CONTINUE), self.no_reply()
        verdict = Verdict.of(critique)
        return certain(action if verdict.err else Action.CONTINUE), verdict.suggestion

    @property
    def params(self) -> Mapping[str, Any]:
        """What follows an error, and the prompts' versions."""
        return {"on_flag": self.on_flag, "max_tokens": self.max_tokens, "prompts": self._versions}
