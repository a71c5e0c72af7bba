"""Compare the memory that --dry-run states with the peak of training steps.

Usage: python experiments/speed/memory.py EXPERIMENT [options of vitcli train and of bench train]
On a CPU, the peak is that of the whole process.
"""

import json
import subprocess
import sys
from typing import Any


def document(*words: str) -> dict[str, Any]:
    """Return the JSON document of a vitcli command; what it says goes to stderr."""
    command = [sys.executable, "-m", "vitcli", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(done.returncode)
    return dict(json.loads(done.stdout))


def main() -> None:
    options = sys.argv[1:]
    stated = document("train", *options, "--dry-run")["estimated_memory_bytes"]
    measured = document("bench", "train", *options, "--rounds", "1", "--seconds", "0")
    peak = measured["peak_memory_bytes"]
    found = {"setting": measured["setting"], "stated_bytes": stated, "peak_bytes": peak}
    print(json.dumps(found | {"stated_by_peak": stated / peak}))  # noqa: T201


if __name__ == "__main__":
    main()
