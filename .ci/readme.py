"""Write README's result tables from experiments/results/*.json; with --check only compare.

Each table stands between <!-- NAME --> and <!-- /NAME -->.
"""

import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
README = ROOT / "README.md"
RESULTS = ROOT / "experiments" / "results"
STATED = {
    "cifar10-tiny": "71.51 % (first source)",
    "cifar10-tiny-native": "none",
}


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else None


def finished(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The trials of a single experiment that ran to their end."""
    return [t for t in result["rows"][0]["trials"] if t["state"] == "finished"]


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def source(result: dict[str, Any]) -> str:
    date, commit = result.get("date", ""), (result["commit"] or "unknown")[:9]
    return f"{result['hardware']}; {result.get('precision', '')}; {date}, commit {commit}"


def quickstart() -> str:
    result = load("quickstart")
    if result is None:
        return ""
    rows = ["| seed | test accuracy | time |", "|---|---|---|"]
    trials = finished(result)
    rows += [
        f"| {t['seed']} | {percent(t['test_accuracy'])} % | {minutes(t['train_seconds'])} |"
        for t in trials
    ]
    shares = [100 * t["test_accuracy"] for t in trials]
    spread = f" +- {statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
    mean = f"{statistics.mean(shares):.2f}{spread} % over {len(shares)} seeds, last epoch"
    return "\n".join([*rows, "", f"{mean} ({source(result)})."])


def experiments() -> str:
    rows = [
        "| experiment | parameters | epochs | test accuracy, last epoch | the source says | time |",
        "|---|---|---|---|---|---|",
    ]
    notes = []
    for name, stated in STATED.items():
        result = load(name)
        if result is None:
            continue
        trials = finished(result)
        accuracy = ", ".join(f"{percent(t['test_accuracy'])} % (seed {t['seed']})" for t in trials)
        time = ", ".join(minutes(t["train_seconds"]) for t in trials)
        parameters = f"{result['rows'][0]['parameters']:,}"
        epochs = trials[0]["epochs"]
        rows.append(f"| `{name}` | {parameters} | {epochs} | {accuracy} | {stated} | {time} |")
        notes.append(f"`{name}`: {source(result)}")
    if not notes:
        return ""
    return "\n".join(
        [*rows, "", "All 50,000 + 10,000 images of CIFAR-10. " + ". ".join(notes) + "."]
    )


def study(name: str) -> str:
    """A study's table with its footnotes, as ``vitcli ablate --format md`` prints it."""
    from vitcli.runner.study.table import read_document, render

    path = RESULTS / f"{name}.json"
    return render(read_document(path.read_text()), "md") if path.exists() else ""


TABLES: dict[str, Callable[[], str]] = {
    "quickstart": quickstart,
    "experiments": experiments,
    "ablation-quickstart": partial(study, "ablation-quickstart"),
    "ablation-cifar10-tiny": partial(study, "ablation-cifar10-tiny"),
}


def rendered(text: str) -> str:
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"README.md: no place for the table {name!r}")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table()}\n{end}{rest.partition(end)[2]}"
    return text


def draw_forest() -> None:
    """README's figure; not compared, since its bytes depend on matplotlib's version."""
    from vitcli.runner.figure_file import encode
    from vitcli.runner.study.figures import forest
    from vitcli.runner.study.table import read_document

    doc = read_document((RESULTS / "ablation-cifar10-tiny.json").read_text())
    (RESULTS / "ablation-cifar10-tiny.png").write_bytes(encode(partial(forest, doc), "png"))


def main() -> None:
    before = README.read_text()
    after = rendered(before)
    if "--check" in sys.argv:
        if before != after:
            raise SystemExit("README.md is stale; run: python .ci/readme.py")
        return
    README.write_text(after)
    draw_forest()


if __name__ == "__main__":
    main()
