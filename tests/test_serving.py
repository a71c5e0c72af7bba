"""The programs of docs/how-to/serve.md give the answers of `vitcli predict`."""

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.cli.commands import document, save_picture
from tests.patience import HANG

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "serve.md"
LOOP, SERVER = (part.partition("```")[0] for part in PAGE.read_text().split("```python\n")[1:])


@pytest.fixture
def address(here, monkeypatch) -> Iterator[str]:
    """Run the server of the page on a free port, in a thread."""
    servers: list[ThreadingHTTPServer] = []
    monkeypatch.setattr(sys, "argv", ["serve.py", "cifar10-pocket", "0"])
    with monkeypatch.context() as patch:
        patch.setattr(ThreadingHTTPServer, "serve_forever", lambda server: servers.append(server))
        exec(compile(SERVER, "serve.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    (server,) = servers
    monkeypatch.setattr(server.RequestHandlerClass, "log_message", lambda *_: None)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(HANG)
    server.server_close()


def answer(address: str, content: bytes) -> tuple[int, dict]:
    try:
        with urlopen(Request(address, content), timeout=HANG) as reply:
            return reply.status, json.loads(reply.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_server_of_the_page_answers_16_threads_as_predict_does(address):
    sizes = [(20 + 9 * number % 70, 40 + number) for number in range(40)]
    files = [save_picture(f"{i}.{'jpg' if i % 3 else 'png'}", size) for i, size in enumerate(sizes)]
    rows = document("predict", "cifar10-pocket", *files, "--top", 10, "--device", "cpu")["pictures"]
    with ThreadPoolExecutor(16) as pool:
        contents = [Path(file).read_bytes() for file in files] * 3
        replies = [*pool.map(lambda content: answer(address, content), contents)]
    for (status, reply), row in zip(replies, rows * 3, strict=True):
        assert status == 200
        assert reply["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
        assert reply | {"file": row["file"]} == row | {
            name: reply[name] for name in ("probability", "probabilities")
        }
    assert len({reply["probability"] for _, reply in replies}) > 30
    status, reply = answer(address, b"words")
    assert (status, reply["error"].partition(",")[0]) == (400, "picture: not a picture: PNG")


def test_the_page_needs_twenty_lines_and_public_names():
    lines = [line for line in SERVER.splitlines()[1:] if line.strip()]
    assert len(lines) <= 20
    assert "from vitcli" not in SERVER + LOOP


def test_the_first_program_of_the_page_runs(here, capsys):
    save_picture("photo.jpg", (60, 40))
    exec(compile(LOOP, "loop.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    assert "missing.jpg: cannot be opened" in capsys.readouterr().out
