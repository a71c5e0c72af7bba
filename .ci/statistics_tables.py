"""The table of docs/statistics.md."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "experiments" / "results" / "statistics" / "simulation.json"
COLUMNS = {
    "interval": "95 % interval holds",
    "joint": "five joint intervals hold",
    "pooled": "five pooled intervals hold",
    "lucky_joint": "small seed share: joint interval holds",
    "lucky_pooled": "small seed share: pooled interval holds",
    "different": "a false better or worse",
    "equivalent": "a false equivalent",
}


def simulation() -> str:
    """Return the shares of the committed simulation, in percent."""
    if not RESULT.exists():
        return ""
    stored = json.loads(RESULT.read_text())
    rows = [
        f"| studies | {' | '.join(COLUMNS.values())} |",
        f"|{'---|' * (len(COLUMNS) + 1)}",
    ]
    for name, shares in stored["results"].items():
        cells = [f"{100 * shares[key]:.1f} %" if key in shares else "" for key in COLUMNS]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    made = f"{stored['date']}, commit {stored['commit'][:9]}"
    counts = (
        f"{stored['studies']:,} studies a row; shares with a small seed share only where there are"
        " 50 such rows"
    )
    return "\n".join([*rows, "", f"{counts}, {stored['images']} test images ({made})."])
