"""Count the files and functions of vitcli that run before, between and after the steps.

    python experiments/speed/path_of_a_training.py [--list]

It trains ``quickstart`` for two steps, as ``vitcli train quickstart --epochs 1 --limit-batches 2``
does, in a temporary folder. The functions are counted with ``sys.setprofile``, in this thread. What
the first step calls belongs to "between". Beside each count stands the one that counts the bodies
of classes, too: they run once, when their module is imported. Run it twice: the first run may draw
the data set and compile kernels.
"""

import argparse
import inspect
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
    is_begun = False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal done, is_begun
        code = frame.f_code
        if not code.co_filename.startswith(ROOT):
            return
        is_step = code.co_qualname == "Training.take_step"
        if event == "call":
            is_begun = is_begun or is_step
            parts[2 if done == STEPS else 1 if is_begun else 0].add(code)
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
        all_code = {code for code in codes if not code.co_name.startswith("<")}
        functions = {code for code in all_code if code.co_flags & inspect.CO_OPTIMIZED}
        files = files_of(functions)
        say(
            f"{name:<7}  {len(files):>3} files  {len(functions):>3} functions"
            f"  (with class bodies {len(files_of(all_code))} files, {len(all_code)})"
        )
        for file, names in files.items() if is_listed else ():
            say(f"          {file}: {', '.join(names)}")
    say(f"{len([name for name in sys.modules if name.startswith('vitcli')])} modules are loaded")


def files_of(functions: set[CodeType]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for code in sorted(functions, key=lambda code: (code.co_filename, code.co_firstlineno)):
        files.setdefault(code.co_filename.removeprefix(f"{ROOT}/"), []).append(code.co_qualname)
    return files


if __name__ == "__main__":
    main()
