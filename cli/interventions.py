"""The intervention model that a benchmark config names, with what it needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stopwise.cli.output import logs_path, sample_file
from stopwise.data.errors import UsageError
from stopwise.envs.arena.collection import RethinkerChoice

SAMPLES = "samples"


@dataclass(frozen=True)
class RetrieveChoice:
    """What the model `retrieve` searches."""

    corpus: str  # folder in BEIR layout, on which the logs were made
    logs: str = SAMPLES  # the trajectories that the signal table was computed from
    retriever: Literal["dense", "bm25"] = "dense"
    k: int = 5  # documents a query
    rethinker: RethinkerChoice = RethinkerChoice()


def make_intervention(
    name: str, uplift: str | None, branches: str | None, retrieve: RetrieveChoice | None, info: Any
) -> tuple[Any, Any]:
    """The model, and the features that the environment must use for it.

    Args:
        name: forbidden, noop, uplift, logged or retrieve.
        uplift: run folder of `stopwise train configs/uplift.yaml`, for the model of that name.
        branches: Parquet file of `stopwise collect --branch`, or "samples", for `logged`.
        retrieve: corpus, logs and rethinker, for `retrieve`.
        info: `SignalInfo` of the table that is replayed.

    Raises:
        UsageError: something that the model needs is not named, or something is named that another model needs.
    """
    from stopwise.envs.interventions import intervention_model
    from stopwise.signals.features import FeatureSpec

    given = {"uplift": uplift, "logged": branches, "retrieve": retrieve}
    keys = {"uplift": "uplift", "logged": "branches", "retrieve": "retrieve"}
    for model, value in given.items():
        if value is not None and model != name:
            raise UsageError(f"{keys[model]}: is for intervention {model}, found intervention {name}; leave it out")
        if value is None and model == name:
            raise UsageError(f"intervention {name}: needs the key `{keys[name]}`; see configs/benchmark.yaml")
    if uplift is not None:
        from stopwise.envs.uplift import Uplift, read_fit

        folder = Path(uplift)
        fit = read_fit(folder / "uplift.json" if folder.is_dir() else folder)
        return Uplift(fit), fit.features
    if branches is not None:
        from stopwise.envs.arena.branch_store import read_branches
        from stopwise.envs.logged import Logged

        return Logged(
            read_branches(sample_file("branches.parquet") if branches == SAMPLES else Path(branches))
        ), FeatureSpec(())
    if retrieve is not None:
        return _retrieve(retrieve, info), FeatureSpec(())
    return intervention_model(name), FeatureSpec(())


def _retrieve(choice: RetrieveChoice, info: Any) -> Any:
    from stopwise.data.corpus import read_corpus
    from stopwise.data.store import read_trajectories
    from stopwise.envs.arena.retrievers import BM25Retriever, DenseRetriever
    from stopwise.envs.arena.worker import make_rethinker
    from stopwise.envs.retrieve import Retrieve
    from stopwise.models.embedding_cache import CachedEncoder
    from stopwise.models.encoders import MINILM, SentenceTransformerEncoder

    encoder = None
    if info.encoder is not None or choice.retriever == "dense":
        model = MINILM if info.encoder is None or info.encoder.startswith(f"{MINILM}@") else info.encoder
        encoder = CachedEncoder(SentenceTransformerEncoder(model))
    documents = list(read_corpus(Path(choice.corpus)))
    if choice.retriever == "bm25":
        retriever: Any = BM25Retriever(documents)
    else:
        assert encoder is not None
        encoder.prefetch(document.passage for document in documents)
        retriever = DenseRetriever.build(documents, encoder)
    rethinker = make_rethinker(choice.rethinker, Path(choice.corpus), 0)
    return Retrieve(read_trajectories(logs_path(choice.logs)), retriever, rethinker, encoder, choice.k)
