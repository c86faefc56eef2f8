"""Paths that are no readable files, and files that are no UTF-8: one clear line each, and nothing half-written."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stopwise.data.importers.inputs import expand

ROW = '{"id": "%s", "question_id": "q", "question": "?"}\n'


@pytest.fixture
def place(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(ROW % "a")
    return tmp_path


@pytest.fixture
def fails(command, place):
    def run(*words: object, status: int = 1) -> str:
        found, stdout, stderr = command("import", *words, "--out", place / "out.parquet")
        *_, last = stderr.splitlines()
        assert (found, stdout) == (status, "")
        assert last.startswith("stopwise import: ")
        assert {path.name for path in place.iterdir() if "out" in path.name} == set()
        return last

    return run


@pytest.fixture
def locked(monkeypatch):
    """``locked(path)``: reading below it is refused, also to a root user."""

    def lock(path: Path) -> None:
        def refuse(real):
            def call(name, *args, **kwargs):
                if not isinstance(name, int) and str(path) in os.fspath(name):
                    raise PermissionError(13, "Permission denied", os.fspath(name))
                return real(name, *args, **kwargs)

            return call

        monkeypatch.setattr(os, "scandir", refuse(os.scandir))
        monkeypatch.setattr(os, "stat", refuse(os.stat))

    return lock


def test_a_pipe_is_not_waited_for(fails, place):
    os.mkfifo(place / "pipe")
    assert "pipe: is a pipe; expected a file; save it as one, or give a log as standard input, `-`" in fails(
        place / "pipe"
    )
    assert "pipe: is a pipe" in fails(place / "pipe", "--format", "stopwise")
    assert "pipe: is a pipe" in fails(place / "in" / "a.jsonl", "--gold", place / "pipe")


def test_an_empty_path_is_not_the_folder_that_one_stands_in(command, place, monkeypatch):
    """As from `import "$LOGS"` where LOGS is not set."""
    monkeypatch.chdir(place / "in")
    status, stdout, stderr = command("import", "a.jsonl", "", "--out", place / "out.parquet")
    assert (status, stdout) == (2, "")
    assert "import: a PATH is empty, ''; name log files, folders, or - for standard input" in stderr
    assert not (place / "out.parquet").exists()


def test_devices_and_sockets(fails, place, monkeypatch):
    assert "/dev/null: is a device; expected a file" in fails("/dev/null")
    monkeypatch.chdir(place)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert "socket: is a socket; expected a file" in fails("socket")


def test_pipes_of_a_folder_are_passed_over(place):
    os.mkfifo(place / "in" / "pipe")
    assert [item.path.name for item in expand([place / "in"])] == ["a.jsonl"]


def test_folders_in_a_loop(fails, place):
    (place / "in" / "self").symlink_to(place / "in")
    assert [item.path.name for item in expand([place / "in"])] == ["a.jsonl"]
    (place / "one").symlink_to("two")
    (place / "two").symlink_to("one")
    assert "Too many levels of symbolic links" in fails(place / "one")


def test_a_folder_that_may_not_be_read(fails, place, locked):
    locked(place / "in")
    for path in (place / "in", place / "in" / "a.jsonl"):
        assert fails(path).endswith(f"{path}: cannot be read (Permission denied)")


def test_a_folder_in_a_folder_that_may_not_be_read_is_a_problem(command, place, locked):
    (place / "in" / "closed").mkdir()
    locked(place / "in" / "closed")
    status, _, stderr = command("import", place / "in", "--out", place / "out.parquet")
    assert status == 0
    assert f"{place / 'in' / 'closed'}: cannot be read (Permission denied)" in stderr


def test_a_name_that_is_too_long(fails, command, place):
    assert "cannot be read (File name too long)" in fails("x" * 300)
    status, _, stderr = command("import", place / "in", "--out", place / ("x" * 300))
    assert (status, "File name too long" in stderr) == (2, True)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_named(fails, place, encoding):
    (place / "log").write_text(ROW % "é" * 3, encoding=encoding)
    name = encoding.upper().replace("16-", "16")
    assert fails(place / "log").endswith(
        f"{place / 'log'}: is {name} text; expected UTF-8; convert it with `iconv -f {name} -t UTF-8`"
    )


def test_what_parquet_cannot_hold_is_a_problem_of_its_line(command, place):
    path = place / "log.jsonl"
    path.write_text(ROW % "a" + (ROW % "b").replace("}", ', "meta": {"n": 1e999}}') + ROW % "c")
    status, _, stderr = command("import", path, "--out", place / "out.parquet")
    assert (status, "2 trajectories" in stderr) == (0, True)
    assert f"{path}: line 2: meta: holds a number that is not finite; expected JSON values" in stderr


def test_an_import_without_any_search_asks_whether_the_format_is_right(command, place):
    _, _, stderr = command("import", place / "in", "--out", place / "out.parquet")
    assert "no search step in any of them" in stderr


def test_a_full_disk_is_one_line(command, place, monkeypatch):
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device", "out.parquet")

    monkeypatch.setattr("stopwise.data.store.write_trajectories", full)
    status, _, stderr = command("import", place / "in", "--out", place / "out.parquet")
    assert (status, stderr.splitlines()[-1]) == (1, "stopwise import: out.parquet: No space left on device")


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_an_interrupted_import_leaves_nothing(place, name, status):
    code = f"""
import os, signal, sys
for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    signal.signal(number, action)  # a test runner in the background passes both on as ignored
from stopwise.cli import import_logs
from stopwise.cli.main import main
counted = import_logs.Tally.add
def add(tally, run):
    counted(tally, run)
    os.kill(os.getpid(), signal.{name})
import_logs.Tally.add = add
sys.exit(main(sys.argv[1:]))
"""
    words = ["import", place / "in", "--out", place / "out.parquet"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.splitlines()[-1] == "stopwise import: interrupted; nothing half-written is left"
    assert [path.name for path in place.iterdir()] == ["in"]
