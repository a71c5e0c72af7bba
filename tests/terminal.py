"""A terminal of a chosen width, for the tests of what people see."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.patience import HANG


@contextmanager
def open_terminal(
    *words: str, environment: Mapping[str, str], width: int = 80
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    terminal, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    shell = {name: value for name, value in environment.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "vitcli", *words],
        env=shell | {"TERM": "xterm"},
        stdin=child,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    try:
        yield process, terminal
    finally:
        process.kill()
        process.wait(HANG)
        os.close(terminal)


def run_in_terminal(
    *words: str, environment: Mapping[str, str], width: int, typed: bytes = b""
) -> tuple[int, str]:
    with open_terminal(*words, environment=environment, width=width) as opened:
        process, terminal = opened
        os.write(terminal, typed)
        printed = read_until_end(terminal)
        code = process.wait(HANG)
    return code, printed.decode().replace("\r\n", "\n")


def read_until(terminal: int, text: bytes) -> bytes:
    printed, end = b"", time.monotonic() + HANG
    while text not in printed:
        is_ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        chunk = _read(terminal) if is_ready else b""
        assert chunk, f"{text!r} is missing: {printed[-2000:].decode(errors='replace')}"
        printed += chunk
    return printed


def read_until_end(terminal: int) -> bytes:
    printed = b""
    while chunk := _read(terminal):
        printed += chunk
    return printed


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux reports the end of the child so
        return b""
