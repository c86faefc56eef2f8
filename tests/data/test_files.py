import hashlib
import json
import os
import stat
import subprocess
import sys

import pytest

from stopwise.data.errors import DataError, UsageError
from stopwise.data.files import (
    atomic_folder,
    atomic_path,
    lock_beside,
    only_process,
    read_json,
    sha256_file,
    write_json,
)


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def umask():
    """A known umask."""
    old = os.umask(0o022)
    yield
    os.umask(old)


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_file_appears_when_it_is_whole(tmp_path):
    target = tmp_path / "new" / "folder" / "file.txt"
    with atomic_path(target) as partial:
        partial.write_text("whole")
        assert not target.exists()
        assert partial.parent == target.parent
    assert target.read_text() == "whole"
    assert _names(target.parent) == ["file.txt"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    target = tmp_path / "file.txt"
    target.write_text("old")

    def write(path):
        with atomic_path(path) as partial:
            partial.write_text("half")
            raise failure

    for path in (target, tmp_path / "other.txt"):
        with pytest.raises(failure):
            write(path)
    assert target.read_text() == "old"
    assert _names(tmp_path) == ["file.txt"]


def test_a_file_replaces_the_old_one_with_the_usual_mode(tmp_path, umask):
    target = tmp_path / "file.txt"
    target.write_text("old")
    with atomic_path(target) as partial:
        partial.write_text("new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_two_writers_do_not_meet(tmp_path):
    target = tmp_path / "file.txt"
    with atomic_path(target) as one, atomic_path(target) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert target.read_text() == "one"  # the last to finish
    assert _names(tmp_path) == ["file.txt"]


def test_a_writer_that_replaces_its_temporary_file_is_served(tmp_path):
    with atomic_path(tmp_path / "file.txt") as partial:
        partial.unlink()
        partial.write_text("made anew")
    assert (tmp_path / "file.txt").read_text() == "made anew"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for target, reason in [(tmp_path, "is a folder"), (tmp_path / "file" / "x.txt", "cannot be written")]:
        with pytest.raises(UsageError, match=reason) as caught, atomic_path(target):
            pytest.fail("the body must not run")
        assert str(target) in str(caught.value)


# --- folders --------------------------------------------------------------------------------------------------------


def _write(target, content="new", **options):
    with atomic_folder(target, **options) as partial:
        (partial / "part").mkdir()
        (partial / "part" / "a.txt").write_text(content)
        (partial / "result.json").write_text("{}")


def test_a_folder_appears_when_it_is_whole(tmp_path, umask):
    target = tmp_path / "runs" / "one"
    with atomic_folder(target) as partial:
        (partial / "a.txt").write_text("whole")
        assert not target.exists()
    assert (target / "a.txt").read_text() == "whole"
    assert _names(target.parent) == ["one"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


def test_a_folder_replaces_the_old_one_wholly(tmp_path):
    target = tmp_path / "run"
    _write(target, "old")
    (target / "config.yaml").touch()
    _write(target, "new", mark="result.json")
    assert _names(target) == ["part", "result.json"]
    assert (target / "part" / "a.txt").read_text() == "new"
    assert _names(tmp_path) == ["run"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interruption_leaves_the_old_folder_and_nothing_else(tmp_path, failure):
    target = tmp_path / "run"
    _write(target, "old")

    def write(path):
        with atomic_folder(path, mark="result.json") as partial:
            (partial / "b.txt").write_text("half")
            raise failure

    for path in (target, tmp_path / "other"):
        with pytest.raises(failure):
            write(path)
    assert (target / "part" / "a.txt").read_text() == "old"
    assert _names(tmp_path) == ["run"]


def test_a_failing_exchange_brings_the_old_folder_back(tmp_path, monkeypatch):
    target = tmp_path / "run"
    _write(target, "old")
    rename = type(target).rename

    def failing(self, other):
        if self.name.endswith(".part"):
            raise OSError("disk on fire")
        return rename(self, other)

    monkeypatch.setattr(type(target), "rename", failing)
    with pytest.raises(OSError, match="disk on fire"):
        _write(target, "new", mark="result.json")
    assert (target / "part" / "a.txt").read_text() == "old"
    assert _names(tmp_path) == ["run"]


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    target = tmp_path / "photos"
    target.mkdir()
    _write(target, mark="result.json")  # it was empty
    (target / "result.json").unlink()
    for options in ({"mark": "result.json"}, {}):
        with pytest.raises(UsageError, match=r"photos: holds other files and no result.json"):
            _write(target, **options)
    assert _names(target) == ["part"]
    assert _names(tmp_path) == ["photos"]


def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for target, reason in [(tmp_path / "file", "is a file"), (tmp_path / "file" / "x", "cannot be written")]:
        with pytest.raises(UsageError, match=reason):
            _write(target)
    assert (tmp_path / "file").read_text() == "in the way"


# --- JSON and hashes ------------------------------------------------------------------------------------------------


def test_json_is_read_as_it_was_written(tmp_path):
    value = {"name": "川", "values": [1, 2.5, None, True], "empty": {}}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value
    assert "川" in (tmp_path / "value.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": object()}])
def test_what_is_not_json_is_refused_and_the_old_file_stays(tmp_path, value):
    path = tmp_path / "value.json"
    write_json(path, 1)
    with pytest.raises((ValueError, TypeError)):
        write_json(path, value)
    assert read_json(path) == 1
    assert _names(tmp_path) == ["value.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1, column 1: Expecting value"),
        (b'{"a": 1,\n "b": }', "line 2, column 7: Expecting value"),
        (b'{"a": 1', "line 1, column 8"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b"[" * 100_000, "recursion"),
        (b"9" * 5000, "digits"),
    ],
)
def test_a_bad_json_file_is_named_with_its_place(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_json(path)
    assert str(path) in str(caught.value)


def test_json_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"missing\.json: no such file"):
        read_json(tmp_path / "missing.json")
    with pytest.raises(DataError, match="is a folder; expected a JSON file"):
        read_json(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be read"):
        read_json(tmp_path / "file" / "x.json")


def test_json_with_a_byte_order_mark(tmp_path):
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps([1]).encode())
    assert read_json(tmp_path / "bom.json") == [1]


def test_the_hash_is_that_of_the_bytes(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_folder_with_somebodys_files_is_not_replaced_though_it_has_the_mark(tmp_path):
    # a mark is a common name: `export --out project` once deleted a project that had a manifest.json of its own
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "manifest.json").write_text("{}")
    (project / "src" / "main.py").write_text("code")
    with (
        pytest.raises(UsageError, match=r"holds src/main\.py, which this command does not write"),
        atomic_folder(project, mark="manifest.json") as partial,
    ):
        (partial / "manifest.json").write_text("new")
    assert (project / "src" / "main.py").read_text() == "code"
    assert (project / "manifest.json").read_text() == "{}"


def test_a_result_of_another_kind_is_not_replaced(tmp_path):
    trained = tmp_path / "run"
    (trained / "policy").mkdir(parents=True)
    (trained / "policy" / "manifest.json").write_text("policy")
    (trained / "result.json").write_text("trained")
    with pytest.raises(UsageError, match=r"holds policy/manifest\.json"), atomic_folder(trained) as partial:
        (partial / "result.json").write_text("compared")
    assert (trained / "policy" / "manifest.json").read_text() == "policy"


def test_a_new_result_may_lack_a_file_of_the_earlier_one(tmp_path):
    for names in (("result.json", "weights.safetensors"), ("result.json",)):
        with atomic_folder(tmp_path / "run") as partial:
            for name in names:
                (partial / name).write_text("x")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result.json"]


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is a device, a pipe or a socket"), atomic_path(pipe) as partial:
        partial.write_text("x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


HOLD = """
import pathlib, sys, time
from stopwise.data.files import only_process
with only_process(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_worked_on_by_one_process_at_a_time(tmp_path):
    """A killed process holds nothing: its lock goes with it, though the file stays."""
    folder = tmp_path / "deep" / "run"
    lock = lock_beside(folder)
    assert lock.name == ".run.lock"
    command = [sys.executable, "-c", HOLD, str(folder), str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        told = "run: another process is working on it; wait until that ends, or name another folder"
        with pytest.raises(UsageError, match=told), only_process(folder, lock):
            pytest.fail("two at a time")
        other.kill()
    assert lock.exists()
    with only_process(folder, lock):
        assert lock.exists()
        with pytest.raises(UsageError, match="another process"), only_process(folder, lock):
            pytest.fail("twice in one process")
    assert list(lock.parent.iterdir()) == []
    with pytest.raises(ZeroDivisionError), only_process(folder, lock):
        raise ZeroDivisionError
    assert not lock.exists()


def test_a_lock_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    told = r"cannot be locked \(.*\); name a path in a writable folder"
    with pytest.raises(UsageError, match=told), only_process(tmp_path / "run", tmp_path / "file" / ".run.lock"):
        pytest.fail("made")
