"""Write the generated tables of README.md and docs/*.md. With --check, only compare them.

Each table is between <!-- NAME --> and <!-- /NAME --> on exactly one page. Results come from
experiments/results, verdicts from experiments/claims. Choices and questions come from the commands
that print them.
"""

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark_tables import attention_growth, checkpoints, faults, gpu, launches, peers, sizes
from factorial_tables import beside, draw_factorial, interactions, levels
from length_figure import draw_lengths, lengths_say
from pretraining_tables import draw as draw_pretraining
from pretraining_tables import gates, pretraining
from search_tables import draw as draw_search
from search_tables import final, found, samplers, samplers_say
from sentences import growth_sentences
from slot_tables import slots
from statistics_tables import simulation
from study_tables import (
    COMPARED,
    classification_says,
    draw_forest,
    study,
    study_brief,
    study_details,
    study_says,
    study_short,
)

from experiments.claims.claims import TABLES as CLAIMS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = ROOT / "experiments" / "results"
STATED = {
    "cifar10-tiny": "71.51 % (training notes)",
    "cifar10-tiny-native": "none",
    "cifar10-tiny-fast": "71.51 % (training notes)",
}
STATED_ACCURACY = 0.7151
"""Test accuracy stated by the training notes, after 50 epochs."""


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else None


def finished(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the finished trials of the result of a single experiment."""
    return [t for t in result["rows"][0]["trials"] if t["state"] == "finished"]


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def source(result: dict[str, Any]) -> str:
    commit = (result["commits"] or ["unknown"])[0][:9]
    hardware, precision = (", ".join(result[name]) for name in ("hardware", "precision"))
    return f"{hardware}; {precision}; {result['date']}, commit {commit}"


KINDS = ("amx", "avx512", "avx2")


def quickstarts() -> dict[str, dict[str, Any]]:
    """Return the result of the quickstart on each kind of CPU."""
    found = {kind: load(f"quickstart-{kind}") for kind in KINDS}
    return {kind: result for kind, result in found.items() if result}


def quickstart() -> str:
    """Return the accuracy and the time of each seed on each kind of CPU."""
    rows = ["| kind of CPU | seed | test accuracy | training |", "|---|---|---|---|"]
    notes = []
    for kind, result in quickstarts().items():
        trials, shares = finished(result), []
        for t in trials:
            accuracy, time = percent(t["test_accuracy"]), minutes(t["train_seconds"])
            rows.append(f"| {kind} | {t['seed']} | {accuracy} % | {time} |")
            shares.append(100 * t["test_accuracy"])
        mean = f"{statistics.mean(shares):.2f} +- {statistics.stdev(shares):.2f} %"
        notes.append(f"{kind}: {mean} over {len(shares)} seeds ({source(result)})")
    return "\n".join([*rows, "", "Last epoch, two cores. " + ". ".join(notes) + "."])


def quickstart_times() -> str:
    """Return the time of the quickstart on each kind of CPU."""
    rows = ["| CPU | training | test accuracy of three seeds |", "|---|---|---|"]
    for result in quickstarts().values():
        trials = finished(result)
        time = minutes(statistics.median(t["train_seconds"] for t in trials))
        shares = sorted(t["test_accuracy"] for t in trials)
        accuracy = f"{percent(shares[0])} to {percent(shares[-1])} %"
        name = "; ".join([*result["hardware"], *result["precision"]])
        rows.append(f"| {name} | {time} | {accuracy} |")
    return "\n".join(rows)


def experiments() -> str:
    rows = [
        "| experiment | parameters | epochs | test accuracy, last epoch | stated accuracy | time |",
        "|---|---|---|---|---|---|",
    ]
    notes = []
    for name, stated in STATED.items():
        result = load(name)
        if result is None:
            continue
        trials = finished(result)
        accuracy = ", ".join(f"{percent(t['test_accuracy'])} % (seed {t['seed']})" for t in trials)
        shares = [t["test_accuracy"] for t in trials]
        if len(trials) > 1:
            spread = statistics.stdev(shares)
            each = ", ".join(map(percent, shares))
            accuracy = f"{percent(statistics.mean(shares))} +- {percent(spread)} % ({each})"
        time = ", ".join(minutes(t["train_seconds"]) for t in trials)
        parameters = f"{result['rows'][0]['parameters']:,}"
        epochs = trials[0]["epochs"]
        rows.append(f"| `{name}` | {parameters} | {epochs} | {accuracy} | {stated} | {time} |")
        notes.append(f"`{name}`: {source(result)}")
        if len(trials) > 1:
            notes[-1] += f"; seeds {', '.join(str(trial['seed']) for trial in trials)}"
        if reached := [passing(trial, STATED_ACCURACY) for trial in trials if trial.get("curve")]:
            notes[-1] += f". It passes {percent(STATED_ACCURACY)} % {', '.join(reached)}"
    if not notes:
        return ""
    return "\n".join(
        [*rows, "", "All 50,000 + 10,000 images of CIFAR-10. " + ". ".join(notes) + "."]
    )


def passing(trial: dict[str, Any], accuracy: float) -> str:
    """Return the first measured epoch with this accuracy, ``by epoch 10 (about 5 min, seed 0)``."""
    epoch = next((epoch for epoch, found in trial["curve"] if found >= accuracy), None)
    if epoch is None:
        return f"never (seed {trial['seed']})"
    seconds = trial["train_seconds"] * epoch / trial["epochs"]
    return f"by epoch {epoch} (about {minutes(seconds)}, seed {trial['seed']})"


def growth_says() -> str:
    """Return where the measured growth of each attention's cost differs from the stated growth."""
    found = json.loads((RESULTS / "speed" / "attention-cpu.json").read_text())
    return "\n".join(f"- {sentence}" for sentence in growth_sentences(found["rows"]))


def numbers(name: str) -> dict[str, Any] | None:
    """Return the numbers that ``vitcli visualize NAME`` measured, or None without a file."""
    return load(f"visualize-{name}")


def measured_by(found: dict[str, Any]) -> str:
    commit = (found["commit"] or "unknown")[:9]
    return f"`{found['command']}`; {found['hardware']}; commit {commit}."


def reach(name: str) -> str:
    """Return the attention distance by layer, and a verdict on each claim of the course report."""
    from vitcli.runner.visualize.claims import full_verdict

    found = numbers(name)
    if found is None:
        return ""
    far = found["distance"]
    rows = [
        "| layer | distance, pixels | of uniform attention | nearest to farthest head | in 3x3 |",
        "|---:|---:|---:|---:|---:|",
    ]
    rows += [
        f"| {r['layer']} | {r['distance']:.2f} +- {r['distance_sd']:.2f} | {r['of_uniform']:.2f} |"
        f" {r['nearest_head']:.2f} to {r['farthest_head']:.2f} | {100 * r['near_share']:.0f} % |"
        for r in far["layers"]
    ]
    said = ["| claim of the course report, for this model | verdict | measured |", "|---|---|---|"]
    said += [f"| {c['claim']} | {full_verdict(c)} | {measured(c)} |" for c in far["claims"]]
    note = (
        f"`{name}`, {percent(found['test_accuracy'])} % on the test set; n = {far['n']:,} test"
        " images, +- is the standard deviation over images. Uniform attention has a distance of"
        f" {far['uniform_distance']:.2f} pixels and {100 * far['uniform_near_share']:.0f} % of its"
        f" weight within 3x3 patches. {measured_by(found)}"
    )
    return "\n".join([*rows, "", *said, "", note])


def measured(claim: dict[str, Any]) -> str:
    """Return the numbers of a claim, with those of untrained models if they were measured."""
    from vitcli.runner.visualize.claims import describe_untrained

    interval = describe_untrained(claim)
    return claim["measured"] + (f"; untrained models: {interval}" if interval else "")


def faithfulness(name: str) -> str:
    """Return the deletion and insertion areas of each method."""
    found = numbers(name)
    if found is None:
        return ""
    table = found["faithfulness"]
    rows = [
        "| map | deletion (lower is better) | insertion (higher is better) | insertion - deletion |"
        " difference to random | difference to centre |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in table["methods"]:
        against = [
            "" if row["method"] == other else "{:+.3f} +- {:.3f}".format(*row[f"against_{other}"])
            for other in ("random", "centre")
        ]
        cells = [f"{row[k]:.3f}" for k in ("deletion_area", "insertion_area", "gap")]
        rows.append(f"| {row['method']} | {' | '.join([*cells, *against])} |")
    note = (
        f"Areas under the curves of the predicted class's probability, `{name}`, n = {table['n']:,}"
        " test images. Differences are paired by image; +- is half the 95 % interval. Best map:"
        f" {table['best']}, {'{:+.3f} +- {:.3f}'.format(*table['best_against_next'])} against"
        f" {table['next']}. {measured_by(found)}"
    )
    return "\n".join([*rows, "", note])


def randomisation(name: str) -> str:
    """Return the rank correlations of each method while layers lose their trained weights."""
    found = numbers(name)
    if found is None:
        return ""
    check = found["faithfulness"]["randomisation"]
    methods = check["methods"]
    rows = [
        f"| re-initialised down to | {' | '.join(row['method'] for row in methods)} |",
        f"|---|{'---:|' * len(methods)}",
    ]
    for step, part in enumerate(check["parts"]):
        cells = ["{:z.2f} +- {:.2f}".format(*row["correlation"][step]) for row in methods]
        rows.append(f"| {part} | {' | '.join(cells)} |")
    note = (
        f"Spearman's rank correlation with the map of the trained `{name}`, mean of {check['n']}"
        f" test images and {len(check['seeds'])} draws of initial weights; +- is half the 95 %"
        f" interval over draws. {measured_by(found)}"
    )
    chosen = (
        ""
        if check["choice"] is None
        else f" Best of the maps that depend on them:"
        f" {check['choice']}, by insertion minus deletion."
    )
    return "\n".join([*rows, "", check["sentence"] + chosen, "", note])


def pocket() -> str:
    """Return accuracy, size and origin of the bundled model."""
    folder = ROOT / "vitcli" / "pretrained" / "cifar10-pocket"
    if not folder.exists():
        return ""
    result = json.loads((folder / "result.json").read_text())
    meta = json.loads((folder / "meta.json").read_text())
    size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    low, high = (percent(bound) for bound in result["accuracy_interval_95"])
    rows = ["| test accuracy, last epoch | 95 % interval | parameters | file | epochs | time |"]
    rows += ["|---|---|---|---|---|---|"]
    rows.append(
        f"| {percent(result['test_accuracy'])} % (seed 0) | {low} to {high} % |"
        f" {result['parameters']:,} | {size / 1e6:.2f} MB | {result['epochs']} |"
        f" {minutes(result['train_seconds'])} |"
    )
    made = f"`{meta['command']}`; {meta['hardware']}; {result['precision']}; "
    made += f"{meta['started'][:10]}, commit {meta['commit'][:9]}"
    return "\n".join(
        [*rows, "", f"The interval covers the sampling error of the test set only. {made}."]
    )


@cache
def printed(*words: str) -> Any:
    """Return the JSON document that a vitcli command prints."""
    command = [sys.executable, "-m", "vitcli", *words]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def questions(kind: str) -> str:
    """Return all shipped experiments or studies with their questions."""
    listed = [each for each in printed("experiments", "ls", "--json") if each["kind"] == kind]
    rows = [f"| {kind} | question |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{each['name']}` | {each['question']} |" for each in listed)])


TABLES: dict[str, Callable[[], str]] = {
    "quickstart": quickstart,
    "quickstart-times": quickstart_times,
    "experiments": experiments,
    "ablation-quickstart": partial(study, "ablation-quickstart"),
    "ablation-cifar10-tiny": partial(study, "ablation-cifar10-tiny"),
    "ablation-cifar10-full": partial(study, "ablation-cifar10-full"),
    "ablation-cifar10-full-details": partial(study_details, "ablation-cifar10-full"),
    "ablation-cifar10-full-short": partial(study_short, "ablation-cifar10-full"),
    "ablation-length-5": partial(study_brief, "ablation-length-5"),
    "ablation-length-says": lengths_say,
    "gpu": gpu,
    **{name: partial(study_brief, name) for name in COMPARED},
    "classification-cifar10-short": partial(study, "classification-cifar10-short"),
    "classification-cifar10-short-says": partial(
        classification_says, "classification-cifar10-short"
    ),
    "ablation-factorial": partial(study, "ablation-factorial"),
    "ablation-factorial-interactions": partial(interactions, "ablation-factorial"),
    "ablation-factorial-layernorm": partial(beside, "ablation-factorial", "no-layernorm"),
    "factorial-levels": levels,
    "samplers": samplers,
    "samplers-say": samplers_say,
    "search-tiny": partial(found, "search-tiny"),
    "search-tiny-final": partial(final, "search-tiny"),
    "ablation-quickstart-says": partial(study_says, "ablation-quickstart"),
    "ablation-cifar10-tiny-says": partial(study_says, "ablation-cifar10-tiny"),
    "ablation-cifar10-full-says": partial(study_says, "ablation-cifar10-full"),
    "study-architectures-tiny-says": partial(study_says, "study-architectures-tiny"),
    "attention-growth-says": growth_says,
    "pocket": pocket,
    "reach-pocket": partial(reach, "cifar10-pocket"),
    "reach-cls": partial(reach, "cifar10-report-narrow"),
    **{
        name: partial(peers, name)
        for kind in KINDS
        for name in (f"peers-{kind}", f"peers-{kind}-compiled")
    },
    "faults": faults,
    "checkpoint-cost": checkpoints,
    "study-architectures-tiny": partial(study, "study-architectures-tiny"),
    "attention-growth": attention_growth,
    "launches": launches,
    "sizes": sizes,
    "faithfulness": partial(faithfulness, "cifar10-pocket"),
    "randomisation": partial(randomisation, "cifar10-pocket"),
    **CLAIMS,
    "gates": gates,
    "pretraining": pretraining,
    "simulation": simulation,
    "slots": slots,
    "list-of-experiments": partial(questions, "experiment"),
    "list-of-studies": partial(questions, "study"),
}


def fill(page: str, tables: dict[str, str]) -> str:
    """Return the text of a page, with each marked block replaced by its table."""
    for name in re.findall(r"^<!-- ([\w-]+) -->$", page, re.MULTILINE):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if name not in tables or page.count(begin) != 1 or page.count(end) != 1:
            raise SystemExit(f"no table {name!r}, or no single <!-- /{name} -->")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{tables[name]}\n{end}{rest.partition(end)[2]}"
    return page


def check_places(pages: dict[Path, str]) -> None:
    """Check that each table has exactly one place in the pages."""
    for name in TABLES:
        places = sum(text.count(f"<!-- {name} -->\n") for text in pages.values())
        if places != 1:
            raise SystemExit(f"the table {name!r} has {places} places in README.md and docs/")


def main() -> None:
    before = {path: path.read_text() for path in PAGES}
    check_places(before)
    tables = {name: table() for name, table in TABLES.items()}
    stale = {path: text for path in PAGES if (text := fill(before[path], tables)) != before[path]}
    if "--check" in sys.argv:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            raise SystemExit(f"stale: {names}; run: python .ci/docs.py")
        return
    for path, text in stale.items():
        path.write_text(text)
    draw_forest("ablation-cifar10-tiny", "ablation-cifar10-full")
    draw_lengths()
    draw_factorial("ablation-factorial")
    draw_pretraining()
    draw_search("search-tiny")


if __name__ == "__main__":
    main()
