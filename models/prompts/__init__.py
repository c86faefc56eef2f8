"""Prompts: text files in this folder, in our own words, versioned by the hash of their content.

A prompt's gaps are written ``$name``. What others wrote (documents, logged thoughts) goes in by `quote`, between tags
that it cannot close.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt file."""

    name: str
    text: str

    @property
    def version(self) -> str:
        """Name and the first 12 hex digits of the text's SHA-256; stands in results beside the model."""
        return f"{self.name}@{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"

    def fill(self, **gaps: str) -> str:
        """The text with its gaps filled.

        Raises:
            KeyError: a gap has no value.
            ValueError: a value has no gap.
        """
        template = Template(self.text)
        unknown = set(gaps) - set(template.get_identifiers())
        if unknown:
            raise ValueError(f"prompt {self.name}: has no gap {sorted(unknown)[0]!r}")
        return template.substitute(gaps)


@cache
def load_prompt(name: str) -> Prompt:
    """The prompt ``<name>.txt`` of this folder."""
    return Prompt(name, (files("stopwise.models.prompts") / f"{name}.txt").read_text(encoding="utf-8").strip())


def quote(tag: str, text: str) -> str:
    """Foreign text between ``<tag>`` and ``</tag>``; tags of that name inside lose their angle bracket."""
    inner = re.sub(rf"<(?=\s*/?\s*{re.escape(tag)}\b)", "(", text, flags=re.IGNORECASE)
    return f"<{tag}>\n{inner}\n</{tag}>"
