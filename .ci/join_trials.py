"""Move saved trials of vitcli 0.8 and older, two files each, into the files of their seeds.

Usage: python .ci/join_trials.py [FOLDER]

FOLDER is experiments/results/trials by default. Each trial is checked before it is moved. A trial
that the file of its seed has already is removed. The script can be run again at any time.
"""

import argparse
from pathlib import Path

from vitcli.runner.run.store import MARGINS, read_lines, read_single, save
from vitcli.runner.study.saved import SAVED


def join_trial(path: Path, folder: Path) -> bool:
    """Move a trial, and return whether the file is one."""
    found = read_single(path) if path.name != MARGINS else None
    if found is None:
        return False
    found.check()
    value = {name: found.value[name] for name in ("study", "variant", "config", "record")}
    lines = read_lines(folder / value["study"] / f"seed{found.seed}.jsonl")
    if found.key in [each.key for each in lines]:
        path.unlink()
        path.with_suffix(".npz").unlink(missing_ok=True)
    else:
        save(folder, value, found.predictions if found.members else None, replace=True)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=SAVED)
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"{folder}: no such folder")
    count = sum(join_trial(path, folder) for path in sorted(folder.rglob("*.json")))
    print(f"{count} trials moved")  # noqa: T201


if __name__ == "__main__":
    main()
