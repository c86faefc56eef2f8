"""Language models in this process, through transformers: a `ChatModel` that also scores texts.

The log-probabilities of a reply are those of its text in the tokenizer's own segmentation, whichever way it was
sampled: so they are what teacher forcing finds on the same text, and a log needs to hold no tokens. Temperature,
nucleus and schema decide what is drawn and are not in them: where a schema leaves one token open, its probability is
the one that the network gives it, and not 1.
"""

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import UsageError
from stopwise.data.files import sha256_file
from stopwise.models.causal_lm import load_causal_lm
from stopwise.models.chat import (
    Abilities,
    ChatFailure,
    ChatReply,
    ChatRequest,
    Message,
    TokenLogprobs,
    Usage,
    check_request,
)
from stopwise.models.constrained import Constraint, Constraints
from stopwise.models.smollm2 import GGUF_SHA256, SMOLLM2

MAX_TOP = 100  # log-probabilities a position at most


class LocalLM:
    """A causal language model; the network is loaded at the first call. Calls from several threads take turns."""

    def __init__(self, model: str = SMOLLM2, *, device: str | None = None, dtype: str = "float32") -> None:
        """Choose the model.

        Args:
            model: ``SmolLM2-135M-Instruct`` (the packaged weights), a Hugging Face id, or a folder.
            device: torch device; None is CUDA where there is one, else the CPU.
            dtype: of the weights in memory, a torch name; log-probabilities are float32 in any case.
        """
        self.model = model
        self._device = device
        self._dtype = dtype
        self._lock = threading.RLock()
        self._network: Any = None
        self._tokenizer: Any = None
        self._constraints: Constraints | None = None  # made when the first reply is held to a schema
        self._id = f"{SMOLLM2}@{GGUF_SHA256[:12]}" if model == SMOLLM2 else _identify(model)

    @property
    def id(self) -> str:
        """Model name, with the start of the weights' hash where they lie in a local folder."""
        return self._id

    @property
    def abilities(self) -> Abilities:
        """Log-probabilities, seeds, and replies held to a JSON schema, whose free texts are to have bounds."""
        return Abilities(top_logprobs=MAX_TOP, structured="schema", bounded=True, seed=True)

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together that the network was made for."""
        with self._lock:
            self._load()
            return int(self._network.config.max_position_embeddings)

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatModel.complete`. The same request gives the same reply, sampled or not.

        With a schema, the reply is the beginning of a JSON value that the schema allows: all of it where the reply
        ends with ``stop``, and as much as `max_tokens` leave room for where it ends with ``length``.

        Raises:
            ChatFailure: ``refused``, when prompt and reply would not fit into the context; ``empty choice``.
            UsageError: the model or what runs it is not there, or the schema is not one that it can be held to.
        """
        check_request(self, request)
        started = time.monotonic()
        with self._lock:
            self._load()
            held = None if request.schema is None else self._constrain(request.schema)
            prompt_text = self.render(request.messages, begin_reply=True)
            prompt = self._encode(prompt_text)
            if len(prompt) + request.max_tokens > self.context:
                raise ChatFailure(
                    "refused",
                    f"{self.id}: the prompt has {len(prompt)} tokens; with max_tokens = {request.max_tokens} that is "
                    f"more than the context of {self.context}",
                )
            ids, rows, finish = self._generate(prompt, request, held)
            text, whole = _cut(self._decode(ids), request.stop)
            if not text.strip():
                raise ChatFailure("empty choice", f"{self.id}: the reply is empty ({finish})", Usage(len(prompt)))
            logprobs = self._logprobs(prompt, text, ids, rows, request) if request.top_logprobs else None
        return ChatReply(
            text=text,
            finish=finish if whole else "stop",
            model=self.id,
            usage=Usage(len(prompt), 0, len(ids)),
            logprobs=logprobs,
            seconds=time.monotonic() - started,
        )

    def render(self, messages: Sequence[Message], *, begin_reply: bool = False) -> str:
        """The conversation as the text that the network reads.

        Args:
            messages: of the conversation.
            begin_reply: end with the beginning of a reply.

        Raises:
            UsageError: the model has no chat template.
        """
        with self._lock:
            self._load()
            if self._tokenizer.chat_template is None:
                raise UsageError(f"model {self.id}: has no chat template; name a model that was trained to chat")
            rows = [{"role": message.role, "content": message.content} for message in messages]
            return self._tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=begin_reply)

    def encode_with_spans(self, text: str) -> tuple[list[int], NDArray[np.int64]]:
        """Token ids of a rendered text, and the characters that each covers, shape (tokens, 2)."""
        with self._lock:
            self._load()
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return encoded["input_ids"], np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)

    def top_logprobs(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[NDArray[np.int64]], top_k: int
    ) -> list[NDArray[np.float32]]:
        """One forward pass: the most probable tokens at chosen positions, given what stands before them.

        Args:
            sequences: token ids of n texts; padded to the longest, so they should be of similar length.
            positions: for each, the P positions wanted, each at least 1.
            top_k: tokens a position.

        Returns:
            For each text, natural-log probabilities (P, top_k), highest first.
        """
        import torch

        with self._lock, torch.inference_mode():
            self._load()
            length = max(map(len, sequences))
            padded = torch.zeros((len(sequences), length), dtype=torch.long)
            for row, sequence in enumerate(sequences):
                padded[row, : len(sequence)] = torch.tensor(sequence)
            # the output layer is a fifth of a small network: only where somebody wants to know
            wanted = np.unique(np.concatenate(positions)) - 1
            keep = torch.from_numpy(wanted).to(self._network.device)
            # padding stands to the right, where a causal network does not look
            logits = self._network(padded.to(self._network.device), logits_to_keep=keep, use_cache=False).logits
            found = []
            for row, places in enumerate(positions):
                rows = logits[row, np.searchsorted(wanted, places - 1)].float()
                top = rows.topk(min(top_k, rows.shape[-1]), dim=-1).values - rows.logsumexp(dim=-1, keepdim=True)
                found.append(top.cpu().numpy())
            return found

    def _generate(
        self, prompt: list[int], request: ChatRequest, held: Constraint | None
    ) -> tuple[list[int], list["_Row"], str]:
        """Token ids without the end, their log-probabilities if wanted, and why it ended."""
        import torch

        chance = np.random.default_rng(_seed(request))
        ends = self._ends()
        ids: list[int] = []
        rows: list[_Row] = []
        with torch.inference_mode():
            given, past = torch.tensor([prompt], device=self._network.device), None
            while len(ids) < request.max_tokens:
                output = self._network(given, cache=past, use_cache=True, logits_to_keep=1)
                past = output.cache
                row = output.logits[0, -1].float().log_softmax(-1).cpu().numpy()
                token = _draw(row if held is None else held.hold(row), request, chance)
                if token in ends:
                    return ids, rows, "stop"
                ids.append(token)
                if request.top_logprobs:
                    rows.append(_row(row, token, request.top_logprobs))
                if held is not None and held.take(token):
                    return ids, rows, "stop"
                if request.stop and not _cut(self._decode(ids), request.stop)[1]:
                    return ids, rows, "stop"
                given = torch.tensor([[token]], device=self._network.device)
        return ids, rows, "length"

    def _logprobs(
        self, prompt: list[int], text: str, ids: list[int], rows: list["_Row"], request: ChatRequest
    ) -> tuple[TokenLogprobs, ...]:
        """One entry a token of the text as the tokenizer cuts it; scored again where it was sampled in other pieces."""
        import torch

        kept, spans = self.encode_with_spans(text)
        if kept != ids[: len(kept)]:
            with torch.inference_mode():
                given = torch.tensor([prompt + kept], device=self._network.device)
                keep = torch.arange(len(prompt) - 1, given.shape[1] - 1, device=self._network.device)
                logits = self._network(given, logits_to_keep=keep, use_cache=False).logits[0]
                scores = logits.float().log_softmax(-1).cpu().numpy()
            rows = [_row(score, token, request.top_logprobs) for score, token in zip(scores, kept, strict=True)]
        entries, reached = [], 0
        for (start, end), (logprob, top) in zip(spans, rows, strict=False):  # beyond the text, the stop was generated
            entries.append(TokenLogprobs(text[max(start, reached) : end], logprob, top))
            reached = max(reached, int(end))  # a character of several tokens stands with the first
        return tuple(entries)

    def _constrain(self, schema: Mapping[str, Any]) -> Constraint:
        if self._constraints is None:
            width = self._network.get_output_embeddings().weight.shape[0]
            self._constraints = Constraints(self._tokenizer, width, self._ends(), self.id)
        return self._constraints.begin(schema)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _ends(self) -> set[int]:
        configured = self._network.generation_config.eos_token_id
        ends = configured if isinstance(configured, list) else [configured]
        return {end for end in (*ends, self._tokenizer.eos_token_id) if end is not None}

    def _load(self) -> None:
        if self._network is not None:
            return
        loaded = load_causal_lm(self.model, dtype=self._dtype, device=self._device)
        self._tokenizer, self._network = loaded.tokenizer, loaded.network


def _draw(row: NDArray[np.float32], request: ChatRequest, chance: np.random.Generator) -> int:
    """The next token: the likeliest, or one drawn from the nucleus of the tempered distribution."""
    if request.temperature == 0:
        return int(row.argmax())
    order = np.argsort(-row, kind="stable")
    tempered = row[order].astype(np.float64) / request.temperature
    share = np.exp(tempered - tempered.max())
    mass = np.cumsum(share / share.sum())
    nucleus = int(np.searchsorted(mass, request.top_p, side="left")) + 1 if request.top_p < 1 else len(mass)
    nucleus = min(nucleus, int(np.count_nonzero(share)))  # whatever rounding does, never a token that may not follow
    return int(
        order[min(int(np.searchsorted(mass[:nucleus], chance.random() * mass[nucleus - 1], "right")), nucleus - 1)]
    )


def _seed(request: ChatRequest) -> int:
    return int.from_bytes(hashlib.sha256(f"{request.seed}/{request.sample}".encode()).digest()[:8], "big")


def _cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first stop, and whether that is all of it."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], False) if places else (text, True)


_Row = tuple[float, tuple[float, ...]]  # log-probability of the token, and those of the likeliest, highest first


def _row(logprobs: NDArray[np.float32], token: int, count: int) -> _Row:
    highest = np.partition(logprobs, -count)[-count:] if count < len(logprobs) else logprobs
    return float(logprobs[token]), tuple(float(value) for value in -np.sort(-highest))


def _identify(model: str) -> str:
    weights = Path(model) / "model.safetensors"
    return f"{Path(model).name}@{sha256_file(weights)[:12]}" if weights.exists() else model
