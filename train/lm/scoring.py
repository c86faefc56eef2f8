"""Forward passes over episodes: the logits of the three actions at every state's ask token."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from stopwise.controllers.base import softmax
from stopwise.controllers.rendering import Tokens
from stopwise.envs.lattice import masked
from stopwise.models.trunk import FrozenTrunk, kernel_length
from stopwise.train.lm.episodes import LmEpisode


def action_logits(
    network: Any, episodes: Sequence[LmEpisode], tokens: Tokens, trunk: FrozenTrunk | None = None
) -> list[torch.Tensor]:
    """Logits of the actions, one forward pass for all episodes.

    Args:
        network: a causal language model, or a wrapper of one (peft, distributed).
        episodes: to be scored together; padded to the longest, so they should be of similar length.
        tokens: the rendering in the network's tokens.
        trunk: of this network, where its lower layers are frozen.

    Returns:
        For each episode float32 (T, M + 1, 3), with gradients where they are on.
    """
    parts = [part for episode in episodes for part in episode.parts]
    longest = kernel_length(max(len(part.ids) for part in parts))
    device = next(network.parameters()).device
    asks = tokens.ask_positions(max(part.rows for part in parts))
    # the output layer is a fifth of a small network: only where somebody asks. Padding stands to the right, where a
    # causal network does not look, so no attention mask is needed.
    keep = torch.from_numpy(asks.ravel()).to(device)
    if trunk is None:
        ids = torch.zeros((len(parts), longest), dtype=torch.long)
        for row, part in enumerate(parts):
            ids[row, : len(part.ids)] = torch.tensor(part.ids)
        logits = network(ids.to(device), logits_to_keep=keep, use_cache=False).logits
    else:
        hidden = pad_sequence([trunk.hidden(part.ids) for part in parts], batch_first=True)
        hidden = pad(hidden, (0, 0, 0, longest - hidden.shape[1]))
        with trunk.top():
            logits = network(inputs_embeds=hidden, logits_to_keep=keep, use_cache=False).logits
    # float32 before the softmax, whatever the network computes in
    chosen = tokens.answers(logits).reshape(len(parts), *asks.shape, 3)
    found, place = [], iter(range(len(parts)))
    for episode in episodes:
        pieces = [chosen[next(place), part.skip : part.rows] for part in episode.parts]
        found.append(torch.cat(pieces) if len(pieces) > 1 else pieces[0])
    return found


def policies(
    network: Any,
    episodes: Sequence[LmEpisode],
    tokens: Tokens,
    trunk: FrozenTrunk | None = None,
    *,
    batch_tokens: int = 8192,
) -> Iterator[NDArray[np.float64]]:
    """Probabilities (T, M + 1, C + 1, 3) after the masks, for each episode, in order, without gradients.

    Args:
        network: as for `action_logits`.
        episodes: any number.
        tokens: the rendering.
        trunk: as for `action_logits`.
        batch_tokens: tokens of one pass, padding included; it bounds the memory.
    """
    order = sorted(range(len(episodes)), key=lambda index: episodes[index].tokens)
    found: dict[int, NDArray[np.float64]] = {}
    training = network.training
    network.eval()
    try:
        for batch in _batches(order, episodes, batch_tokens):
            with torch.inference_mode():
                logits = action_logits(network, [episodes[index] for index in batch], tokens, trunk)
            for index, row in zip(batch, logits, strict=True):
                legal = episodes[index].lattice.legal
                found[index] = masked(softmax(row.double().cpu().numpy()), legal)
    finally:
        network.train(training)
    return (found[index] for index in range(len(episodes)))


def _batches(order: Sequence[int], episodes: Sequence[LmEpisode], limit: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in order:  # ascending, so the newest is the longest
        if batch and (len(batch) + 1) * episodes[index].tokens > limit:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
