import pytest

from stopwise.data.importers.tools import TOOLS


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (
            "search web_search google_search search_baidu local_search_tool snippet_search searchWeb WebSearch "
            "mcp__tavily__tavily-search functions.search wikipedia file_search DuckDuckGoSearchTool retrieve_documents",
            "search",
        ),
        (
            "visit visit_webpage web_fetch browse_webpage browser.open get_document crawl_tool fetchPage goto_url",
            "open",
        ),
        ("finish final_answer submit_answer", "answer"),
        ("python bash write_file read_file ask_clarification write_todos research_plan python_interpreter ls", "other"),
    ],
)
def test_names_of_tools_that_logs_hold(names, kind):
    assert {name: TOOLS.kind(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_a_named_tool_is_a_search_whatever_it_was():
    tools = TOOLS.with_search(["Visit", "oracle"])
    assert [tools.kind(name) for name in ("visit", "oracle", "srv__oracle", "browse")] == ["search"] * 3 + ["open"]
