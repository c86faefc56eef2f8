"""Throughput of reasoning scored by a local language model, against the bare network on the same tokens.

    python benchmarks/score_reasoning.py --runs 12

The bare network makes one plain forward pass over the same conversations, in the same batches. Prints one JSON object.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.store import read_trajectories
from stopwise.models.local_lm import LocalLM
from stopwise.models.smollm2 import SMOLLM2
from stopwise.signals.scored_reasoning import ReasoningScorer


class Recording(LocalLM):
    """A local model that keeps the batches that it was given."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.batches: list[list[Sequence[int]]] = []

    def top_logprobs(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[NDArray[np.int64]], top_k: int
    ) -> list[NDArray[np.float32]]:
        """See `LocalLM.top_logprobs`."""
        self.batches.append(list(sequences))
        return super().top_logprobs(sequences, positions, top_k)

    def bare(self) -> float:
        """Seconds of plain forward passes over the recorded batches."""
        import torch

        network: Any = self._network
        started = time.perf_counter()
        with torch.inference_mode():
            for batch in self.batches:
                padded = torch.zeros((len(batch), max(map(len, batch))), dtype=torch.long)
                for row, sequence in enumerate(batch):
                    padded[row, : len(sequence)] = torch.tensor(sequence)
                network(padded.to(network.device), use_cache=False)
                if network.device.type == "cuda":
                    torch.cuda.synchronize()
        return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=Path(str(files("stopwise.data") / "samples/trajectories.parquet")))
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--runs", type=int, default=12)
    options = parser.parse_args(arguments)
    runs = list(islice(read_trajectories(options.logs), options.runs))
    model = Recording(options.model)
    list(ReasoningScorer(model, ":memory:").score(runs[:1]))  # loads the network
    model.batches.clear()
    started = time.perf_counter()
    list(ReasoningScorer(model, ":memory:").score(runs))
    scored = time.perf_counter() - started
    bare = model.bare()
    tokens = sum(len(sequence) for batch in model.batches for sequence in batch)
    result = {
        "model": model.id,
        "runs": len(runs),
        "thoughts": sum(step.kind == "search" for run in runs for step in run.steps),
        "tokens": tokens,
        "scored_tokens_per_second": tokens / scored,
        "bare_tokens_per_second": tokens / bare,
        "share_of_bare": bare / scored,
    }
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
