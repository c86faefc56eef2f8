"""Make the sample trajectories that are shipped with stopwise: scripted agents on a generated world.

    python benchmarks/make_samples.py --out data/samples/trajectories.parquet

The same options give the same runs. Nothing is downloaded: the encoder is the packaged all-MiniLM-L6-v2.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stopwise.data.corpus import read_corpus, read_queries
from stopwise.data.records import Trajectory
from stopwise.data.store import write_trajectories
from stopwise.data.world.generate import WorldConfig, write_world
from stopwise.envs.arena.kinds import KINDS
from stopwise.envs.arena.loop import LoopConfig
from stopwise.envs.arena.population import figures, run_population, sample_queries
from stopwise.envs.arena.puzzle import WorldReader
from stopwise.envs.arena.retrievers import DenseRetriever
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import Encoder, SentenceTransformerEncoder

SAMPLE_KINDS = ("chaser", "verifier", "rephraser")


def sample_trajectories(
    encoder: Encoder,
    kinds: Sequence[str] = SAMPLE_KINDS,
    questions: int = 100,
    world: WorldConfig | None = None,
) -> list[Trajectory]:
    """Run every kind of agent on the same questions of a freshly made world."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "world"
        write_world(folder, world or WorldConfig())
        documents = list(read_corpus(folder))
        queries = sample_queries(read_queries(folder), questions)
    retriever = DenseRetriever.build(documents, encoder)
    chosen = [KINDS[kind] for kind in kinds]
    return list(run_population(chosen, queries, WorldReader(documents), retriever, LoopConfig()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the sample; prints what it is like."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Parquet file to write")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(SAMPLE_KINDS))
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--documents", type=int, default=WorldConfig().documents)
    parser.add_argument("--seed", type=int, default=WorldConfig().seed)
    options = parser.parse_args(arguments)

    world = WorldConfig(documents=options.documents, seed=options.seed)
    # a cache of its own: what another command left in a shared one must not decide a tie
    encoder = CachedEncoder(SentenceTransformerEncoder(device="cpu"), ":memory:")
    trajectories = sample_trajectories(encoder, options.kinds, options.questions, world)
    write_trajectories(options.out, trajectories)
    print(figures(trajectories), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
