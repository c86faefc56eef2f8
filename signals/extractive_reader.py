"""An answer reader without a language model: the name that the documents speak of most like the question does.

Names are runs of capitalised words. Each clause of the question that is about the thing asked for is compared with
every sentence that holds a name, or that stands in a document whose title holds it: the share of the clause's words,
weighed by how rare they are in the documents seen, that the sentence holds too. A name's support is its best
sentence's, averaged over the clauses; it counts half where no document calls the name the kind of thing that is asked
for. With too little of it for every name there is "no candidate".

It knows words and not meanings: paraphrases, dates, numbers and answers that are no names are beyond it. That makes it
a cheap lower bound beside a reader that is a language model, not a substitute for one.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from stopwise.data.records import Document
from stopwise.signals.coverage import document_sentences

SUPPORT = 0.5  # least support of an answer: on sample training questions about half of its answers are then right
MIN_WORDS = 2  # content words that a clause needs to tell anything

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_NAME = re.compile(r"[A-Z][\w'’-]*(?:\s+(?:(?:&|of|de|la|von|van|the)\s+)*[A-Z][\w'’-]*)*")
_FOCUS = re.compile(r"\b(?:(?:which|whose|what)|(?:name of|name|find|identify) (?:the|an?))\s+([a-z]+)", re.IGNORECASE)
_CLAUSE = re.compile(r"(?<=[.?!;])\s+|\n+")
OTHER_KIND = 0.5  # factor for a name that no document introduces as the kind of thing that is asked for
_FUNCTION = frozenset(
    _WORD.findall(
        "a an and are as asked at be been but by did do does for from had has have he her his how i in into is it its "
        "me meant my name no not of on or our she so some than that the their them there they this to was we were what "
        "when where which who whom whose why will with would you your"
    )
)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence and the names that it is about."""

    words: frozenset[str]
    names: frozenset[str]  # in it, or in its document's title
    introduced: frozenset[tuple[str, str]]  # (kind, name): "the town Alba", "Alba is the town"


class ExtractiveReader:
    """Answers a question with a name from the documents; the same documents give the same answer."""

    def __init__(self, support: float = SUPPORT) -> None:
        """Choose how much support an answer needs, in [0, 1]; 0 always answers when there is any name."""
        self._support = support

    @property
    def id(self) -> str:
        """Kind and threshold."""
        return f"extractive(support={self._support:g})"

    def read(self, question: str, documents: Sequence[Document]) -> str | None:
        """The best supported name, or None for "no candidate".

        Args:
            question: its text.
            documents: what was seen, in the order of its coming; ties go to the name that came first.
        """
        supported = self.supports(question, documents)
        if not supported:
            return None
        best = max(supported, key=lambda name: supported[name])
        return best if supported[best] >= self._support else None

    def supports(self, question: str, documents: Sequence[Document]) -> dict[str, float]:
        """The support of every name, in the order of their first coming; those of the question are left out."""
        sentences = [sentence for document in documents for sentence in _read(document.title, document_text(document))]
        counts = Counter(word for sentence in sentences for word in sentence.words)
        rarity = {word: math.log((1 + len(sentences)) / (1 + count)) + 1e-9 for word, count in counts.items()}
        unseen = math.log(1 + len(sentences)) + 1e-9
        asked = " ".join(question.split()).casefold()
        known = {name for sentence in sentences for name in sentence.names if name.casefold() in asked}
        total: dict[str, float] = {}
        clauses = focus_clauses(question)
        for clause in clauses:
            whole = sum(rarity.get(word, unseen) for word in sorted(clause))
            best: dict[str, float] = {}
            for sentence in sentences:
                held = sum(rarity[word] for word in sorted(clause & sentence.words)) / whole
                for name in sorted(sentence.names - known):
                    best[name] = max(best.get(name, 0.0), held)
            for name, support in best.items():
                total[name] = total.get(name, 0.0) + support / len(clauses)
        kind = focus_word(question)
        if kind is not None:
            fitting = {name for sentence in sentences for word, name in sentence.introduced if word == kind}
            total = {name: support * (1 if name in fitting else OTHER_KIND) for name, support in total.items()}
        order: dict[str, None] = {}
        for sentence in sentences:
            order.update(dict.fromkeys(sorted(sentence.names)))
        return {name: total[name] for name in order if name in total}


def document_text(document: Document) -> str:
    """A document's sentences as one text."""
    return "\n".join(document_sentences(document))


def focus_clauses(question: str) -> list[frozenset[str]]:
    """Content words of the clauses about the thing asked for; of all clauses where the question does not say which."""
    clauses = [content_words(clause) for clause in _CLAUSE.split(question.strip())]
    told = [clause for clause in clauses if len(clause) >= MIN_WORDS] or clauses
    kind = focus_word(question)
    about = [clause for clause in told if kind in clause]
    return [clause for clause in about or told if clause]


def focus_word(question: str) -> str | None:
    """The kind of thing that is asked for ("town" in "Which town ...?"), where the question says it in such words."""
    found = [match[1].lower() for match in _FOCUS.finditer(question)]
    return next((word for word in found if word not in _FUNCTION), None)


def content_words(text: str) -> frozenset[str]:
    """Lower-case words that carry meaning."""
    return frozenset(word for word in map(str.lower, _WORD.findall(text)) if word not in _FUNCTION)


def names_in(text: str) -> list[str]:
    """Runs of capitalised words, without function words before them; one word alone only where no sentence begins."""
    found = []
    for match in _NAME.finditer(text):
        words = match[0].split()
        begins = match.start() == 0 or text[: match.start()].rstrip()[-1:] in ("", ".", "!", "?", ":", "\n")
        while words and words[0].lower() in _FUNCTION:
            words, begins = words[1:], False
        if words and not (begins and len(words) == 1):
            found.append(re.sub(r"['’]s$", "", " ".join(words)))
    return found


@lru_cache(maxsize=20_000)  # a run reads its documents again after every step
def _read(title: str | None, text: str) -> tuple[_Sentence, ...]:
    rows = [(content_words(row), frozenset(names_in(row))) for row in text.split("\n")]
    named = frozenset(name for _, names in rows for name in names)
    # what a title is about is named in the text too, without "A note on" or "Review of" before it
    subjects = frozenset(name for name in named if title and name in title)
    subjects = subjects or frozenset(names_in(f"of {title}") if title else ())
    return tuple(
        _Sentence(words, names | subjects, _introduced(row, names))
        for row, (words, names) in zip(text.split("\n"), rows, strict=True)
    )


def _introduced(row: str, names: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The kinds that a sentence calls its names."""
    found = []
    for name in names:
        before = re.findall(rf"\b([a-z]+) {re.escape(name)}\b", row)
        after = re.findall(rf"\b{re.escape(name)},? (?:is|was) (?:the|an?) ([a-z]+)\b", row)
        found += [(word, name) for word in (*before, *after)]
    return frozenset(found)
