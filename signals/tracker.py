"""The signal tracker: the one definition of the per-step signals, in the log reader and in the live agent alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import UsageError
from stopwise.data.records import Criterion, Document, Step
from stopwise.models.encoders import Encoder
from stopwise.signals.calibration import Calibrations
from stopwise.signals.clustering import average_linkage, cosine_distances, hdbscan
from stopwise.signals.coverage import CoverageJudge, CoverageThresholds, EncoderJudge, GoldJudge
from stopwise.signals.definitions import BY_NAME, SIGNALS, with_prerequisites
from stopwise.signals.entropy import reasoning_entropy, searching_entropy

DEFAULT_CUT = 0.55  # cosine distance for MiniLM; `stopwise signals` fits it on training questions where it can
# for MiniLM, as fitted on the 447 sample runs of training questions; fitted anew where the criteria have gold
DEFAULT_COVERAGE = CoverageThresholds(partial=0.53, full=0.98)


@dataclass(frozen=True, slots=True)
class SignalConfig:
    """How the signals are computed; stored with every table and every policy package."""

    signals: tuple[str, ...] = SIGNALS  # names to compute
    se: Literal["agglomerative", "hdbscan"] = "agglomerative"  # clustering for SE
    se_cut: float = DEFAULT_CUT  # cosine distance at which average linkage is cut
    se_weights: Literal["uniform", "scores"] = "uniform"  # a document's share of its step
    pairing: Literal["read_docs", "same_step"] = "read_docs"  # RE of a thought with SE of what it had read, or found
    coverage_judge: Literal["encoder", "llm", "gold"] = "encoder"
    coverage: CoverageThresholds = DEFAULT_COVERAGE  # of judge `encoder`
    coverage_model: str | None = None  # of judge `llm`: the model and the versions of its prompts


@dataclass(frozen=True, slots=True)
class SignalRow:
    """The signals after one search step."""

    t: int  # 1 for the first search step
    values: Mapping[str, float]  # what is there
    nulls: Mapping[str, str]  # name -> reason for what is not


@dataclass(slots=True)
class _Seen:
    """What the run has shown so far."""

    ids: set[str] = field(default_factory=set)
    contents: list[NDArray[np.float32]] = field(default_factory=list)  # embeddings of new documents, a block a step
    queries: list[NDArray[np.float64]] = field(default_factory=list)  # mean query embedding of each step with one
    steps_since_new: int = 0


class SignalTracker:
    """Follows one run. `observe` takes its steps in order and returns a row for each search step.

    A page opened after the decision at t joins the seen set and Cov at the next search step, before that step's
    own documents: else features would know the future.
    """

    def __init__(
        self,
        config: SignalConfig,
        question: str,
        *,
        criteria: Sequence[Criterion] | None = None,
        agent: str | None = None,
        encoder: Encoder | None = None,
        calibrations: Calibrations | None = None,
        judge: CoverageJudge | None = None,
    ) -> None:
        """Start a run.

        Args:
            config: what to compute and how.
            question: the question that the agent works on.
            criteria: what it asks for; None makes Cov null.
            agent: name under which calibrations are looked up.
            encoder: a (cached) encoder; None makes the signals that need one null.
            calibrations: fitted RE-SE lines; None makes the residual null.
            judge: of this run's coverage, with judge ``llm``; see `stopwise.signals.coverage_llm`.

        Raises:
            UsageError: the judge is ``llm`` and none is given.
        """
        self._config = config
        self._wanted = with_prerequisites(config.signals)
        self._agent = agent or ""
        self._encoder = encoder
        self._calibrations = calibrations or {}
        self._seen = _Seen()
        self._opened: list[Document] = []  # since the last search step
        self._t = 0
        self._previous_se: tuple[float | None, str | None] = (None, "first step")
        self._previous_cov = 0.0
        needs = {need for name in self._wanted for need in BY_NAME[name].needs}
        self._embed_queries = "query_embedding" in needs and encoder is not None
        self._embed_documents = "document_embedding" in needs and encoder is not None
        self._question = _wide(encoder.encode([question]))[0] if self._embed_queries and encoder else None
        self._judge, self._no_judge = self._make_judge(criteria, judge)

    def observe(self, step: Step) -> SignalRow | None:
        """Take in the run's next step.

        Returns:
            The signals if it is a search step, else None.
        """
        if step.kind != "search":
            self._opened.extend(step.documents)
            return None
        self._t += 1
        row = _Row(self._wanted)
        documents = unique_documents(step.documents)
        opened, self._opened = self._opened, []
        self._seen.ids.update(document.id for document in opened)
        new = [document.id not in self._seen.ids for document in documents]
        self._novelty(row, new)
        self._scores(row, documents)
        self._queries(row, step.queries)
        se = self._contents(row, documents, new)
        self._reasoning(row, step, se)
        self._coverage(row, [*opened, *documents])
        self._seen.ids.update(document.id for document in documents)
        self._previous_se = se
        values = {name: row.values[name] for name in self._config.signals if name in row.values}
        nulls = {name: row.nulls[name] for name in self._config.signals if name not in row.values}
        return SignalRow(self._t, values, nulls)

    def _novelty(self, row: "_Row", new: list[bool]) -> None:
        if new:
            row.put("Nov", sum(new) / len(new))
        else:
            row.null("Nov", "no documents")
        self._seen.steps_since_new = 0 if any(new) else self._seen.steps_since_new + 1
        row.put("steps_since_new", float(self._seen.steps_since_new))

    def _scores(self, row: "_Row", documents: Sequence[Document]) -> None:
        scores = _scores_of(documents)
        if scores is not None:
            row.put("score_top", float(scores.max()))
            row.put("score_gap", float(scores.max() - scores.min()))
        else:
            row.null_all(("score_top", "score_gap"), "no scores" if documents else "no documents")

    def _queries(self, row: "_Row", queries: Sequence[str]) -> None:
        names = ("Div", "Sim", "query_repetition")
        if self._encoder is None:
            return row.null_all(names, "no encoder")
        if not self._embed_queries:
            return None
        if not queries:
            # the last known query stays the one to compare with: an empty turn moved nowhere
            return row.null_all(names, "no query")
        query = _mean_direction(_wide(self._encoder.encode(list(queries))))
        earlier = self._seen.queries
        assert self._question is not None
        row.put("Sim", float(query @ self._question))
        if earlier:
            row.put("Div", 1.0 - float(query @ earlier[-1]))
            row.put("query_repetition", max(float(query @ other) for other in earlier))
        else:
            row.null_all(("Div", "query_repetition"), "first step")
        earlier.append(query)
        return None

    def _contents(self, row: "_Row", documents: Sequence[Document], new: list[bool]) -> tuple[float | None, str | None]:
        """Signals of the documents' embeddings; returns SE or the reason for its absence."""
        names = ("SE", "SE_norm", "content_novelty", "redundancy")
        reason = None
        texts = [document_text(document) for document in documents]
        if self._encoder is None:
            reason = "no encoder"
        elif not documents:
            reason = "no documents"
        elif not all(texts):
            reason = "no texts"
        elif not self._embed_documents:
            reason = "not asked for"
        if reason is not None or self._encoder is None:
            row.null_all(names, reason or "no encoder")
            return None, reason
        embeddings = self._encoder.encode(texts)
        distances = cosine_distances(embeddings)
        count = len(documents)
        se = self._searching_entropy(documents, embeddings, distances)
        if se is None:
            row.null_all(("SE", "SE_norm"), "no scores")
        else:
            row.put("SE", se)
        if count == 1:
            row.null_all(("SE_norm", "redundancy"), "single document")
        else:
            if se is not None:
                row.put("SE_norm", se / float(np.log(count)))
            row.put("redundancy", 1.0 - float(distances.sum()) / (count * (count - 1)))
        if not any(new):
            row.put("content_novelty", 0.0)
        elif not self._seen.contents:
            row.null("content_novelty", "first step")
        else:
            fresh = _wide(embeddings[new])
            nearest = np.max([(fresh @ _wide(block).T).max(axis=1) for block in self._seen.contents], axis=0)
            row.put("content_novelty", float(1.0 - nearest.mean()))
        if any(new):
            self._seen.contents.append(embeddings[new])
        return se, "no scores" if se is None else None

    def _searching_entropy(
        self, documents: Sequence[Document], embeddings: NDArray[np.float32], distances: NDArray[np.float64]
    ) -> float | None:
        """SE, or None where scores shall weigh the documents and are missing."""
        weighted = self._config.se_weights == "scores"
        scores = _scores_of(documents) if weighted else None
        if weighted and scores is None:
            return None
        labels = (
            hdbscan(embeddings) if self._config.se == "hdbscan" else average_linkage(distances, self._config.se_cut)
        )
        return searching_entropy(labels, scores)

    def _reasoning(self, row: "_Row", step: Step, se: tuple[float | None, str | None]) -> None:
        value, reason = reasoning_entropy(step.logprobs)
        if value is None or step.logprobs is None:
            row.null_all(("RE", "residual", "residual_z", "RE_z"), reason or "no logprobs")
            return
        row.put("RE", value)
        paired, reason = self._previous_se if self._config.pairing == "read_docs" else se
        calibration = self._calibrations.get((self._agent, step.logprobs.source))
        if calibration is None or calibration.re_mean is None or not calibration.re_sigma:
            row.null("RE_z", "not calibrated")
        else:
            row.put("RE_z", (value - calibration.re_mean) / calibration.re_sigma)
        if paired is None:
            row.null_all(("residual", "residual_z"), reason or "no documents")
        elif calibration is None:
            row.null_all(("residual", "residual_z"), "not calibrated")
        else:
            residual = calibration.residual(paired, value)
            row.put("residual", residual)
            if calibration.sigma > 0:
                row.put("residual_z", residual / calibration.sigma)
            else:
                row.null("residual_z", "not calibrated")

    def _coverage(self, row: "_Row", documents: Sequence[Document]) -> None:
        if self._judge is None:
            row.null_all(("Cov", "coverage_gain"), self._no_judge)
            return
        statuses = self._judge.update(documents)
        if len(statuses) == 0:  # a language model that could not list them yet
            row.null_all(("Cov", "coverage_gain"), "no criteria")
            return
        coverage = float(statuses.mean())
        row.put("Cov", coverage)
        row.put("coverage_gain", coverage - self._previous_cov)
        self._previous_cov = coverage

    def _make_judge(
        self, criteria: Sequence[Criterion] | None, given: CoverageJudge | None
    ) -> tuple[CoverageJudge | None, str]:
        if "Cov" not in self._wanted:
            return None, "not asked for"
        if self._config.coverage_judge == "llm":
            if given is None:
                raise UsageError(
                    "signals: Cov by the judge `llm` needs a language model; give one, or use the judge `encoder`"
                )
            return given, ""
        if not criteria:
            return None, "no criteria"
        if self._config.coverage_judge == "gold":
            known = all(criterion.gold_ids is not None for criterion in criteria)
            return (GoldJudge(criteria), "") if known else (None, "no gold criteria")
        if self._encoder is None:
            return None, "no encoder"
        return EncoderJudge(criteria, self._encoder, self._config.coverage), ""


class _Row:
    """Values and reasons of one step while they are being computed."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self.values: dict[str, float] = {}
        self.nulls: dict[str, str] = dict.fromkeys(wanted, "not asked for")

    def put(self, name: str, value: float) -> None:
        if name in self._wanted:
            self.values[name] = value

    def null(self, name: str, reason: str) -> None:
        if name in self._wanted:
            self.nulls[name] = reason

    def null_all(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            self.null(name, reason)


def document_text(document: Document) -> str:
    """What is embedded for a document: its title and its text; empty when it has neither."""
    return ". ".join(part for part in (document.title, document.text) if part)


def unique_documents(documents: Sequence[Document]) -> list[Document]:
    """One document an id, the first of each, in order."""
    first: dict[str, Document] = {}
    for document in documents:
        first.setdefault(document.id, document)
    return list(first.values())


def _scores_of(documents: Sequence[Document]) -> NDArray[np.float64] | None:
    """Retrieval scores, shape (K,); None where there is no document, or one without a finite score."""
    scores = np.array([np.nan if d.score is None else d.score for d in documents], dtype=np.float64)
    return scores if len(scores) and bool(np.isfinite(scores).all()) else None


def _wide(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    return rows.astype(np.float64)


def _mean_direction(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    mean = rows.mean(axis=0)
    norm = float(np.sqrt(mean @ mean))
    return mean / norm if norm > 0 else mean
