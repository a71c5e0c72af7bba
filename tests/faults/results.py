"""The result file of the campaigns: one row each, with the commit that it is about."""

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

from vitcli.runner.machine.device import cpu_name
from vitcli.version import source_commit

FILE = Path(__file__).parents[2] / "experiments" / "results" / "speed" / "faults.json"


def keep(row: dict[str, Any], path: Path = FILE) -> None:
    """Put a row in the place of the older one of its campaign (and target)."""
    row |= {"commit": source_commit()[0], "dirty": is_dirty(), "hardware": cpu_name()}
    row |= {"date": datetime.date.today().isoformat()}
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    others = [old for old in rows if name(old) != name(row)]
    ordered = sorted([*others, row], key=name)
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def is_dirty() -> bool:
    command = ["git", "diff", "--name-only", "HEAD"]
    done = subprocess.run(command, cwd=FILE.parent, capture_output=True, text=True, check=True)
    return any(Path(line).name != FILE.name for line in done.stdout.splitlines())


def name(row: dict[str, Any]) -> str:
    return f"{row['campaign']} {row.get('target', '')}"
