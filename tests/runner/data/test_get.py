"""Downloading and copying named data sets, against a server on this machine."""

import contextlib
import errno
import http.server
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torchvision.datasets
from PIL import Image

from tests.runner.data.conftest import ARCHIVE, CIFAR, md5, write_archive, write_batches
from vitcli.runner.data import find, readers
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.get import get_data
from vitcli.runner.data.load import data_status, load_data
from vitcli.runner.errors import InputError, ResourceError

pytestmark = pytest.mark.usefixtures("cache")
ROW = CATALOGUE["cifar10"]


@pytest.fixture
def archive(contents, tmp_path) -> bytes:
    return (write_archive(tmp_path / "published", contents) / ARCHIVE).read_bytes()


@pytest.fixture
def server(archive, monkeypatch):
    """Serves /good, /moved, /wrong, /cut; else 404. Yields a function to set urls."""
    bodies = {"/good": archive, "/wrong": b"x" * len(archive), "/cut": archive[: len(archive) // 2]}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removesuffix(f"/{ARCHIVE}")
            body = bodies.get(path, b"")
            self.send_response(302 if path == "/moved" else 200 if body else 404)
            self.send_header("Location", f"/good/{ARCHIVE}")
            self.send_header("Content-Length", str(len(archive) if body else 0))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        base = f"http://127.0.0.1:{httpd.server_port}"

        def serve(*paths: str) -> list[str]:
            hosts = tuple(base + path for path in paths)
            row = replace(ROW, sizes=(len(archive),), hosts=hosts)
            monkeypatch.setitem(CATALOGUE, "cifar10", row)
            monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", md5(archive))
            return [f"{host}/{ARCHIVE}" for host in hosts]

        yield serve
        httpd.shutdown()
        thread.join()


def test_a_missing_data_set_is_announced_downloaded_and_kept(server, cache):
    (url,) = server("/good")
    messages: list[str] = []
    data = load_data(CIFAR, on_message=messages.append)
    target = cache / "downloads" / "cifar10" / ARCHIVE
    assert len(data.train) == 200
    assert all(part in messages[0] for part in (url, "MB", str(target)))
    assert load_data(CIFAR, offline=True).data_hash == data.data_hash


def test_each_failing_source_is_left_for_the_next(server):
    server("/missing", "/wrong", "/cut", "/moved")
    messages: list[str] = []
    source = get_data("cifar10", on_message=messages.append)
    assert len([text for text in messages if text.startswith("failed")]) == 3
    assert source.kind == "archive"
    assert len(data_status("cifar10").decoded) == 1


def test_when_no_source_delivers_every_reason_is_given_and_nothing_is_left(server, cache):
    server("/missing", "/wrong")
    with pytest.raises(InputError, match=r"/missing/.*404.*/wrong/.*MD5 differs"):
        get_data("cifar10")
    assert not list(cache.rglob("*.gz*"))


def test_a_silent_host_is_left(cache, monkeypatch):
    monkeypatch.setattr(find, "TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/{ARCHIVE}"
        with pytest.raises(InputError, match="timed out"):
            get_data("cifar10", url)
    assert socket.getdefaulttimeout() is None


def test_from_a_url_an_archive_file_and_a_folder(server, archive, contents, tmp_path, cache):
    (good,) = server("/good")
    server("/missing")
    for source, named in ((good, "offline; type --from FOLDER"), (None, "cifar10 --from FOLDER,")):
        with pytest.raises(InputError, match=named) as refused:
            get_data("cifar10", source, offline=True)
        assert "Download" not in str(refused.value)
    assert get_data("cifar10", good).kind == "archive"
    shutil.rmtree(cache)
    mine = tmp_path / "mine.tgz"
    mine.write_bytes(b"something else")
    for wrong in (mine, tmp_path / "none"):
        with pytest.raises(InputError, match="vitcli data get cifar10"):
            get_data("cifar10", str(wrong))
    mine.write_bytes(archive)
    assert get_data("cifar10", str(mine), offline=True).kind == "archive"
    assert (cache / "downloads" / "cifar10" / ARCHIVE).read_bytes() == archive
    write_batches(tmp_path, contents)
    assert get_data("cifar10", str(tmp_path), offline=True).kind == "files"


def write_pictures(root: Path) -> Path:
    for split in ("train", "test"):
        for name in ROW.info.class_names:
            (root / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(root / split / name / "a.png")
    return root


def contents_below(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def kept(cache) -> Path:
    return write_pictures(cache / "downloads" / "cifar10")


@pytest.fixture
def mine(server, tmp_path) -> Path:
    server("/missing")
    return write_pictures(tmp_path / "mine")


def test_a_copy_with_a_damaged_picture_stays_until_a_new_one_is_whole(server, kept):
    (_, good) = server("/missing", "/good")
    (kept / "train" / "dog" / "a.png").write_bytes(b"no picture")
    before = contents_below(kept)
    server("/missing")
    with pytest.raises(InputError, match="could not be downloaded"):
        get_data("cifar10")
    assert contents_below(kept) == before
    assert get_data("cifar10", good).kind == "archive"
    assert load_data(CIFAR, offline=True).train.pixels.shape[0] == 200


@pytest.mark.parametrize("is_link", [False, True])
def test_a_new_copy_replaces_the_old_one_but_not_what_a_link_leads_to(
    mine, kept, tmp_path, is_link
):
    before = contents_below(kept)
    if is_link:
        kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(tmp_path / "elsewhere")
    else:
        (kept / "notes.txt").write_text("mine")
        (kept / "train").rename(tmp_path / "old")
        (kept / "train").symlink_to(tmp_path / "old")
        (kept / ARCHIVE).write_bytes(b"older")
    (mine / "train" / "cat" / "a.png").rename(mine / "train" / "cat" / "b.png")
    get_data("cifar10", str(mine), offline=True)
    notes = {} if is_link else {"notes.txt": b"mine"}
    assert contents_below(kept) == contents_below(mine) | notes
    assert is_link or len(contents_below(tmp_path / "old")) == 10
    assert not is_link or contents_below(tmp_path / "elsewhere") == before


def test_a_copy_that_fills_the_disk_loses_no_picture(mine, kept, tmp_path, monkeypatch):
    before, copy2, done = contents_below(kept), shutil.copy2, []

    def fail_after_three(source: Path, target: Path) -> None:
        if len(done) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(copy2(source, target))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy2", fail_after_three)
        with pytest.raises(ResourceError):
            get_data("cifar10", str(mine), offline=True)
    assert contents_below(kept) == before
    assert get_data("cifar10", str(mine), offline=True).kind == "folders"
    with monkeypatch.context() as patch:
        patch.setattr(readers, "read_labelled", None)
        assert len(load_data(CIFAR, offline=True).train) == 10, "they were decoded"
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VITCLI_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="VITCLI_CACHE"):
        get_data("cifar10", str(mine), offline=True)


def test_a_damaged_download_is_fetched_again_and_a_users_file_is_not_touched(
    server, archive, cache, tmp_path, monkeypatch
):
    server("/good")
    for folder in (cache / "downloads" / "cifar10", tmp_path / "own"):
        folder.mkdir(parents=True)
        (folder / ARCHIVE).write_bytes(archive[:200])
    with pytest.raises(InputError, match="vitcli data get cifar10"):
        load_data(CIFAR, offline=True)
    assert get_data("cifar10").kind == "archive"
    assert (cache / "downloads" / "cifar10" / ARCHIVE).read_bytes() == archive
    monkeypatch.setenv("VITCLI_DATA", str(tmp_path / "own"))
    with pytest.raises(InputError, match="own"):
        get_data("cifar10")
    assert (tmp_path / "own" / ARCHIVE).read_bytes() == archive[:200]
