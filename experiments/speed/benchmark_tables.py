"""The tables of docs/ about the speed and the safety of vitcli, from results/speed/*.json."""

import json
import re
from pathlib import Path
from typing import Any

from vitcli.runner.report.tables import markdown_grid
from vitcli.runner.text import join_words

ROOT = Path(__file__).resolve().parents[2]


def measured(name: str) -> Any:
    """Return the content of a result file."""
    return json.loads((ROOT / "experiments" / "results" / "speed" / f"{name}.json").read_text())


def peers(name: str) -> str:
    """Return the speed of vitcli divided by the speed of each peer in its faster mode."""
    found: list[dict[str, Any]] = measured(name)
    names = sorted({peer for row in found for peer in row["ratios"]})
    rows = []
    for row in found:
        ratios = (row["ratios"].get(peer) for peer in names)
        part = {"step": "model step", "end_to_end": "end to end"}[row["part"]]
        cells = [f"{ratio:.2f}" if ratio else "crashed" for ratio in ratios]
        rows.append([row["model"], part, *cells, f"**{row['ratio']:.2f}**"])
    header = ["model", "part", *names, "fastest of them"]
    first = found[0]
    versions = ", ".join(f"{package} {version}" for package, version in first["versions"].items())
    commits = "commit " + ", ".join(dict.fromkeys(row["commit"][:9] for row in found))
    memory = ", ".join(
        f"{row['model']} {row['memory']['ours'] / 2**20:,.0f} MB"
        f" ({row['memory']['leanest_peer'] / 2**20:,.0f} MB)"
        for row in found
        if row["part"] == "end_to_end"
    )
    given = " with torch.compile and vitcli's allocator settings" if first["peers_compiled"] else ""
    return (
        f"{markdown_grid(header, rows, range(2, len(header)))}\n\n"
        "Images per second of vitcli divided by those of each library in its faster mode, fp32 or"
        f" bf16 autocast{given}. Medians of {first['repetitions']} interleaved turns on"
        f" {first['data']}; {first['hardware']}; {versions}; {first['date']}, {commits}. Peak"
        f" memory end to end (in brackets that of the leanest other library): {memory}."
    )


def launches() -> str:
    """Return the launches of a training step of each experiment on the stub GPU."""
    found = json.loads((ROOT / "tests" / "gpu_stub" / "ceilings.json").read_text())
    counts, compiled = found["launches"], found["compiled"]
    names = [name for name in counts if (ROOT / "experiments" / f"{name}.yaml").exists()]
    rows = []
    for name in names:
        total = f"{compiled[name]:,}" if name in compiled else ""
        rows.append([name, f"{counts[name]:,}", total, str(counts[f"{name}, graph"])])
    header = ["experiment", "kernel by kernel", "compiled", "as a graph"]
    return f"{markdown_grid(header, rows, range(1, 4))}\n\nCounted with torch {found['torch']}."


def attention_growth() -> str:
    """Return the cost of the attention rules, with fitted and stated exponents."""
    found = measured("attention-cpu")
    shown = (64, 1024, 4096)
    header = ["attention", *(f"{n:,} tokens, ms" for n in shown), "time grows as", "stated"]
    header += ["4,096 tokens, MB", "memory grows as", "stated", "faster than fused softmax from"]
    (fused,) = [row for row in found["rows"] if row["kernels"] == "fused"]

    def growth(exponent: list[float] | None) -> str:
        return f"N^{exponent[0]:.2f} +- {exponent[1]:.2f}" if exponent else ""

    rows = []
    for row in found["rows"]:
        points = {point["tokens"]: point for point in row["points"]}
        rows.append(
            [
                name_of(row),
                *(f"{1e3 * points[n]['seconds']:.1f}" if n in points else "" for n in shown),
                *(growth(row["time_exponent"]), row["stated_time"]),
                f"{points[4096]['kept_bytes'] / 1e6:,.0f}" if 4096 in points else "",
                *(growth(row["memory_exponent"]), row["stated_memory"], crossing(row, fused)),
            ]
        )
    by = found["environment"]
    return (
        f"{markdown_grid(header, rows, (1, 2, 3, 6))}\n\n"
        f"{found['setting'][0].upper()}{found['setting'][1:]}. Exponents are fitted to 512 tokens"
        " and more; +- is half the 95 % interval. Memory is what autograd keeps for the backward"
        " pass. Empty cells exceeded the 4 s limit. torch"
        f" {by['torch']}; {found['date']}, commit {by['commit'][:9]}."
    )


def name_of(row: dict[str, Any]) -> str:
    """Return the name of an attention rule, with its kernels if they are not the plain ones."""
    return str(row["attention"] + ("" if row["kernels"] == "plain" else f", {row['kernels']}"))


def crossing(row: dict[str, Any], fused: dict[str, Any]) -> str:
    """Return the smallest length from which a rule is always faster than fused softmax."""
    limit = {point["tokens"]: point["seconds"] for point in fused["points"]}
    both = [point for point in row["points"] if point["tokens"] in limit]
    start = None
    for point in reversed(both):
        if point["seconds"] >= limit[point["tokens"]]:
            break
        start = point["tokens"]
    return f"{start:,} tokens" if start else ""


GROWTHS = {
    "around": "contains the stated exponent",
    "above": "lies above the stated exponent: the cost grows faster than stated",
    "below": "lies below the stated exponent: the cost grows more slowly than stated",
}
"""Where an interval lies -> what that says."""


def growth_says() -> str:
    """Return where the measured growth of each attention's cost differs from the stated growth."""
    sentences = growth_sentences(measured("attention-cpu")["rows"])
    return "\n".join(f"- {sentence}" for sentence in sentences)


def growth_sentences(rows: list[dict[str, Any]]) -> list[str]:
    """Return where the fitted exponents of each cost lie, beside the stated exponents.

    Args:
        rows: Rows of ``vitcli bench attention``, with ``time_exponent`` and ``memory_exponent`` as
            exponent and half its 95 % interval, and ``stated_time`` and ``stated_memory``.
    """
    sentences = []
    for cost in ("time", "memory"):
        found: dict[str, list[str]] = {where: [] for where in GROWTHS}
        for row in rows:
            if row[f"{cost}_exponent"]:
                exponent, error = row[f"{cost}_exponent"]
                stated = stated_exponent(row[f"stated_{cost}"])
                # Memory is counted, not timed: an exact fit has an interval of width zero.
                low, high = exponent - error - 1e-6, exponent + error + 1e-6
                where = "above" if low > stated else "below" if high < stated else "around"
                found[where].append(f"`{name_of(row)}` ({exponent:.2f}; stated {stated:g})")
        sentences += [
            f"{cost.capitalize()}: the 95 % interval {GROWTHS[where]}, for {join_words(names)}."
            for where, names in found.items()
            if names
        ]
    return sentences


def stated_exponent(text: str) -> float:
    """Return the exponent of a stated growth: ``N`` -> 1, ``N^1.5`` -> 1.5."""
    found = re.fullmatch(r"N(?:\^([\d.]+))?", text)
    if found is None:
        raise ValueError(f"{text!r} is no power of N")
    return float(found[1] or 1)


def checkpoints() -> str:
    """Return the cost of checkpoints and the time from a resume to its first step."""
    found = measured("checkpoint-cost")
    pairs = [100 * ratio - 100 for ratio in found["ratios"]]
    given = f"`{found['experiment']}`, {found['epochs']} epochs"
    by = f"{found['hardware']}, commit {found['commit'][:9]}"
    return (
        f"Checkpoints and metrics cost {100 * found['cost']:.1f} % of a training's time (median of"
        f" {len(pairs)} interleaved pairs, {min(pairs):+.1f} to {max(pairs):+.1f} %; {given}). A"
        f" resumed run takes its first step {found['resume_seconds']:.2f} s after the imports"
        f" (`python experiments/speed/checkpoint_cost.py`; {by})."
    )


def gpu() -> str:
    """Return how fast one and several trainings are on the GPU that was measured."""
    found = measured("gpu")
    rows = []
    for row in found["sharing"]:
        each, count = row["images_per_second"], row["count"]
        mps = "yes" if row["mps"] else "no"
        rows.append([str(count), mps, f"{each:,.0f}", f"{each * count:,.0f}"])
    header = ["trainings at once", "MPS", "images/s of each", "images/s of all"]
    study = found["study"]
    return (
        f"{markdown_grid(header, rows, (0, 2, 3))}\n\n"
        f"Where several train, the speed is the median of two of them. `{found['experiment']}`"
        f" with compiled steps in CUDA graphs; {found['hardware']}, driver"
        f" {found['driver']}, torch {found['torch']}; {found['date']}, commit"
        f" {found['commit'][:9]}. {study['trials']} trials of `{study['name']}`,"
        f" {study['workers']} at once with MPS, took {study['seconds'] / 60:.1f} minutes."
    )


def sizes() -> str:
    """Return the sizes of published configurations, counted on the device ``meta``."""
    from tests.core.models.published import PUBLISHED, parameters_of

    rows = []
    for name, (spec, published, _, origin) in PUBLISHED.items():
        count = parameters_of(spec)
        share = f"{count / published - 1:+.2%}"
        rows.append([name, f"{published:,.0f}", f"{count:,}", share, origin])
    header = ["configuration", "published", "here", "difference", "from"]
    return markdown_grid(header, rows, range(1, 4))


TRIED = {
    "kills": "`kill -9` of a training at a random instant; {kills:,} kills in {runs:,} runs",
    "stops": "SIGINT, SIGTERM or SIGHUP at a random instant; {signals:,} signals",
    "crash_points": "process killed before, during or after a file operation, full disk, failed"
    " sync; {tried:,} of {points:,} points of a run",
    "power_loss": "power lost before any file operation, unsynced data lost; {cuts:,} power cuts,"
    " {continued:,} runs trained further",
    "damage": "one flipped bit ({flips:,}) or a truncated file ({cuts:,} of a small checkpoint,"
    " {cuts_of_a_large_one:,} of a large one)",
    "races": "2 to 8 processes start the same run; {races:,} races of {starters:,} processes",
    "ablations": "an ablation with a killed or hung worker; {ablations:,} ablations of"
    " {trials_each} trials, {hung:,} with a hung worker",
    "mutants": "bugs planted in vitcli that a test must notice; {mutants:,} bugs",
}
COUNTS = {
    "differing": "runs with different bits",
    "unloadable": "unreadable runs",
    "lost": "lost steps",
    "undetected": "undetected",
    "wrong_ends": "wrong exit codes or states",
    "without_one_winner": "races without exactly one winner",
    "disturbed": "disturbed winners",
    "differing_trials": "changed trials",
    "missed": "missed",
}


def faults() -> str:
    """Return each attempt to lose or change a run, with its number of repetitions and failures."""
    found: list[dict[str, Any]] = measured("faults")
    rows = []
    for name, words in TRIED.items():
        for row in [row for row in found if row["campaign"] == name]:
            losses = ", ".join(f"{row[key]} {what}" for key, what in COUNTS.items() if key in row)
            rows.append([words.format(**row), losses])
    fuzzed = [row for row in found if row["campaign"] == "fuzz"]
    runs = sum(row["runs"] for row in fuzzed)
    each = ", ".join(f"{row['target']} {row['runs']:,}" for row in fuzzed)
    if fuzzed:
        crashes = ROOT / "tests" / "fuzz" / "crashes"
        found_there = [path for path in crashes.glob("*/*") if path.is_file()]
        listed = (crashes / "README.md").read_text()
        fixed = sum(f"`{path.parent.name}/{path.name}`" in listed for path in found_there)
        words = f"[{fixed} found and fixed](../../tests/fuzz/crashes/README.md)"
        words += f", {len(found_there) - fixed} open"
        rows.append([f"fuzzing, {runs:,} inputs: {each}", words])
    hardware = ", ".join(sorted({row["hardware"] for row in found}))
    dates = sorted({row["date"] for row in found})
    commits = ", ".join(sorted({row["commit"][:9] for row in found}))
    grid = markdown_grid(["attempt", "failures"], rows)
    return f"{grid}\n\n{hardware}; {dates[-1]}, commits {commits}."
