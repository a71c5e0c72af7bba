"""A terminal of a chosen width, for the tests of what people see."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping

from tests.patience import HANG


def run_in_terminal(
    *words: str, environment: Mapping[str, str], width: int, typed: bytes = b""
) -> tuple[int, str]:
    """Run ``vitcli`` in a terminal; return its exit code and all that it printed there."""
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
    os.write(terminal, typed)
    printed = b""
    try:
        while chunk := _read(terminal):
            printed += chunk
        code = process.wait(HANG)
    finally:
        process.kill()
        os.close(terminal)
    return code, printed.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux reports the end of the child so
        return b""
