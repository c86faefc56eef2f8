"""Throughput of reasoning scored by a local language model, against the bare network on the same tokens.

    python benchmarks/score_reasoning.py --out docs/results/score_reasoning.json

The bare network makes one plain forward pass over the same conversations, in the same batches. Scoring is timed whole:
conversations rendered and tokenised, the passes, entropies, and the cache written. Both take turns, scoring first and
last: a round's ratio is the bare time over the mean of the scorings before and after it, so that a machine that gets
slower or faster meanwhile favours neither. The result is the median of the rounds, in wall-clock and in CPU time.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.files import write_json
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

    def bare(self, batches: Sequence[Sequence[Sequence[int]]]) -> None:
        """Plain forward passes over the batches."""
        import torch

        network: Any = self._network
        with torch.inference_mode():
            for batch in batches:
                padded = torch.zeros((len(batch), max(map(len, batch))), dtype=torch.long)
                for row, sequence in enumerate(batch):
                    padded[row, : len(sequence)] = torch.tensor(sequence)
                network(padded.to(network.device), use_cache=False)
                if network.device.type == "cuda":
                    torch.cuda.synchronize()


def timed(work: Callable[[], object]) -> NDArray[np.float64]:
    """Seconds of the clock and of the CPU, shape (2,)."""
    started = time.perf_counter(), time.process_time()
    work()
    return np.array([time.perf_counter() - started[0], time.process_time() - started[1]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=Path(str(files("stopwise.data") / "samples/trajectories.parquet")))
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write (default: standard output)")
    options = parser.parse_args(arguments)
    runs = list(islice(read_trajectories(options.logs), options.runs))
    model = Recording(options.model)

    def score() -> None:
        scorer = ReasoningScorer(model, ":memory:")
        list(scorer.score(runs))
        scorer.close()

    score()  # loads the network, and finds the batches
    batches = list(model.batches)
    scored, bare = [timed(score)], []
    for number in range(1, options.rounds + 1):
        bare.append(timed(lambda: model.bare(batches)))
        scored.append(timed(score))
        print(f"round {number} of {options.rounds}: {bare[-1][0]:.1f} s bare", file=sys.stderr, flush=True)
    ratios = np.array(bare) / ((np.array(scored)[:-1] + np.array(scored)[1:]) / 2)  # (rounds, 2)
    tokens = sum(len(sequence) for batch in batches for sequence in batch)
    result = {
        "command": f"python benchmarks/score_reasoning.py --runs {options.runs} --rounds {options.rounds}",
        "model": model.id,
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "runs": len(runs),
        "searches": sum(len(run.search_steps) for run in runs),
        "tokens": tokens,
        "batches": len(batches),
        "scored_tokens_per_second": tokens / float(np.median(np.array(scored)[:, 0])),
        "bare_tokens_per_second": tokens / float(np.median(np.array(bare)[:, 0])),
        "share_of_bare": float(np.median(ratios[:, 0])),
        "share_of_bare_by_cpu_time": float(np.median(ratios[:, 1])),
        "share_of_bare_by_round": [round(float(ratio), 4) for ratio in ratios[:, 0]],
    }
    if options.out is None:
        print(json.dumps(result, indent=2))
    else:
        write_json(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
