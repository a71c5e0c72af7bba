"""The one way in which files are written: whole, or not at all."""

import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.files import (
    commit,
    free_name,
    make_folder,
    make_output_folder,
    read_bounded,
    read_hashed,
    read_json,
    require_folder,
    require_replaceable,
    require_that_it_stays,
    require_utf8,
    scratch_folder,
    to_hashed_json,
    unwind_on_signals,
)


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "kept.txt"
    commit(path, b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            commit(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match=r"missing/a\.txt"):
        commit(tmp_path / "missing" / "a.txt", b"")


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_new_files_and_folders_have_the_rights_that_the_umask_leaves(tmp_path, umask):
    before = os.umask(umask)
    try:
        make_folder(tmp_path / "runs/x")
        commit(tmp_path / "runs/x/config.yaml", b"")
        commit(tmp_path / "runs/x/config.yaml", b"again")
    finally:
        os.umask(before)
    paths = [tmp_path / "runs", tmp_path / "runs/x", tmp_path / "runs/x/config.yaml"]
    rights = [stat.S_IMODE(path.stat().st_mode) for path in paths]
    assert rights == [0o777 & ~umask, 0o777 & ~umask, 0o666 & ~umask]


def test_what_is_no_regular_file_is_never_replaced_and_rights_stay(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="not a regular file"):
            commit(place, b"")
    target = tmp_path / "target.txt"
    target.write_text("old")
    target.chmod(0o600)
    (tmp_path / "link.txt").symlink_to(target)
    commit(tmp_path / "link.txt", b"new")
    assert (tmp_path / "link.txt").is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_free_name_is_no_dangling_link_either(tmp_path):
    (tmp_path / "a.old1").symlink_to("nowhere")
    assert free_name(tmp_path / "a", "old").name == "a.old2"


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    (tmp_path / "a").write_bytes(b"123")
    assert read_bounded(tmp_path / "a", 3) == b"123"
    with pytest.raises(ValueError, match="larger than 2 bytes"):
        read_bounded(tmp_path / "a", 2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_bounded(tmp_path / "pipe", 3)
    with pytest.raises(IsADirectoryError) as found:
        read_bounded(tmp_path, 3)
    assert found.value.filename == str(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "NaN", '{"a": 1e999}', '{"a": -Infinity}', "[" * 100_000, "9" * 5000]
)
def test_json_that_vitcli_does_not_write_or_with_a_wrong_hash_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"."):
        read_json(path)
    path.write_bytes(to_hashed_json({"a": 1e100}))
    assert read_json(path)["a"] == 1e100
    path.write_bytes(path.read_bytes().replace(b"1e+100", b"2e+100"))
    with pytest.raises(ValueError, match="does not match its hash"):
        read_json(path)
    with pytest.raises(InputError, match=r"a\.json: edited or damaged"):
        read_hashed(path)
    path.write_text('{"a": 1}')
    with pytest.raises(InputError, match="it has no hash"):
        read_hashed(path)
    assert read_hashed(tmp_path / "none.json") is None


SCRATCH = """
import os, sys
from pathlib import Path
from vitcli.runner.files import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "copy").touch()
    os.kill(os.getpid(), int(sys.argv[2]))
print("not reached")
"""


def test_a_scratch_folder_is_removed_at_the_end(tmp_path):
    with scratch_folder(tmp_path) as folder:
        (folder / "file").touch()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_scratch_folder_is_removed_when_a_signal_ends_the_process(tmp_path, number):
    words = [sys.executable, "-c", SCRATCH, str(tmp_path), str(int(number))]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (128 + number, b"")
    assert not [*tmp_path.iterdir()]


def test_signals_unwind_only_where_nothing_else_hears_them():
    def handlers():
        return [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)]

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwind_on_signals():
            leave, ignored = handlers()
            assert ignored is signal.SIG_IGN
            with pytest.raises(SystemExit) as done:
                leave(signal.SIGTERM, None)
            assert done.value.code == 128 + signal.SIGTERM
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a second one acts at once"
        assert handlers() == [signal.SIG_DFL, signal.SIG_IGN]
        thread = threading.Thread(target=lambda: unwind_on_signals().__enter__())
        thread.start()
        thread.join()
        assert handlers() == [signal.SIG_DFL, signal.SIG_IGN], "only the main thread may set them"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_results_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    require_folder(tmp_path / "new.txt")
    for refuse, path in (
        (make_output_folder, tmp_path / "file" / "below"),
        (require_folder, tmp_path / "none" / "new.txt"),
        (require_utf8, Path("caf\udce9")),
    ):
        with pytest.raises(ConfigError):
            refuse(path)


def test_only_files_of_ones_own_kind_are_replaced(tmp_path):
    path = tmp_path / "page.html"

    def replace() -> None:
        require_replaceable(path, "page", rb"\Aown")

    replace()
    for content, is_refused in ((b"", False), (b"own words", False), (b"of a person", True)):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="no page") if is_refused else nullcontext():
            replace()
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be replaced"):
        replace()


def test_a_folder_that_is_gone_is_said(tmp_path):
    for folder, error in ((tmp_path, FileNotFoundError), (tmp_path / "gone", ResourceError)):
        with pytest.raises(error), require_that_it_stays(folder):
            raise FileNotFoundError
