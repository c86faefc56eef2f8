"""Decoding held to a JSON schema: which tokens may come next, as llguidance finds them.

The reply is one JSON value that the schema allows, keys in the schema's order, written as Python's ``json.dumps``
writes it: one space after a colon and after a comma, none elsewhere, so that no network can spend its tokens on white
space.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopwise.data.errors import UsageError

INSTALL = "pip install 'stopwise[lm]'"
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Constraints:
    """Makes constraints for one tokenizer; its vocabulary is read once, in about a second.

    Args:
        tokenizer: a fast tokenizer of transformers.
        width: number of the network's logits, which may be more than the tokenizer has tokens.
        ends: ids of the tokens that end a reply.
        model: named in errors.

    Raises:
        UsageError: llguidance is not installed, or cannot read the tokenizer.
    """

    def __init__(self, tokenizer: Any, width: int, ends: Iterable[int], model: str) -> None:
        try:
            import llguidance
            import llguidance.hf
        except ImportError as error:
            raise UsageError(
                f"model {model}: {error.name or error} is not installed, which holds replies to a JSON schema; "
                f"run `{INSTALL}`"
            ) from error
        self._library = llguidance
        self._width = width
        self._model = model
        try:
            self._vocabulary = llguidance.hf.from_tokenizer(tokenizer, max(width, len(tokenizer)), sorted(ends))
        except ValueError as error:
            raise UsageError(
                f"model {model}: its tokenizer is of a kind that cannot be held to a JSON schema ({_line(error)})"
            ) from error

    def begin(self, schema: Mapping[str, Any]) -> "Constraint":
        """The constraint of a reply's first token.

        Raises:
            UsageError: the schema is no schema, allows nothing, or uses a keyword of JSON Schema that llguidance does
                not implement: none of them is passed over in silence.
        """
        try:
            grammar = self._library.LLMatcher.grammar_from_json_schema(json.dumps(dict(schema)), overrides=_LAYOUT)
        except (TypeError, ValueError) as error:  # it holds what JSON does not
            raise self._refused(error) from error
        matcher = self._library.LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise self._refused(matcher.get_error())
        return Constraint(matcher, self._width)

    def _refused(self, problem: Any) -> UsageError:
        return UsageError(f"model {self._model}: cannot be held to this JSON schema ({_line(problem)})")


class Constraint:
    """What may follow in one reply."""

    def __init__(self, matcher: Any, width: int) -> None:
        self._matcher = matcher
        self._width = width

    def hold(self, logprobs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Log-probabilities of the next token, shape (width,), with minus infinity where it may not follow."""
        allowed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(allowed, count=self._width, bitorder="little").astype(bool)
        self._check()
        return np.where(bits, logprobs, np.float32(-np.inf))

    def take(self, token: int) -> bool:
        """Go on behind a token; whether the reply is complete, so that nothing but its end could follow."""
        self._matcher.consume_token(token)
        self._check()
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"the JSON schema of the reply is too much for llguidance ({self._matcher.get_error()})")


def _line(problem: Any) -> str:
    return " ".join(str(problem).split())[:200]
