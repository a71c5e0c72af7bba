"""The program `vitcli`, also as `python -m vitcli`.

This module imports little, so that it soon decides what Ctrl-C does.
"""

import os
import signal
import sys
from types import FrameType

STOPPED = "stopped immediately\n"
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


def main() -> None:
    """Run vitcli. Ctrl-C ends it with one line, also while modules are imported."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        _require_utf8()
        from vitcli.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write(STOPPED)
        sys.exit(130)
    finally:
        if is_heard:  # Python's own handler would show a traceback while Python ends
            signal.signal(signal.SIGINT, _leave)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but end the process at once while a module is imported.

    A half-initialised module may turn KeyboardInterrupt into any other error.
    """
    while frame:
        if frame.f_code.co_filename == IMPORT_SYSTEM:
            _leave(number, frame)
        frame = frame.f_back
    raise KeyboardInterrupt


def _leave(number: int, _: FrameType | None) -> None:
    os.write(2, STOPPED.encode())
    os._exit(128 + number)


def _require_utf8() -> None:
    """Begin again in Python's UTF-8 mode if the locale has another encoding, such as ASCII.

    Otherwise names of files and classes cannot be printed, and cannot be read back from a run.
    """
    import locale

    is_utf8 = sys.flags.utf8_mode or locale.getencoding().lower().replace("-", "") == "utf8"
    if is_utf8 or os.environ.get("PYTHONUTF8") == "1" or sys.platform == "win32":
        return
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
