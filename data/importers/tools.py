"""Which tools search, open a page or answer: data, so that a new tool is a new word here or ``--search-tool NAME``.

A name is first looked up as a whole; a name that no table has is split into words (``mcp__tavily__tavily-search``,
``searchWeb``, ``browser.open``) and the first word that a table has decides. What remains is ``other``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stopwise.data.records import StepKind

SEARCH_NAMES = frozenset(
    {"file_search", "knowledge_base", "wikipedia", "duckduckgo", "tavily", "exa", "serper", "arxiv"}
)
SEARCH_WORDS = frozenset({"search", "searches", "retrieve", "retriever", "retrieval", "bm25", "serp"})
OPEN_NAMES = frozenset(
    {"get_document", "webfetch", "find_in_page", "lookup", "get_page", "get_webpage", "wikipedia_page"}
)
OPEN_WORDS = frozenset(
    {
        "visit",
        "browse",
        "browser",
        "fetch",
        "open",
        "crawl",
        "crawler",
        "scrape",
        "scraper",
        "click",
        "goto",
        "navigate",
    }
)
ANSWER_NAMES = frozenset({"finish", "final_answer", "submit", "submit_answer", "submit_final_answer", "answer"})
CODE_NAMES = frozenset(
    {"python", "python_interpreter", "code_interpreter", "execute_code", "run_python", "python_repl"}
)

# arguments under which search tools take their queries
QUERY_KEYS = (
    "query", "queries", "q", "search_query", "search_queries", "querys", "question", "keywords", "keyword",
    "search_term", "user_query", "input", "text",
)  # fmt: skip

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, slots=True)
class Tools:
    """The naming of tools that an import goes by."""

    search: frozenset[str] = SEARCH_NAMES
    open: frozenset[str] = OPEN_NAMES
    answer: frozenset[str] = ANSWER_NAMES
    code: frozenset[str] = CODE_NAMES  # tools that run Python source, in which a search may be called

    def kind(self, name: str) -> StepKind:
        """What a step that calls this tool is."""
        whole = name.strip().lower()
        last = re.split(r"__|[./:]", whole)[-1]  # behind a server's or a module's name
        for known in (whole, last):
            if known in self.search:
                return "search"
            if known in self.open:
                return "open"
            if known in self.answer:
                return "answer"
            if known in self.code:
                return "other"
        for word in _WORD.findall(name):
            if word.lower() in SEARCH_WORDS:
                return "search"
            if word.lower() in OPEN_WORDS:
                return "open"
        return "other"

    def with_search(self, names: Iterable[str]) -> "Tools":
        """The same naming, with `names` as search tools whatever else they were."""
        added = frozenset(name.strip().lower() for name in names)
        return replace(self, search=self.search | added)


TOOLS = Tools()
