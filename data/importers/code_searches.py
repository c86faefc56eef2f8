"""Search calls inside Python source, as agents that write code make them."""

import ast

from stopwise.data.importers.toolbox import clean_text
from stopwise.data.importers.tools import QUERY_KEYS, TOOLS, Tools


def searches_in_code(source: str, tools: Tools = TOOLS) -> tuple[str, ...]:
    """Queries of the search calls in Python source: those written there as texts, else the source of the arguments."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    nodes = list(ast.walk(tree))
    named = {  # texts that a name was set to; the last one counts
        target.id: node.value.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    queries: list[str] = []
    unknown: list[str] = []
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        values = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg in QUERY_KEYS)]
        if name in ("search", "match", "findall") and isinstance(node.func, ast.Attribute):
            continue  # of `re` and its like
        if tools.kind(name) != "search":
            continue
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                queries.append(value.value)
            elif isinstance(value, ast.Name) and value.id in named:
                queries.append(named[value.id])
            else:
                unknown.append(ast.unparse(value))
    return tuple(clean_text(query) for query in dict.fromkeys(queries or unknown))
