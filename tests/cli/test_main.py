"""How a command ends that the system, its memory or a signal stopped."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import filelock
import pytest
from typer.testing import CliRunner

from tests.cli.commands import printed, said
from tests.fabricated import make_run
from vitcli.cli import main
from vitcli.cli.main import app
from vitcli.runner.data import cache
from vitcli.runner.run import listing

pytestmark = pytest.mark.usefixtures("here")


def fail(monkeypatch, place: object, name: str, error: BaseException) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(place, name, refuse)


@pytest.mark.parametrize("name", ["EIO", "ENOLCK"])
@pytest.mark.parametrize(
    ("operation", "command"),
    [
        pytest.param("fsync", "runs page", marks=pytest.mark.plugin("page")),
        ("lock", "runs rm -y"),
    ],
)
def test_what_the_file_system_refuses_is_named_with_its_file(monkeypatch, name, operation, command):
    run = make_run(0).path
    number = getattr(errno, name)
    place = (os, "fsync") if operation == "fsync" else (filelock.FileLock, "acquire")
    fail(monkeypatch, *place, OSError(number, os.strerror(number)))
    talk = said(5, *command.split(), *([run] if operation == "lock" else []))
    assert os.strerror(number) in talk
    assert ("runs/index.html" if operation == "fsync" else f"{run}/.lock") in talk
    assert run.is_dir()


def test_without_locks_an_old_lock_file_is_not_awaited(monkeypatch):
    """A lock that is the mere existence of a file would stay after a kill -9."""
    run = make_run(0).path
    (run / ".lock").touch()
    fail(monkeypatch, fcntl, "flock", OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)))
    assert f"{run}/.lock" in said(5, "runs", "rm", "-y", run)
    messages: list[str] = []
    with cache._lock(Path("arrays/x.safetensors").resolve(), messages.append) as is_writable:
        assert (is_writable, len(messages)) == (False, 1)


def test_a_failed_machine_is_one_line_and_a_bug_is_shown_whole(monkeypatch):
    for error in (OSError(errno.EIO, "Input/output error"), MemoryError()):
        fail(monkeypatch, listing, "list_runs", error)
        assert said(5, "runs", "ls").count("\n") == 1
    for error in (ImportError("no module"), OSError(errno.ENOENT, "x")):
        fail(monkeypatch, listing, "list_runs", error)
        assert CliRunner().invoke(app, ["runs", "ls"]).exception is error


def test_without_a_temporary_folder_commands_work_until_a_library_needs_one(monkeypatch):
    def none_is_writable() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    def list_runs(*args, **kwargs):
        raise OSError("Matplotlib requires a cache") from OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", none_is_writable)
    monkeypatch.setattr(sys, "argv", ["vitcli", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main.main()
    assert tempfile.gettempdir() == "/tmp"
    monkeypatch.setattr(listing, "list_runs", list_runs)
    assert "(read-only); type: export TMPDIR=FOLDER" in said(5, "runs", "ls")


def test_a_deleted_working_folder_is_said_before_any_work(monkeypatch):
    Path("gone").mkdir()
    monkeypatch.chdir("gone")
    Path("../gone").resolve().rmdir()
    said(4, "train")


SWALLOW = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "vitcli.cli.main":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                sum(range(99))
            except KeyboardInterrupt:
                raise RecursionError from None
sys.meta_path.insert(0, Finder())
from {} import {} as main
main()
"""


def test_a_module_that_turns_ctrl_c_into_another_error_ends_in_one_line():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    code = SWALLOW.format(*project["scripts"]["vitcli"].split(":"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"stopped immediately\n")


def test_a_command_is_one_row_and_is_imported_when_it_is_called(monkeypatch):
    monkeypatch.setitem(main.COMMANDS, "gone", "vitcli.cli.no_such_module:gone")
    monkeypatch.setitem(main.COMMANDS, "check-up", "vitcli.cli.doctor:doctor")
    assert "Check versions" in printed("check-up", "--help")
    assert isinstance(CliRunner().invoke(app, ["gone"]).exception, ImportError)
