"""The server of one rater's pages, for this machine alone.

It listens on 127.0.0.1 and answers only to that name, so that no site can reach it under a name of its own; what
changes something needs a token that stands in its forms, so that no site can send answers; and its pages may load
nothing and run nothing, so that a logged text that gets past the escaping still does nothing.
"""

import re
import secrets
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stopwise.data.errors import StopwiseError, UsageError
from stopwise.evaluation.annotation.answers import COMMENT, COMMENT_CHARS, Answers, what_is_wrong
from stopwise.evaluation.annotation.page import STYLE, done_page, item_page, message_page
from stopwise.evaluation.annotation.study import CRITERIA

ADDRESS = "127.0.0.1"
BODY_BYTES = 64 * 1024  # a form is far smaller
READ_BYTES = 16 * BODY_BYTES  # of what is too large
POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

_ITEM = re.compile(r"/item/([1-9][0-9]{0,8})")


class RaterServer(ThreadingHTTPServer):
    """Serves one rater."""

    daemon_threads = True

    def __init__(self, answers: Answers, port: int = 0) -> None:
        """Listen, without serving yet: `serve_forever` does.

        Args:
            answers: of the rater.
            port: 0 takes a free one.

        Raises:
            UsageError: the port cannot be had.
        """
        self.answers = answers
        self.token = secrets.token_urlsafe(32)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"--port {port}: cannot be listened on ({reason}); name another, or 0 for any") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that left before its page was sent is no news; anything else is told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    @property
    def names(self) -> set[str]:
        """What requests may call it."""
        return {f"{name}:{self.server_address[1]}" for name in (ADDRESS, "localhost")}


class _Handler(BaseHTTPRequestHandler):
    server: RaterServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "stopwise", ""
    timeout = 30  # of a connection that says nothing

    def do_GET(self) -> None:
        """A page."""
        if not self._known():
            return
        path = urlsplit(self.path).path
        answers = self.server.answers
        number = self._number(path)
        if path == "/":
            self._redirect(self._next(0))
        elif path == "/style.css":
            self._send(STYLE, kind="text/css")
        elif path == "/done" and not answers.missing:
            self._send(done_page(len(answers.study.items), answers.rater))
        elif number is not None:
            self._send(self._item(number, answers.given.get(number, {})))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def do_POST(self) -> None:
        """An answer."""
        number = self._number(urlsplit(self.path).path)
        length = self.headers.get("Content-Length", "")
        size = int(length) if length.isdecimal() else 0
        body = self.rfile.read(min(size, READ_BYTES))  # also where it is refused: who still sends would miss why
        if not self._known():
            return
        if self.headers.get("Origin") not in (None, *(f"http://{name}" for name in self.server.names)):
            self._refuse(HTTPStatus.FORBIDDEN, "Another site sent this form.")
        elif number is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such suggestion.")
        elif size > BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "This is too much for a form. Nothing was saved.")
        else:
            self._take(number, body.decode("utf-8", "replace"))

    def _take(self, number: int, body: str) -> None:
        try:
            fields = parse_qs(body, keep_blank_values=True, max_num_fields=20, errors="replace")
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "This is no form of these pages. Nothing was saved.")
            return
        sent = {name: values[-1] for name, values in fields.items()}
        if not secrets.compare_digest(sent.get("token", "").encode(), self.server.token.encode()):
            text = "This form is from before the server was started anew. Nothing was saved; please judge it again."
            self._refuse(HTTPStatus.FORBIDDEN, text)
            return
        answer = answer_of(sent)
        if what_is_wrong(answer) is not None:
            left = [criterion.question for criterion in CRITERIA if criterion.name not in answer]
            wrong = f"Please answer: {' / '.join(left)}" if left else "The comment is too long."
            wrong = f"Not saved yet. {wrong}"
            self._send(self._item(number, answer, wrong), HTTPStatus.BAD_REQUEST)
            return
        try:
            self.server.answers.put(number, answer)
        except (StopwiseError, OSError) as error:  # a full disk, a file that was replaced
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"The answer could not be saved: {error}")
            return
        self._redirect(self._next(number))

    def _item(self, number: int, answer: Mapping[str, Any], wrong: str | None = None) -> str:
        answers = self.server.answers
        items = answers.study.items
        judged = len(items) - len(answers.missing)
        token = self.server.token
        return item_page(number, len(items), judged, items[number - 1], answer, token, answers.rater, wrong)

    def _number(self, path: str) -> int | None:
        found = _ITEM.fullmatch(path)
        number = 0 if found is None else int(found.group(1))
        return number if 1 <= number <= len(self.server.answers.study.items) else None

    def _next(self, number: int) -> str:
        """The next item that is not judged, from the first one again after the last."""
        missing = self.server.answers.missing
        if not missing:
            return "/done"
        return f"/item/{next((other for other in missing if other > number), missing[0])}"

    def _known(self) -> bool:
        """Whether we are called by our name; a site whose name leads here is not let in."""
        if self.headers.get("Host") in self.server.names:
            return True
        self._refuse(HTTPStatus.FORBIDDEN, f"This server is {self.server.url} and nothing else.")
        return False

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(message_page(status.phrase, text), status)

    def _redirect(self, place: str) -> None:
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", place)
        self._end(0)

    def _send(self, text: str, status: HTTPStatus = HTTPStatus.OK, kind: str = "text/html") -> None:
        data = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self._end(len(data))
        self.wfile.write(data)

    def _end(self, length: int) -> None:
        for name, value in (
            ("Content-Length", str(length)),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is for people."""


def answer_of(sent: Mapping[str, str]) -> dict[str, Any]:
    """An answer from the fields of a form; what was not chosen, or is no choice, is left out."""
    answer: dict[str, Any] = {}
    for criterion in CRITERIA:
        value = sent.get(criterion.name, "")
        if value in map(str, criterion.answers):
            answer[criterion.name] = int(value)
    comment = sent.get(COMMENT, "").replace("\r\n", "\n").strip()
    if comment:
        answer[COMMENT] = comment
    return answer


assert COMMENT_CHARS * 12 < BODY_BYTES  # a comment in any script fits into a form
