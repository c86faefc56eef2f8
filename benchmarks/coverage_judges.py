"""How far the coverage judges agree with gold coverage, on held-out questions of the sample logs.

    python benchmarks/coverage_judges.py --out docs/results/coverage_judges.json

The thresholds of the judge ``encoder`` are fitted on all training questions, by the least squared error of the status
as `stopwise signals` fits them, and for comparison by the highest kappa. Both judges are compared with gold on test
questions: each criterion after each search step is one observation. Reported are the share of equal statuses, Cohen's
kappa with linear weights over the three statuses, and the AUROC of "covered at least in part", with 95% intervals by
resampling questions. The encoder is judged on all test questions; the judge ``llm`` on a fixed part that it can be run
on in minutes, and the encoder on that same part beside it. Replies of the language model and embeddings are cached, so
an interrupted call goes on where it was.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.corpus import Query
from stopwise.data.files import write_json
from stopwise.data.records import Criterion, Trajectory
from stopwise.data.splits import split_of
from stopwise.data.store import read_trajectories
from stopwise.envs.arena.population import sample_queries
from stopwise.evaluation.agreement import confusions as pair_counts
from stopwise.evaluation.agreement import disagreement, share_equal, weighted_kappa, with_interval
from stopwise.evaluation.auroc import pooled
from stopwise.evaluation.bootstrap import QuestionBootstrap
from stopwise.evaluation.record import provenance
from stopwise.models.chat_client import ChatClient
from stopwise.models.embedding_cache import CachedEncoder
from stopwise.models.encoders import SentenceTransformerEncoder
from stopwise.models.ledger import Ledger
from stopwise.models.local_lm import LocalLM
from stopwise.models.response_cache import ResponseCache
from stopwise.models.smollm2 import SMOLLM2
from stopwise.signals.compute import coverage_thresholds
from stopwise.signals.coverage import CoverageJudge, CoverageThresholds, EncoderJudge, GoldJudge, document_sentences
from stopwise.signals.coverage_llm import LLMCoverage

SAMPLES = Path(str(files("stopwise.data") / "samples"))
STATUSES = (0.0, 0.5, 1.0)  # uncovered, partial, full
COST = disagreement(3, "linear")  # two statuses apart counts as one


@dataclass(frozen=True, slots=True)
class Judged:
    """N observations: a criterion after a step."""

    question: NDArray[np.int64]  # (N,) code of the question
    status: NDArray[np.float64]  # (N,) the judge's
    gold: NDArray[np.float64]  # (N,)
    score: NDArray[np.float64]  # (N,) what the status was made of: a cosine, or the status itself


def tell(text: str) -> None:
    """Progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, judge, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=SAMPLES / "trajectories.parquet")
    parser.add_argument("--model", default=SMOLLM2, help="of the judge llm: a local language model")
    parser.add_argument("--questions", type=int, default=12, help="test questions for the judge llm; 0 leaves it out")
    parser.add_argument("--agent", default="chaser", help="whose runs the judge llm is run on")
    parser.add_argument("--steps", type=int, default=8, help="first search steps of those runs")
    parser.add_argument("--max-tokens", type=int, default=96, help="of a reply of the language model")
    parser.add_argument("--cache", type=Path, help="embedding cache (default: below ~/.cache/stopwise)")
    parser.add_argument("--replies", type=Path, help="cache of replies (default: below ~/.cache/stopwise)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)

    runs = list(read_trajectories(options.logs))
    training = [run for run in runs if split_of(run.question_id) == "train"]
    held_out = [run for run in runs if split_of(run.question_id) == "test"]
    encoder = CachedEncoder(SentenceTransformerEncoder(), options.cache)
    encoder.prefetch(texts_of([*training, *held_out]), lambda done, total: tell(f"embedding {done} of {total}"))
    thresholds = coverage_thresholds(training, encoder)
    if thresholds is None:
        parser.error("--logs: too few training questions have criteria with gold")
    tell(f"fitted on {len(training)} training runs: {thresholds}")

    def by_encoder(run: Trajectory) -> EncoderJudge:
        return EncoderJudge(run.criteria or (), encoder, thresholds)

    most_kappa = highest_kappa(judge_runs(training, by_encoder))
    tell(f"with the highest kappa: {most_kappa}")
    whole = judge_runs(held_out, by_encoder)

    asked = {run.question_id: Query(run.question_id, run.question) for run in held_out}
    chosen = {query.id for query in sample_queries(asked.values(), options.questions)}
    part = [
        first_steps(run, options.steps) for run in held_out if run.question_id in chosen and run.agent == options.agent
    ]
    client = ChatClient(LocalLM(options.model), ResponseCache(options.replies), Ledger(), tries=1)
    coverage = LLMCoverage(client, max_tokens=options.max_tokens)

    def by_llm(run: Trajectory) -> CoverageJudge:
        tell(f"judge llm: {run.id}")
        return coverage(run.question, run.criteria)

    settings = {
        "fitted_on": {"runs": len(training), "questions": len({run.question_id for run in training})},
        "llm": {"model": options.model, "max_tokens": options.max_tokens, "tries": 1, "agent": options.agent},
        "part": {"questions": options.questions, "first_steps": options.steps, "question_ids": sorted(chosen)},
    }
    words = ["python", "benchmarks/coverage_judges.py", *(arguments or sys.argv[1:])]
    result = provenance(words, settings, {"logs": options.logs}) | {
        "thresholds": asdict(thresholds),
        "thresholds_highest_kappa": asdict(most_kappa),
        "encoder": encoder.id,
        "agreement": {
            "encoder, all test questions": agreement(whole),
            "encoder, all test questions, thresholds by highest kappa": agreement(anew(whole, most_kappa)),
            "always uncovered, all test questions": agreement(judge_runs(held_out, Uncovered)),
        },
    }
    if part:
        result["agreement"] |= {
            "encoder, the part": agreement(judge_runs(part, by_encoder)),
            "llm, the part": agreement(judge_runs(part, by_llm)),
            "always uncovered, the part": agreement(judge_runs(part, Uncovered)),
        }
        report = coverage.report()
        result["judge_llm"] = {name: report[name] for name in ("coverage_model", "judged", "failed", "failures")}
    write_json(options.out, result)
    for name, row in result["agreement"].items():
        tell(f"{name}: {row['agreement']} kappa {row['kappa']} auroc {row['auroc']['value']} {row['auroc']['ci']}")
    return 0


class Uncovered:
    """The baseline judge that sees nothing."""

    def __init__(self, run: Trajectory) -> None:
        self._criteria: Sequence[Criterion] = run.criteria or ()

    def update(self, documents: Sequence[Any]) -> NDArray[np.float64]:
        """See `CoverageJudge.update`."""
        return np.zeros(len(self._criteria))


def texts_of(runs: Iterable[Trajectory]) -> Iterable[str]:
    """What the judge ``encoder`` embeds."""
    for run in runs:
        yield from (criterion.text for criterion in run.criteria or ())
        for step in run.steps:
            yield from (sentence for document in step.documents for sentence in document_sentences(document))


def first_steps(run: Trajectory, count: int) -> Trajectory:
    """The run up to its search number `count`."""
    return replace(run, steps=run.search_steps[:count])


def judge_runs(runs: Sequence[Trajectory], make: Callable[[Trajectory], CoverageJudge]) -> Judged:
    """Every criterion of every run after every search step, by a judge and by gold."""
    codes = {question: code for code, question in enumerate(dict.fromkeys(run.question_id for run in runs))}
    question, status, gold, score = [], [], [], []
    for run in runs:
        judge, truth = make(run), GoldJudge(run.criteria or ())
        for step in run.search_steps:
            status.append(judge.update(step.documents))
            gold.append(truth.update(step.documents))
            score.append(judge.best if isinstance(judge, EncoderJudge) else status[-1])
            question.append(np.full(len(gold[-1]), codes[run.question_id]))
    return Judged(*(np.concatenate(rows) for rows in (question, status, gold, score)))


def anew(judged: Judged, thresholds: CoverageThresholds) -> Judged:
    """The same observations with statuses by other thresholds on the score."""
    return replace(judged, status=0.5 * (judged.score >= thresholds.partial) + 0.5 * (judged.score >= thresholds.full))


def highest_kappa(judged: Judged) -> CoverageThresholds:
    """The thresholds on the score, among its quantiles, whose statuses have the highest kappa."""
    candidates = np.unique(np.quantile(judged.score, np.linspace(0.02, 0.98, 49)))
    pairs = [
        CoverageThresholds(float(partial), float(full))
        for index, partial in enumerate(candidates)
        for full in candidates[index:]
    ]
    one = replace(judged, question=np.zeros_like(judged.question))
    return max(pairs, key=lambda pair: weighted_kappa(confusions(anew(one, pair))[0], COST))


def agreement(judged: Judged, seed: int = 0) -> dict[str, Any]:
    """Agreement, kappa and AUROC with 95% intervals over questions, and the confusion matrix."""
    bootstrap = QuestionBootstrap(int(judged.question.max()) + 1, seed=seed)
    tables = confusions(judged)
    whole = tables.sum(axis=0)
    resampled = np.einsum("rq,qij->rij", bootstrap.weights, tables)
    covered = judged.gold > 0
    return {
        "observations": len(judged.gold),
        "questions": bootstrap.n_questions,
        "agreement": with_interval(share_equal, whole, resampled),
        "kappa": with_interval(lambda table: weighted_kappa(table, COST), whole, resampled),
        "auroc": pooled(judged.status, covered, judged.question, bootstrap).to_json(),
        "auroc_of_score": pooled(judged.score, covered, judged.question, bootstrap).to_json(),
        "confusion": whole.tolist(),  # rows: gold uncovered, partial, full; columns: the judge's
    }


def confusions(judged: Judged) -> NDArray[np.int64]:
    """Counts of (gold status, judge's status) for each question, shape (questions, 3, 3)."""
    rows, columns = (np.rint(2 * values).astype(np.int64) for values in (judged.gold, judged.status))
    return pair_counts(rows, columns, judged.question, 3)


if __name__ == "__main__":
    sys.exit(main())
