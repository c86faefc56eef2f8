"""The pages as a browser gets them: real requests to a real server."""

import http.client
import re
import threading
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from stopwise.data.errors import UsageError
from stopwise.data.files import write_json
from stopwise.data.records import Document, Step, Trajectory
from stopwise.evaluation.annotation.answers import Answers
from stopwise.evaluation.annotation.server import BODY_BYTES, RaterServer
from stopwise.evaluation.annotation.study import STUDY, item_of, read_study

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)> \"'></textarea><!-- &lt;"
CHOICE = {"correct": "1", "reasonable": "4", "actionable": "2"}


@pytest.fixture
def study(tmp_path):
    evil = Step("search", f"t{EVIL}", (f"q{EVIL}",), (Document("d", f"x{EVIL}", f"h{EVIL}"),), guidance=f"g{EVIL}")
    failed = Step("search", None, ("ask",), error=f"e{EVIL}", guidance="Ask less.")
    steps = (evil, failed, Step("open", "", ("http://x/",), guidance="Go on."))
    run = Trajectory("r", "q", f"w{EVIL}", steps)
    items = [item_of(run, place) for place in range(3)]
    write_json(tmp_path / STUDY, {"kind": "stopwise.study", "version": 1, "items": items})
    return read_study(tmp_path)


@pytest.fixture
def serve(study):
    running = []

    def start(rater="ann"):
        server = RaterServer(Answers(study, rater))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(server, method, path, fields=None, **headers):
    """Status, headers and text of one request."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
    body = None if fields is None else urlencode(fields)
    if fields is not None:
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, reply.headers, text


def token_of(text):
    found = re.search(r'name="token" value="([^"]+)"', text)
    assert found is not None
    return found.group(1)


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.shown = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.shown += data


def test_logged_texts_are_shown_and_never_markup(serve):
    server = serve()
    token = token_of(ask(server, "GET", "/item/1")[2])
    fields = {"token": token, **CHOICE, "comment": EVIL}
    assert ask(server, "POST", "/item/1", fields)[0] == 303
    for number in (1, 2, 3):
        status, headers, text = ask(server, "GET", f"/item/{number}")
        assert status == 200
        page = Tags(text)
        assert "script" not in page.tags
        assert "img" not in page.tags
        assert not any(name.startswith("on") for name in page.attributes)
        assert f"w{EVIL}" in page.shown
        assert page.tags.count("textarea") == page.tags.count("form") == 1
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script" not in policy
    first, second = (Tags(ask(server, "GET", f"/item/{number}")[2]).shown for number in (1, 2))
    assert all(f"{letter}{EVIL}" in first for letter in "tqxhg")
    assert EVIL in first.replace(f"w{EVIL}", "").replace(f"g{EVIL}", "")  # the comment
    assert f"e{EVIL}" in second


def test_nothing_is_loaded_from_elsewhere(serve):
    server = serve()
    text = ask(server, "GET", "/item/1")[2]
    assert set(re.findall(r'(?:href|src|action)="([^"]*)"', text)) == {"/style.css", "/", "/item/1", "/item/2"}
    status, headers, style = ask(server, "GET", "/style.css")
    assert (status, headers["Content-Type"]) == (200, "text/css; charset=utf-8")
    assert "url(" not in style
    assert server.server_address[0] == "127.0.0.1"


def test_a_rater_goes_through_and_can_come_back(serve, study):
    server = serve()
    assert ask(server, "GET", "/")[1]["Location"] == "/item/1"
    assert ask(server, "GET", "/done")[0] == 404
    token = token_of(ask(server, "GET", "/item/2")[2])
    places = []
    for number in (2, 3, 1):
        fields = {"token": token, **CHOICE, "reasonable": str(number)}
        status, headers, _ = ask(server, "POST", f"/item/{number}", fields, Origin=server.url.rstrip("/"))
        assert status == 303
        assert number in Answers(study, "ann").given  # on the disk at once
        places.append(headers["Location"])
    assert places == ["/item/3", "/item/1", "/done"]
    assert "All 3 suggestions are judged" in ask(server, "GET", "/done")[2]
    text = ask(server, "GET", "/item/3")[2]
    assert re.findall(r'name="(\w+)" value="(\d)" required checked', text) == [
        ("correct", "1"), ("reasonable", "3"), ("actionable", "2"),
    ]  # fmt: skip
    ask(server, "POST", "/item/3", {"token": token, **CHOICE, "correct": "0", "comment": " new\r\nline "})
    expected = {"correct": 0, "reasonable": 4, "actionable": 2, "comment": "new\nline"}
    assert Answers(study, "ann").given[3] == expected


def test_each_rater_sees_only_their_own_answers(serve, study):
    ann, bob = serve("ann"), serve("bob")
    token = token_of(ask(ann, "GET", "/item/1")[2])
    ask(ann, "POST", "/item/1", {"token": token, **CHOICE, "comment": "of ann"})
    text = ask(bob, "GET", "/item/1")[2]
    assert "of ann" not in text
    assert " checked" not in text
    assert ask(bob, "POST", "/item/1", {"token": token, **CHOICE})[0] == 403
    assert sorted(path.name for path in (study.folder / "answers").iterdir()) == ["ann.json"]
    assert Answers(study, "bob").given == {}


def test_an_incomplete_form_comes_back_with_what_was_chosen(serve, study):
    server = serve()
    token = token_of(ask(server, "GET", "/item/1")[2])
    fields = {"token": token, "correct": "1", "reasonable": "9", "comment": "kept"}
    status, _, text = ask(server, "POST", "/item/1", fields)
    assert status == 400
    assert "Not saved yet. Please answer: Is it reasonable" in text
    assert 'value="1" required checked' in text
    assert "kept</textarea>" in text
    assert Answers(study, "ann").given == {}
    status, _, text = ask(server, "POST", "/item/1", {"token": token, **CHOICE, "comment": "x" * 2001})
    assert (status, "The comment is too long" in text) == (400, True)


def test_what_others_send_changes_nothing(serve, study):
    server = serve()
    token = token_of(ask(server, "GET", "/item/1")[2])
    good = {"token": token, **CHOICE}
    assert ask(server, "POST", "/item/1", CHOICE)[0] == 403
    assert ask(server, "POST", "/item/1", good | {"token": "ü"})[0] == 403
    assert ask(server, "POST", "/item/1", good, Origin="http://elsewhere.example")[0] == 403
    assert ask(server, "POST", "/item/1", good, Origin="null")[0] == 403
    assert ask(server, "POST", "/item/1", good, Host="elsewhere.example")[0] == 403
    assert ask(server, "GET", "/item/1", Host="elsewhere.example")[0] == 403
    assert token not in ask(server, "GET", "/item/1", Host="elsewhere.example")[2]
    assert ask(server, "POST", "/item/1", good | {"comment": "x" * BODY_BYTES})[0] == 413
    assert ask(server, "POST", "/item/1", {str(n): "" for n in range(30)})[0] == 400
    for path in ("/item/0", "/item/4", "/item/x", "/key.json", "/../key.json", "/answers/ann.json"):
        assert ask(server, "GET", path)[0] == 404
    assert ask(server, "POST", "/item/4", good)[0] == 404
    assert ask(server, "PUT", "/item/1")[0] == 501
    assert Answers(study, "ann").given == {}


def test_what_cannot_be_saved_is_told(serve, study):
    server = serve()
    token = token_of(ask(server, "GET", "/item/1")[2])
    (study.folder / "answers").write_text("a file in the way")
    status, _, text = ask(server, "POST", "/item/1", {"token": token, **CHOICE})
    assert status == 500
    assert "could not be saved" in text


def test_a_browser_that_leaves_is_no_news(serve, capsys):
    server = serve()
    for error, told in ((BrokenPipeError(), False), (ConnectionResetError(), False), (KeyError("x"), True)):
        try:
            raise error
        except (OSError, KeyError):
            server.handle_error(None, ("127.0.0.1", 1))
        assert ("Traceback" in capsys.readouterr().err) == told


def test_a_port_that_is_taken(serve, study):
    taken = serve().server_address[1]
    for port in (taken, 70000, -1):
        with pytest.raises(UsageError, match=f"--port {port}: cannot be listened on"):
            RaterServer(Answers(study, "bob"), port)
