"""Count the files and functions of vitcli that run before, between and after the steps.

    python experiments/speed/path_of_a_training.py [--list]

It trains ``quickstart`` for two steps, as ``vitcli train quickstart --epochs 1 --limit-batches 2``
does, in a temporary folder. The functions are counted with ``sys.setprofile``, in this thread.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import vitcli

ROOT = str(Path(vitcli.__file__).parent)
COMMAND = ["train", "quickstart", "--epochs", "1", "--limit-batches", "2", "-q"]
STEPS = 2


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the files, too")
    is_listed = parser.parse_args().list
    parts: list[set[CodeType]] = [set(), set(), set()]
    done = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal done
        code = frame.f_code
        if not code.co_filename.startswith(ROOT):
            return
        is_step = code.co_qualname == "Training.take_step"
        if event == "call":
            parts[2 if done == STEPS else 1 if done or is_step else 0].add(code)
        elif event == "return" and is_step:
            done += 1

    from vitcli.__main__ import main as run

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.argv = ["vitcli", *COMMAND]
        sys.setprofile(profile)
        try:
            run()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    for name, codes in zip(("before", "between", "after"), parts, strict=True):
        functions = {code for code in codes if not code.co_name.startswith("<")}
        files = sorted({code.co_filename.removeprefix(f"{ROOT}/") for code in functions})
        say(f"{name:<7}  {len(files):>3} files  {len(functions):>3} functions")
        if is_listed:
            say("\n".join(f"          {file}" for file in files))
    say(f"{len([name for name in sys.modules if name.startswith('vitcli')])} modules are loaded")


if __name__ == "__main__":
    main()
