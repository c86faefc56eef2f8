"""What a small LM costs beside its bare network: scoring an episode, one decision with the cache, training.

Each pair is timed in turns within one run, and the ratio is the median over the rounds; nothing else should be running.

    python benchmarks/lm_speed.py --out docs/results/lm_speed.json
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stopwise.cli.output import sample_file
from stopwise.controllers.base import Observation
from stopwise.controllers.guards import Guards
from stopwise.controllers.lm import BaseModel, SmallLM
from stopwise.controllers.rendering import DEFAULT_SIGNALS, RenderingSpec, Tokens, fit_edges
from stopwise.data.files import write_json
from stopwise.envs.interventions import Noop
from stopwise.envs.rewards import Reward
from stopwise.evaluation.record import provenance
from stopwise.models.causal_lm import load_causal_lm
from stopwise.models.smollm2 import SMOLLM2
from stopwise.signals.table import read_table
from stopwise.train.lm.config import LoraOptions
from stopwise.train.lm.episodes import make_episodes, sample_runs
from stopwise.train.lm.losses import exact_loss
from stopwise.train.lm.network import trainable
from stopwise.train.lm.scoring import action_logits


def ratio(ours: Callable[[], Any], bare: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Seconds of both, in turns, and the median of their ratios."""
    ours(), bare()  # what is made at the first call is not timed
    pairs = []
    for _ in range(rounds):
        times = []
        for call in (ours, bare):
            wait()
            started = time.perf_counter()
            call()
            wait()
            times.append(time.perf_counter() - started)
        pairs.append(times)
    found = np.array(pairs)
    return {
        "ratio": float(np.median(found[:, 0] / found[:, 1])),
        "ratios": [round(float(value), 4) for value in found[:, 0] / found[:, 1]],
        "seconds": float(np.median(found[:, 0])),
        "bare_seconds": float(np.median(found[:, 1])),
    }


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=SMOLLM2)
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32", help="of the weights; bfloat16 on a GPU")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    path = sample_file("signals.parquet")
    table = read_table(path).split("train")
    base = load_causal_lm(args.base, dtype=args.dtype)
    network = base.network
    spec = RenderingSpec(DEFAULT_SIGNALS, fit_edges(table, DEFAULT_SIGNALS), 2, 0.01)
    tokens = Tokens(spec, base.encode)
    sample = sample_runs(table, args.episodes, "speed")
    episodes = make_episodes(sample, tokens, Reward(), Guards(max_interventions=2), Noop())
    longest = max(episode.tokens for episode in episodes)
    ids = torch.zeros((len(episodes), longest), dtype=torch.long)
    for row, episode in enumerate(episodes):
        ids[row, : episode.tokens] = torch.tensor(episode.parts[0].ids)
    ids = ids.to(network.device)

    def bare_forward() -> None:
        with torch.inference_mode():
            network(ids, use_cache=False)

    def our_scoring() -> None:
        with torch.inference_mode():
            action_logits(network, episodes, tokens)

    scoring = ratio(our_scoring, bare_forward, args.rounds) | {"tokens": int(ids.numel()), "target": 1.15}
    scoring["tokens_a_second"] = scoring["tokens"] / scoring["seconds"]
    decision = decision_cost(args, base, spec, tokens, sample, episodes) | {"target": 1.3}
    training = training_cost(network, base, tokens, episodes, ids, args) if args.rounds else {}
    command = ["python", "benchmarks/lm_speed.py", "--base", args.base, "--dtype", args.dtype]
    config = {"episodes": args.episodes, "rounds": args.rounds, "threads": torch.get_num_threads()}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result = provenance([*command, "--out", str(args.out)], config, {"signals": path})
    write_json(args.out, result | {"device": device, "scoring": scoring, "decision": decision, "training": training})
    for name, part in (("scoring", scoring), ("decision", decision), ("training", training)):
        print(f"{name}: {part['ratio']:.3f} times the bare network, {part['tokens_a_second']:.0f} tokens a second")


def decision_cost(
    args: argparse.Namespace, base: Any, spec: RenderingSpec, tokens: Tokens, sample: Any, episodes: Any
) -> dict[str, Any]:
    """Decisions over one run, each with the rows so far in the cache, against bare passes over the same new tokens."""
    controller = SmallLM(None, {}, base=BaseModel(base.name, base.sha256), rendering=spec)
    network = controller.network.to(getattr(torch, args.dtype))
    index = int(np.argmax(sample.lengths))
    first, last = sample.offsets[index], sample.offsets[index + 1]
    rows = [sample.row(row) for row in range(first, last)]
    legal = np.array([True, True, True])
    size, header = spec.row_tokens, len(tokens.header)
    ids = torch.tensor([next(e for e in episodes if e.run == sample.episodes[index].id).parts[0].ids])
    ids = ids.to(network.device)

    def decide() -> None:
        controller.reset()
        for row in rows:
            controller.decide(Observation(row=row, features=None, legal=legal))

    def bare() -> None:
        with torch.inference_mode():
            cache = network(ids[:, :header], use_cache=True, logits_to_keep=1).cache
            for place in range(header, ids.shape[1], size):
                cache = network(ids[:, place : place + size], cache=cache, use_cache=True).cache

    found = ratio(decide, bare, args.rounds)
    count = len(rows)
    return found | {
        "decisions": count,
        "tokens_a_second": size * count / found["seconds"],
        "milliseconds_a_decision": 1e3 * found["seconds"] / count,
    }


def training_cost(
    network: Any, base: Any, tokens: Tokens, episodes: Any, ids: torch.Tensor, args: argparse.Namespace
) -> dict[str, Any]:
    """Forward and backward of the exact policy gradient against those of the network's own language-model loss."""
    learner = trainable(base, LoraOptions(), 0)

    def ours() -> None:
        logits = action_logits(learner, episodes, tokens)
        pairs = zip(logits, episodes, strict=True)
        torch.stack([exact_loss(row, episode.lattice)[0] for row, episode in pairs]).mean().backward()
        learner.zero_grad()

    def bare() -> None:
        learner(ids, labels=ids, use_cache=False).loss.backward()
        learner.zero_grad()

    found = ratio(ours, bare, max(1, args.rounds // 2))
    return found | {"tokens": int(ids.numel()), "tokens_a_second": ids.numel() / found["seconds"]}


if __name__ == "__main__":
    main()
