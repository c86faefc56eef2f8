"""A small language model as a controller: it reads a run's rows and answers each with one token.

The base model is named and its weights are checked by hash; what training changed (a low-rank adapter, or whole
matrices) are plain arrays in the policy package and are merged into it when it is loaded, without peft or trl.
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stopwise.controllers.base import Controller, Distribution, Legal, Observation, check_number, softmax
from stopwise.controllers.rendering import RenderingSpec, RowStream, Tokens, context_start, contexts
from stopwise.controllers.thresholded import choose_by_thresholds
from stopwise.data.errors import DataError
from stopwise.data.records import Action
from stopwise.signals.tracker import SignalRow

LORA_A, LORA_B = ".lora_A", ".lora_B"  # ends of the arrays' names: (rank, in) and (out, rank) of a module


@dataclass(frozen=True)
class BaseModel:
    """The network that an adapter belongs to."""

    name: str  # as `stopwise.models.causal_lm.load_causal_lm` takes it
    sha256: str  # of its weights


class SmallLM(Controller):
    """See the module's docstring.

    It stops when the probability of stop reaches a threshold, else intervenes when that of intervene, among the other
    two, reaches one; both are chosen on validation questions. Deterministic.
    """

    kind: ClassVar[str] = "lm"

    def __init__(
        self,
        features: None,
        weights: Mapping[str, NDArray[Any]],
        *,
        base: BaseModel | Mapping[str, str],
        rendering: RenderingSpec | Mapping[str, Any],
        scaling: float = 1.0,
        threshold: float = 0.5,
        intervene_threshold: float = 0.5,
    ) -> None:
        """Set up; the network is loaded by `prepare`, or at the first decision.

        Args:
            features: none: it reads rows, see `rendering`.
            weights: for a module ``m`` of the base, ``m.lora_A`` (rank, in) and ``m.lora_B`` (out, rank), or the whole
                of a parameter under its own name.
            base: the base model.
            rendering: what it reads.
            scaling: factor of B A.
            threshold: probability of stop, after the masks, from which it stops.
            intervene_threshold: probability of intervene given that it does not stop, from which it intervenes.

        Raises:
            DataError: an array has no partner.
            UsageError: a parameter is not what it should be.
        """
        self.base = base if isinstance(base, BaseModel) else BaseModel(**base)
        self.rendering = rendering if isinstance(rendering, RenderingSpec) else _spec(rendering)
        self.weights = {name: np.ascontiguousarray(array) for name, array in weights.items()}
        for name in self.weights:
            if name.endswith((LORA_A, LORA_B)) and not {_stem(name) + LORA_A, _stem(name) + LORA_B} <= set(
                self.weights
            ):
                raise DataError(f"lm: weights of {_stem(name)} lack one of the adapter's two matrices; export it again")
        check_number("lm: scaling", scaling, low=0)
        check_number("lm: threshold", threshold, low=0)
        check_number("lm: intervene_threshold", intervene_threshold, low=0)
        self.scaling = scaling
        self.threshold = threshold
        self.intervene_threshold = intervene_threshold
        self.optional = self.rendering.signals
        self._scorer = Scorer(self.base, self.weights, scaling, self.rendering)  # shared by all copies
        self.reset()

    @property
    def network(self) -> Any:
        """The merged network, a transformers model in float32; loaded at the first call."""
        self.prepare()
        return self._scorer.network

    def prepare(self) -> None:
        """Load the network.

        Raises:
            DataError: the base model's weights are others than those it was trained on.
            UsageError: the base model cannot be loaded, or torch or transformers is not installed.
        """
        self._scorer.load()

    def reset(self, seed: int = 0) -> None:
        """See `Controller.reset`."""
        super().reset(seed)
        self._rows: list[list[int]] = []  # ids of all rows so far
        self._stream: RowStream | None = None
        self._reading: Reading | None = None
        self._turn: int | None = None
        self._logits: NDArray[np.float64] | None = None  # (M + 1, 3) at the last row
        self._foreseen: list[tuple[list[int], NDArray[np.float64]]] = []  # ids and logits of each row, see `foresee`

    def foresee(self, rows: Iterable[SignalRow]) -> bool:
        """One pass over a run's rows in place of one a decision; a causal network reads nothing of later rows."""
        self.prepare()
        stream = RowStream(self._scorer.tokens)
        ids = [stream.push(row) for row in rows]
        for start, decided, stop in contexts(len(ids), self.rendering.context_rows):
            found = self._scorer.score(start, ids[start:stop])
            self._foreseen += zip(ids[decided:stop], found[decided - start :], strict=True)
        return True

    def distribution(self, observation: Observation) -> tuple[Distribution, str | None]:
        """See `Controller.distribution`: a softmax over the three action tokens."""
        row = observation.row
        if row.t != self._turn or self._logits is None:  # an intervention without effect leaves a replay where it was
            self.prepare()
            if self._stream is None:
                self._stream = RowStream(self._scorer.tokens)
            # what a row holds does not depend on how the run got there: steps that were jumped over are read too
            fresh = [self._stream.push(one) for one in (*observation.passed, row)]
            self._rows += fresh
            self._logits = self._read(len(fresh))
            self._turn = row.t
        most = self.rendering.interventions
        logits = self._logits[min(observation.interventions, most)].copy()
        if observation.interventions >= most:  # it never learned what intervening brings there
            logits[Action.INTERVENE] = -np.inf
        probabilities = softmax(logits)
        stop, nudge = probabilities[Action.STOP], probabilities[Action.INTERVENE]
        return probabilities, f"probability of stop {stop:.2f}, of intervening {nudge:.2f}"

    def choose(self, probabilities: Distribution, legal: Legal) -> Action:
        """Stop from its threshold on, else intervene from its own on, else go on where that is legal."""
        return choose_by_thresholds(probabilities, legal, self.threshold, self.intervene_threshold)

    def _read(self, fresh: int) -> NDArray[np.float64]:
        """Logits at the last row's ask tokens: `fresh` rows are read on, or a context is begun anew."""
        last = len(self._rows) - 1
        if self._foreseen:
            known = self._foreseen[: last + 1]
            if [ids for ids, _ in known] == self._rows:
                return known[last][1]
            self._foreseen = []  # the run took another way: read it as it comes
        start = context_start(last, self.rendering.context_rows)
        if self._reading is None or self._reading.start != start:
            self._reading = self._scorer.begin(start)
            new = self._rows[start:]
        else:
            new = self._rows[-fresh:]
        return self._scorer.append(self._reading, new)[-1]

    @property
    def params(self) -> Mapping[str, Any]:
        """All but the weights."""
        return {
            "base": asdict(self.base),
            "rendering": asdict(self.rendering),
            "scaling": self.scaling,
            "threshold": self.threshold,
            "intervene_threshold": self.intervene_threshold,
        }


@dataclass
class Reading:
    """A context that has been read up to some row."""

    start: int  # first row in it
    cache: Any  # keys and values of all tokens so far


class Scorer:
    """The merged network over rendered rows; loaded once for all runs."""

    def __init__(
        self, base: BaseModel, weights: Mapping[str, NDArray[Any]], scaling: float, rendering: RenderingSpec
    ) -> None:
        self._base, self._weights, self._scaling, self._spec = base, weights, scaling, rendering
        self.network: Any = None
        self._header: Any = None  # cache of the header alone
        self._trunk: Any = None  # layers that training left alone, where they are the lowest ones

    def load(self) -> None:
        """Load the base and merge; see `SmallLM.prepare`."""
        if self.network is not None:
            return
        from stopwise.models.causal_lm import load_causal_lm

        loaded = load_causal_lm(self._base.name)
        if loaded.sha256 != self._base.sha256:
            raise DataError(
                f"lm: base model {self._base.name} has weights with sha256 {loaded.sha256}; this policy was trained on "
                f"{self._base.sha256}; bring that model, or train again"
            )
        merge(loaded.network, self._weights, self._scaling)
        self.tokens = Tokens(self._spec, loaded.encode)
        self.network = loaded.network
        from stopwise.models.trunk import FrozenTrunk, has_plain_layers, shared_states

        first = lowest_layer(self._weights)
        if first > 0 and has_plain_layers(self.network):
            known = shared_states(self._base.sha256, first, str(self.network.device))
            self._trunk = FrozenTrunk(self.network, first, known)

    def score(self, start: int, rows: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Read a whole context, rows from `start` on; the logits (R, M + 1, 3) as of `append`.

        What layers below the adapter make of it is kept for all policies over this base: in a benchmark of several, the
        first pays for it.
        """
        if self._trunk is None:
            return self.append(self.begin(start), rows)
        import torch

        header = self.tokens.header
        keep = torch.tensor(self._asks(rows, len(header)), device=self.network.device)
        with torch.inference_mode():
            hidden = self._trunk.hidden([*header, *(token for row in rows for token in row)])
            with self._trunk.top():
                output = self.network(inputs_embeds=hidden[None], logits_to_keep=keep, use_cache=False)
        return self._actions(output.logits, len(rows))

    def begin(self, start: int) -> Reading:
        """A context that holds the header alone; rows from `start` on are to follow."""
        import torch

        if self._header is None:
            with torch.inference_mode():
                self._header = self._forward(self.tokens.header, None, [0])[1]
        return Reading(start, copy.deepcopy(self._header))

    def append(self, reading: Reading, rows: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Read R rows on; the logits (R, M + 1, 3) of the actions at their ask tokens."""
        import torch

        with torch.inference_mode():
            ids = [token for row in rows for token in row]
            logits, reading.cache = self._forward(ids, reading.cache, self._asks(rows, 0))
        return self._actions(logits, len(rows))

    def _asks(self, rows: Sequence[Sequence[int]], before: int) -> list[int]:
        """Places of the ask tokens of R rows that follow `before` tokens, R x (M + 1) of them."""
        asks = self._spec.interventions + 1
        ends = before + np.cumsum([len(row) for row in rows])
        return (ends[:, None] - asks + np.arange(asks)).ravel().tolist()

    def _actions(self, logits: Any, rows: int) -> NDArray[np.float64]:
        """Of logits (1, R x (M + 1), vocabulary) those of the actions, (R, M + 1, 3)."""
        return self.tokens.answers(logits[0]).double().cpu().numpy().reshape(rows, -1, 3)

    def _forward(self, ids: Sequence[int], cache: Any, keep: Sequence[int]) -> tuple[Any, Any]:
        import torch

        device = self.network.device
        given = torch.tensor([list(ids)], device=device)
        kept = torch.tensor(list(keep), device=device)
        output = self.network(given, cache=cache, use_cache=True, logits_to_keep=kept)
        return output.logits, output.cache


def merge(network: Any, weights: Mapping[str, NDArray[Any]], scaling: float) -> None:
    """Put trained arrays into a network, in place: whole parameters, or W + scaling B A.

    Raises:
        DataError: an array belongs to no part of this network, or has another shape.
    """
    import torch

    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, array in weights.items():
            if name.endswith(LORA_B):
                continue
            stem = _stem(name) if name.endswith(LORA_A) else name
            target = parameters.get(f"{stem}.weight" if name.endswith(LORA_A) else name)
            if name.endswith(LORA_A):
                a, b = (torch.from_numpy(weights[stem + end].astype(np.float32)) for end in (LORA_A, LORA_B))
                change = scaling * (b @ a)
            else:
                change = torch.from_numpy(array.astype(np.float32))
            if target is None or tuple(target.shape) != tuple(change.shape):
                found = "nothing" if target is None else f"shape {tuple(target.shape)}"
                raise DataError(f"lm: weights {name} of shape {tuple(change.shape)} fit {found} of the base model")
            change = change.to(target.device, target.dtype)
            target.add_(change) if name.endswith(LORA_A) else target.copy_(change)


def lowest_layer(weights: Mapping[str, NDArray[Any]]) -> int:
    """The lowest layer that these arrays change; 0 too where one belongs to no layer, or there are none."""
    found = [re.search(r"\blayers\.(\d+)\.", name) for name in weights]
    return min((int(match[1]) if match else 0 for match in found), default=0)


def _stem(name: str) -> str:
    return name.removesuffix(LORA_A).removesuffix(LORA_B)


def _spec(values: Mapping[str, Any]) -> RenderingSpec:
    known = {field.name for field in fields(RenderingSpec)}
    if set(values) - known:
        raise DataError(f"lm: rendering has unknown keys {sorted(set(values) - known)}; export the policy again")
    edges = tuple(tuple(float(edge) for edge in signal) for signal in values["edges"])
    exact = {"signals": tuple(values["signals"]), "edges": edges}
    if "offsets" in values:
        exact["offsets"] = tuple(float(offset) for offset in values["offsets"])
    return RenderingSpec(**{**values, **exact})
