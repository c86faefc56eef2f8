"""What a log row says of a run beside its messages: question, reference, verdict, agent, under whatever key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stopwise.data.importers.toolbox import answer_texts, optional_text, verdict

# keys that logs use for one and the same thing, in the order of trust
QUESTION_KEYS = ("question", "problem", "query")
ID_KEYS = ("question_id", "query_id", "qid", "question_ID", "example_id", "task_id")
REFERENCE_KEYS = (
    "reference_answer", "ground_truth", "gold_answer", "golden_answers", "correct_answer", "gt", "reference", "answer",
    "answers",
)  # fmt: skip
VERDICT_KEYS = ("correct", "is_correct", "is_corrected", "judge_correct", "em", "reward")
AGENT_KEYS = ("agent", "model", "model_name", "agent_name")
DATASET_KEYS = ("dataset", "dataset_name", "benchmark", "tag")


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What a log row says of a run beside its messages; None where it says nothing."""

    id: str | None
    question: str | None
    question_id: str | None
    references: tuple[str, ...]
    correct: bool | None
    agent: str | None
    dataset: str | None

    @property
    def meta(self) -> dict[str, Any]:
        """The reference answers, as `Trajectory.meta` holds them."""
        found: dict[str, Any] = {}
        if self.references:
            found["reference_answer"] = self.references[0]
        if len(self.references) > 1:
            found["reference_answers"] = list(self.references)
        return found


def row_facts(row: Mapping[str, Any], reference_keys: Sequence[str] = REFERENCE_KEYS) -> RowFacts:
    """The facts of a row under the keys that logs use for them; its ``metadata`` objects are looked into too."""
    inner = [row, *(row[key] for key in ("metadata", "meta", "original_data") if isinstance(row.get(key), Mapping))]

    def text(keys: Sequence[str]) -> str | None:
        return next((found for part in inner for key in keys if (found := optional_text(part.get(key)))), None)

    references = next((texts for part in inner for key in reference_keys if (texts := answer_texts(part.get(key)))), [])
    return RowFacts(
        id=optional_text(row.get("id")) or optional_text(row.get("trajectory_id")),
        question=text(QUESTION_KEYS),
        question_id=text(ID_KEYS),
        references=tuple(references),
        correct=next((label for key in VERDICT_KEYS if (label := verdict(row.get(key))) is not None), None),
        agent=text(AGENT_KEYS),
        dataset=text(DATASET_KEYS),
    )
