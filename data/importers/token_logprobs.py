"""Log-probabilities as servers log them: the chosen token's only, or the top k of each position, k varying."""

from collections.abc import Mapping
from typing import Any

from stopwise.data.importers.toolbox import optional_float
from stopwise.data.records import Logprobs


def parse_logprobs(value: Any) -> Logprobs | None:
    """Top-k log-probabilities of the generated positions, best first; None where there are none.

    Args:
        value: OpenAI chat ``{"content": [{"logprob", "top_logprobs": [{"logprob"}]}]}`` or that list itself,
            completions ``{"token_logprobs": [..], "top_logprobs": [{token: logprob}]}``, or plain numbers.
    """
    if isinstance(value, Mapping):
        if isinstance(value.get("content"), list):
            value = value["content"]
        elif isinstance(value.get("token_logprobs"), list):
            return _completions(value)
        else:
            return None
    if not isinstance(value, list) or not value:
        return None
    positions = [position for item in value if (position := _position(item))]
    return Logprobs(top=tuple(positions)) if positions else None


def _position(item: Any) -> tuple[float, ...]:
    if not isinstance(item, Mapping):
        chosen = optional_float(item)
        return () if chosen is None else (chosen,)
    top = item.get("top_logprobs")
    if isinstance(top, Mapping):
        found = [optional_float(number) for number in top.values()]
    elif isinstance(top, list):
        found = [optional_float(entry.get("logprob") if isinstance(entry, Mapping) else entry) for entry in top]
    else:
        found = []
    numbers = [number for number in found if number is not None]
    if not numbers:
        chosen = optional_float(item.get("logprob"))
        numbers = [] if chosen is None else [chosen]
    return tuple(sorted(numbers, reverse=True))


def _completions(value: Mapping[str, Any]) -> Logprobs | None:
    chosen = value["token_logprobs"]
    top = value.get("top_logprobs")
    top = top if isinstance(top, list) else []
    positions = [
        position
        for i, number in enumerate(chosen)
        if (position := _position({"logprob": number, "top_logprobs": top[i] if i < len(top) else None}))
    ]
    return Logprobs(top=tuple(positions)) if positions else None
