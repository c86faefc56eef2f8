"""Loading a policy package and making monitors of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from stopwise.controllers.kinds import connect
from stopwise.controllers.memory.entries import Recall
from stopwise.controllers.package import PolicyPackage, read_package
from stopwise.controllers.session import ControlSession
from stopwise.data.errors import DataError, UsageError
from stopwise.data.records import Criterion
from stopwise.models.chat_client import ChatClient
from stopwise.models.encoders import Encoder
from stopwise.runtime.monitor import Monitor
from stopwise.signals.definitions import BY_NAME, with_prerequisites
from stopwise.signals.tracker import SignalConfig, SignalTracker


class Policy:
    """A loaded policy: shared by all runs of an agent; `monitor` starts one run."""

    def __init__(
        self,
        package: PolicyPackage,
        *,
        encoder: Encoder | None = None,
        cache: Path | str = ":memory:",
        llm: ChatClient | None = None,
        memory: Recall | None = None,
    ) -> None:
        """Wrap a package.

        Args:
            package: as `read_package` returns it.
            encoder: the agent's own encoder, which must be the one the policy was trained with; None loads that one
                when the first monitor needs it.
            cache: embedding cache; in memory by default.
            llm: the language model that a prompted controller asks; see `stopwise.models.chat_config.open_chat`.
            memory: the experience memory that the slow monitor of `ds_mcm` asks.

        Raises:
            UsageError: the controller needs hindsight, or asks a model or a memory that is not given.
            DataError: the policy was trained with another encoder.
        """
        if package.controller.privileged:
            raise UsageError(f"policy {package.name}: needs hindsight, which a live agent does not have")
        connect(package.controller, llm, memory)
        self.package = package
        self._cache = cache
        self._encoder = _rounded(encoder, cache) if encoder is not None else None
        if encoder is not None and package.signals.encoder not in (None, encoder.id):
            raise DataError(
                f"policy {package.name}: was trained with encoder {package.signals.encoder}, found {encoder.id}; "
                "its thresholds do not carry over; pass the same encoder or train again"
            )

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.package.name

    @property
    def signal_config(self) -> SignalConfig:
        """The signals that this policy reads, computed as in training; optional ones only if it had them there."""
        trained_on = self.package.signals.config
        reads = tuple(name for name in self.package.controller.reads if name in trained_on.signals)
        return replace(trained_on, signals=reads)

    @property
    def needs_encoder(self) -> bool:
        """Whether some signal that it reads is made of embeddings."""
        wanted = with_prerequisites(self.signal_config.signals)
        return any(need.endswith("_embedding") for name in wanted for need in BY_NAME[name].needs)

    @property
    def encoder(self) -> Encoder | None:
        """The encoder, loaded at the first call; None when no signal needs one."""
        if self._encoder is None and self.needs_encoder:
            from stopwise.models.encoders import MINILM, SentenceTransformerEncoder

            trained_with = self.package.signals.encoder
            if trained_with is None:
                raise DataError(f"policy {self.name}: reads embeddings but names no encoder; export it again")
            model = MINILM if trained_with.startswith(f"{MINILM}@") else trained_with
            encoder = SentenceTransformerEncoder(model)
            if encoder.id != trained_with:
                raise DataError(f"policy {self.name}: was trained with encoder {trained_with}, found {encoder.id}")
            self._encoder = _rounded(encoder, self._cache)
        return self._encoder

    def monitor(
        self,
        question: str,
        criteria: Sequence[str | Criterion] | None = None,
        *,
        agent: str | None = None,
        mode: Literal["act", "monitor"] = "act",
        can_intervene: bool = True,
        seed: int = 0,
        fail_open: bool = True,
    ) -> Monitor:
        """Start watching one run.

        Args:
            question: what the agent works on.
            criteria: what the question asks for, if known.
            agent: the agent's name in the training logs, for its RE-SE calibration.
            mode: "monitor" decides and reports but always continues.
            can_intervene: whether the agent can carry out an intervention.
            seed: of controllers that draw random numbers.
            fail_open: count a failure and continue, so that a controller never breaks its agent.

        Raises:
            UsageError: `criteria` is a single text.
            DataError: the encoder that the policy was trained with cannot be had.
        """
        if isinstance(criteria, str):
            raise UsageError("criteria: str; expected a list of texts")
        wrapped = [Criterion(one) if isinstance(one, str) else one for one in criteria] if criteria else None
        info = self.package.signals
        tracker = SignalTracker(
            self.signal_config,
            question,
            criteria=wrapped,
            agent=agent,
            encoder=self.encoder,
            calibrations={(name, source): line for name, source, line in info.calibrations},
        )
        session = ControlSession(
            self.package.controller.copy(),
            self.package.guards,
            can_intervene=can_intervene,
            mode=mode,
            fail_open=fail_open,
        )
        session.begin(seed)
        return Monitor(tracker, session, fail_open=fail_open, question=question)


def load(
    folder: Path | str,
    *,
    encoder: Encoder | None = None,
    cache: Path | str = ":memory:",
    llm: ChatClient | None = None,
    memory: Recall | None = None,
) -> Policy:
    """Load a policy package; see `Policy`.

    Raises:
        UsageError: its controller asks a model or a memory that is not given.
        DataError: the package is damaged, of another schema, or was trained with another encoder.
    """
    return Policy(read_package(Path(folder)), encoder=encoder, cache=cache, llm=llm, memory=memory)


def _rounded(encoder: Encoder, cache: Path | str) -> Encoder:
    """Embeddings rounded as in training, whether or not anything is kept."""
    from stopwise.models.embedding_cache import CachedEncoder

    return encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder, cache)
