"""The pages that a rater sees: logged texts are by strangers, so they are escaped, and no page runs a script."""

from collections.abc import Mapping
from html import escape
from typing import Any

from stopwise.evaluation.annotation.answers import COMMENT, COMMENT_CHARS
from stopwise.evaluation.annotation.study import CRITERIA, Criterion

STYLE = """
:root { color-scheme: light dark; --line: #8886; --mark: #f7c84826; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 58rem; margin: 0 auto; padding: 1rem; }
header { display: flex; gap: 1rem; align-items: center; flex-wrap: wrap; }
header progress { flex: 1; min-width: 8rem; }
h1 { font-size: 1.1rem; } h2 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
.box, fieldset { border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; margin: .5rem 0; }
.suggestion { background: var(--mark); border-width: 2px; font-size: 1.05rem; }
.wrong { border: 2px solid #c33; padding: .5rem; }
li { margin: .4rem 0; } .quiet { opacity: .75; }
fieldset label { display: inline-block; margin-right: 1.2rem; padding: .2rem 0; }
textarea { width: 100%; box-sizing: border-box; font: inherit; }
button { font: inherit; padding: .5rem 1.4rem; }
"""


def item_page(
    number: int,
    total: int,
    judged: int,
    item: Mapping[str, Any],
    answer: Mapping[str, Any],
    token: str,
    rater: str,
    wrong: str | None = None,
) -> str:
    """One suggestion with what its agent had seen, and the form.

    Args:
        number: of the item, from 1.
        total: items of the study.
        judged: items that this rater has judged.
        item: as `stopwise.evaluation.annotation.study.item_of` makes it.
        answer: given before, or what was sent and could not be taken; may be empty.
        token: proof that the form came from this server.
        rater: whose answers these are.
        wrong: what was missing in what was sent.
    """
    earlier = "".join(f"<li>{_step(step)}</li>" for step in item["earlier"])
    alarm = "" if wrong is None else f'<p class="wrong" role="alert">{escape(wrong)}</p>'
    comment = escape(str(answer.get(COMMENT, "")))
    history = f"<ol>{earlier}</ol>" if earlier else "<p>This is the first step.</p>"
    # the latest steps are what matters; a long history can be folded away
    body = f"""
<header><strong>Suggestion {number} of {total}</strong>
<progress value="{judged}" max="{total}">{judged} of {total}</progress>
<span>{judged} judged by {escape(rater)}</span></header>
<nav>{_link(number - 1, total, "Back")} {_link(number + 1, total, "Forward")}
<a href="/">First that is not judged</a></nav>
{alarm}
<h2>Question that the agent works on</h2>{_text(item["question"], "box")}
<h2>What it did before</h2><details{" open" if len(item["earlier"]) <= 8 else ""}>
<summary>{len(item["earlier"])} earlier steps</summary>{history}</details>
<h2>Its present step</h2><div class="box">{_step(item["step"])}</div>
<h2>The suggestion that it was given then</h2>{_text(item["suggestion"], "box suggestion")}
<form method="post" action="/item/{number}">
<input type="hidden" name="token" value="{escape(token)}">
{"".join(_choice(criterion, answer) for criterion in CRITERIA)}
<p><label>Comment, if you like:<br>
<textarea name="{COMMENT}" rows="2" maxlength="{COMMENT_CHARS}" dir="auto">{comment}</textarea></label></p>
<p><button type="submit">Save and go on</button></p></form>"""
    return page(f"Suggestion {number} of {total}", body)


def done_page(total: int, rater: str) -> str:
    """When everything is judged."""
    body = f"""<h1>All {total} suggestions are judged. Thank you, {escape(rater)}.</h1>
<p>Everything is saved. You may still change answers, from <a href="/item/1">the first</a> on, or close this page and
end the server (Ctrl-C where it was started).</p>"""
    return page("All judged", body)


def message_page(title: str, text: str) -> str:
    """A page that says why something was not done."""
    return page(title, f'<h1>{escape(title)}</h1>{_text(text, "box")}<p><a href="/">Go on</a></p>')


def page(title: str, body: str) -> str:
    """A whole document."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/style.css"></head>'
        f"<body>{body}</body></html>"
    )


def _text(text: str, kind: str = "") -> str:
    return f'<div class="text {kind}" dir="auto">{escape(text)}</div>'


def _step(step: Mapping[str, Any]) -> str:
    parts = [_text(step["thought"]) if step["thought"] else '<div class="quiet">(no thought was logged)</div>']
    label = {"search": "Searched", "open": "Opened", "answer": "Answered", "other": "Tried"}.get(step["kind"], "Did")
    parts += [f"<div><strong>{label}:</strong> {_inline(query)}</div>" for query in step["queries"]]
    if step["error"] is not None:
        parts.append(f"<div><strong>The tool failed:</strong> {_inline(step['error'])}</div>")
    elif not step["documents"]:
        parts += ['<div class="quiet">Nothing came back.</div>'] if step["kind"] in ("search", "open") else []
    elif "text" in step["documents"][0]:
        found = "".join(
            f"<li><strong>{_inline(document['title'])}</strong>{_text(document['text'])}</li>"
            for document in step["documents"]
        )
        parts.append(f"<ol>{found}</ol>")
    else:
        titles = "; ".join(_inline(document["title"]) for document in step["documents"])
        parts.append(f"<div><strong>Found:</strong> {titles}</div>")
    return "".join(parts)


def _inline(text: str) -> str:
    return f'<bdi class="text">{escape(text)}</bdi>'


def _choice(criterion: Criterion, answer: Mapping[str, Any]) -> str:
    given = answer.get(criterion.name)
    options = "".join(
        f'<label><input type="radio" name="{criterion.name}" value="{value}" required'
        f"{' checked' if given == value else ''}> {escape(label)}</label>"
        for value, label in criterion.answers.items()
    )
    return f"<fieldset><legend>{escape(criterion.question)}</legend>{options}</fieldset>"


def _link(number: int, total: int, text: str) -> str:
    return f'<a href="/item/{number}">{text}</a>' if 1 <= number <= total else f'<span class="quiet">{text}</span>'
