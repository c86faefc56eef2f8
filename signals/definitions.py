"""The signals by name: what each one is, what it needs and where it comes from.

Values are kept as they are defined: nothing is flipped so that "higher is better".
"""

from dataclasses import dataclass
from typing import Literal

Need = Literal["query_embedding", "document_embedding", "sentence_embedding", "logprobs", "criteria", "ids", "scores"]


@dataclass(frozen=True, slots=True)
class SignalDefinition:
    """One per-step signal."""

    name: str
    meaning: str  # what a higher value means
    needs: tuple[Need, ...]
    source: str  # paper and equation, or "stopwise"
    after: tuple[str, ...] = ()  # signals it is computed from


DEFINITIONS: tuple[SignalDefinition, ...] = (
    SignalDefinition("SE", "evidence more scattered (nats)", ("document_embedding",), "DS-MCM eq. 2-5"),
    SignalDefinition("SE_norm", "SE / log K, K documents", ("document_embedding",), "DS-MCM eq. 5", ("SE",)),
    SignalDefinition("RE", "reasoning less certain (nats a token)", ("logprobs",), "DS-MCM 3.2.2"),
    SignalDefinition("residual", "less certain than the evidence warrants (nats)", (), "DS-MCM eq. 7", ("SE", "RE")),
    SignalDefinition("residual_z", "residual in units of its sigma", (), "DS-MCM eq. 8", ("residual",)),
    SignalDefinition("Nov", "share of new documents", ("ids",), "RAAC 4.1"),
    SignalDefinition("Cov", "share of the criteria covered", ("criteria", "sentence_embedding"), "RAAC 4.1"),
    SignalDefinition("Div", "query moved more since the last step", ("query_embedding",), "RAAC 4.1"),
    SignalDefinition("Sim", "query nearer the question", ("query_embedding",), "RAAC 4.1"),
    SignalDefinition("coverage_gain", "Cov rose in this step", (), "stopwise", ("Cov",)),
    SignalDefinition("content_novelty", "new documents unlike all seen", ("document_embedding",), "stopwise"),
    SignalDefinition("redundancy", "documents of one step alike", ("document_embedding",), "stopwise"),
    SignalDefinition("query_repetition", "query like an earlier one", ("query_embedding",), "stopwise"),
    SignalDefinition("steps_since_new", "search steps since the last new document", ("ids",), "stopwise"),
    SignalDefinition("score_top", "best retrieval score of the step", ("scores",), "stopwise"),
    SignalDefinition("score_gap", "best minus worst retrieval score", ("scores",), "stopwise"),
    SignalDefinition("RE_z", "RE in units of its spread on successful runs", ("logprobs",), "DS-MCM 4.3 (without SE)"),
)

BY_NAME = {definition.name: definition for definition in DEFINITIONS}
ABLATIONS = ("RE_z",)  # computed only where it is asked for
SIGNALS: tuple[str, ...] = tuple(name for name in BY_NAME if name not in ABLATIONS)
PAPER_SIGNALS = ("SE", "RE", "residual", "Nov", "Cov", "Div", "Sim")

# Why a value is missing; position 0 means that it is there. The order is part of the table's file format.
REASONS: tuple[str, ...] = (
    "present",
    "first step",
    "no documents",
    "single document",
    "no texts",
    "no query",
    "no encoder",
    "no logprobs",
    "chosen token only",
    "no criteria",
    "no gold criteria",
    "no scores",
    "not calibrated",
    "not asked for",
)
REASON_CODES = {reason: code for code, reason in enumerate(REASONS)}


def with_prerequisites(names: tuple[str, ...]) -> frozenset[str]:
    """The named signals and all those they are computed from."""
    wanted: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in wanted:
            wanted.add(name)
            stack.extend(BY_NAME[name].after)
    return frozenset(wanted)
