"""What every importer needs: clean text, stable ids, documents from search results, and named problems."""

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stopwise.data.records import Document

IdSource = Literal["log", "url", "title", "text"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"\s+")
_MADE_ID = re.compile(r"(url|title|text):")


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """One record that could not be read; the importer goes on with the next one."""

    file: str  # path as the user gave it
    where: str  # "line 7", "record 3", "key 12", or "" for the whole file
    reason: str  # what was found and what was expected

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.reason}" if self.where else f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a file, by which importers judge whether it is theirs."""

    text: str
    values: tuple[Any, ...] = ()  # its first JSON values, if it is JSON; the items of a list that holds records
    whole: Any = None  # its first top-level JSON value

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        """The JSON objects among the values."""
        return tuple(value for value in self.values if isinstance(value, dict))


def clean_text(text: str) -> str:
    """Text that every later stage can hold: lone surrogates and NULs become U+FFFD, the replacement character.

    UTF-8, Parquet and tokenizers cannot hold a lone surrogate, and C libraries end a text at a NUL.
    """
    if not text.isascii():
        text = _SURROGATE.sub("\ufffd", text)
    return text.replace("\0", "\ufffd")


def optional_text(value: Any) -> str | None:
    """Cleaned and stripped text of a JSON scalar; None for null, for blank text and for lists and objects."""
    if value is None:
        return None
    if isinstance(value, str):
        return clean_text(value).strip() or None
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        return str(value)
    return None


def optional_float(value: Any) -> float | None:
    """A finite or infinite number; None for everything else, NaN and booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def optional_finite(value: Any, low: float = -math.inf) -> float | None:
    """A finite number that is at least `low`; None for everything else."""
    number = optional_float(value)
    return number if number is not None and math.isfinite(number) and number >= low else None


def is_finite(value: Any) -> bool:
    """Whether a value is a number that strict JSON holds."""
    return isinstance(value, int | float) and value - value == 0


def optional_count(value: Any) -> int | None:
    """A whole number of at least 0 that 64 bits hold; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**63 and value == int(value) else None


def verdict(value: Any) -> bool | None:
    """A judge's label: true or false as a boolean, a 0/1 number or a word; a third label ("unknown", null) is None."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return None if value not in (0, 1) else bool(value)
    if isinstance(value, str):
        return {
            "true": True,
            "yes": True,
            "correct": True,
            "1": True,
            "false": False,
            "no": False,
            "incorrect": False,
            "0": False,
        }.get(value.strip().lower())
    return None


# Whole observations that are no documents: failures, refusals and empty results of the tools met in real logs.
_ERROR = re.compile(
    r"""no\ (?:(?:more|relevant|search|matching)\ )?(?:results?|documents?)\b[^\n]{0,160}$
    |no\ content\ (?:could\ be|was|is|found)\b
    |\{\s*"(?:data":\s*null|error"|code":\s*[45]\d\d)
    |could\ not\ find\b
    |\[[\w ]*\berror\]|\*\*error:?\*\*|(?:\w+\ )?error\ ?[:(\d]|traceback\ \(most\ recent
    |(?:tool|search|request|query)\ (?:call\ )?(?:failed|timed\ out)\b
    |invalid\ (?:action|tool|request|query|arguments?)\b
    |(?:maximum|max)\ (?:number\ of\ )?(?:tool\ calls?|searches|search\ calls?|turns?)\b.{0,40}\b(?:reached|exceeded)
    |(?:rate\ limit|budget|quota|timeout)\b.{0,30}\b(?:exceeded|reached|exhausted)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NO_TITLE = re.compile(r"^\s*#\s*(?:Untitled|None)\s*\n")  # what page readers put over a page without a title
_EMPTY_RESULTS = {"", "[]", "{}", "null", "none", "n/a"}


def error_text(observation: str) -> str | None:
    """What went wrong, where a whole observation is a tool's error, refusal or empty result; None where it is content.

    A long text is content even if it begins like an error: errors are short, and documents speak of errors too.
    """
    text = _NO_TITLE.sub("", observation).strip()
    if text.lower() in _EMPTY_RESULTS:
        return "no results"
    return text if len(text) <= 2000 and _ERROR.match(text) else None


def answer_texts(value: Any) -> list[str]:
    """The texts of an answer field: a text, a list of alternatives, or lists nested in a list; blank ones dropped."""
    if isinstance(value, list | tuple):
        return [text for item in value for text in answer_texts(item)]
    text = optional_text(value)
    return [] if text is None else [text]


def clean_json(value: Any) -> Any:
    """A copy of a parsed JSON value with every text cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return value


def json_value(value: Any) -> Any:
    """A copy of `value` that strict JSON holds: texts cleaned, NaN and infinities null, unknown types as text."""
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {clean_text(str(key)): json_value(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [json_value(item) for item in value]
    return clean_text(str(value))


def digest(*parts: str) -> str:
    """16 hexadecimal digits that depend on the texts and on nothing else."""
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def normalise_title(title: str) -> str:
    """One spelling of a page title: NFC, case folded, underscores and runs of white space as one space."""
    return _SPACE.sub(" ", unicodedata.normalize("NFC", clean_text(title)).replace("_", " ")).strip().casefold()


def normalise_url(url: str) -> str:
    """One spelling of an address: no scheme, no leading ``www.``, no fragment, no trailing slash; host lower-cased."""
    bare = re.sub(r"^https?://(www\.)?", "", clean_text(url).strip(), flags=re.IGNORECASE).split("#", 1)[0].rstrip("/")
    host, slash, path = bare.partition("/")
    return host.lower() + slash + path


def title_id(title: str) -> str:
    """The document id that a page title gives."""
    return f"title:{normalise_title(title)}"


def document_id(
    log_id: Any = None, url: str | None = None, title: str | None = None, text: str | None = None
) -> str | None:
    """The stable id of a document: the log's own, else made from its url, else its title, else its text.

    A made id begins with ``url:``, ``title:`` or ``text:``, so that it says what it was made from (`id_source`). Chunks
    of one page share the page's id. None when there is nothing to make an id from.
    """
    own = optional_text(log_id)
    if own:
        return own
    if url and normalise_url(url):
        return f"url:{normalise_url(url)}"
    if title and normalise_title(title):
        return title_id(title)
    if text and text.strip():
        return f"text:{digest(_SPACE.sub(' ', text).strip())}"
    return None


def id_source(document_id: str) -> IdSource:
    """What a document's id was made from."""
    made = _MADE_ID.match(document_id)
    return made[1] if made else "log"  # pyright: ignore[reportReturnType]


def make_document(
    *,
    log_id: Any = None,
    text: Any = None,
    title: Any = None,
    url: Any = None,
    score: Any = None,
    rank: int | None = None,
) -> Document | None:
    """A `Document` from whatever a log holds of it; None when neither an id, a url, a title nor a text is there.

    A score that is no finite number is not known.
    """
    text, title, url = optional_text(text), optional_text(title), optional_text(url)
    made = document_id(log_id, url, title, text)
    if made is None:
        return None
    return Document(id=made, text=text, title=title, url=url, score=optional_finite(score), rank=rank)


def question_id(question: str, log_id: Any = None) -> str:
    """The log's own question id, else one made from the question's normalised text, so that its runs share it."""
    return optional_text(log_id) or f"q:{digest(normalise_question(question))}"


def normalise_question(question: str) -> str:
    """One spelling of a question for matching by text: NFC, case folded, white space collapsed."""
    return _SPACE.sub(" ", unicodedata.normalize("NFC", question)).strip().casefold()


def first_line(text: str, limit: int = 120) -> str:
    """The first line of `text`, cut to `limit` characters, for messages."""
    line = clean_text(text).strip().split("\n", 1)[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def describe(value: Any) -> str:
    """What a JSON value is, in words for messages: "text", "a list", "null" and so on."""
    if value is None:
        return "null"
    names: Iterable[tuple[type | tuple[type, ...], str]] = (
        (bool, "true or false"),
        ((int, float), "a number"),
        (str, "text"),
        (list, "a list"),
        (dict, "an object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)
