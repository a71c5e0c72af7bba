"""How the ablation of docs/results.md depends on the length of the trainings: figure, sentences."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitcli.runner.study.statistics import RowStatistics

RESULTS = Path(__file__).resolve().parents[1] / "experiments" / "results"
STUDIES = ("ablation-length-5", "ablation-length-15", "ablation-cifar10-full")
"""The same model and recipe; each length has its own schedule."""
SOURCE = (
    "Mean difference from the baseline, paired by seed. Bars: the joint interval of a study's five"
    " rows. Hollow: the finished trainings of a part with which others diverged."
)
Rows = dict[int, "RowStatistics"]
"""Number of epochs -> the row of a part."""


def parts() -> dict[str, Rows]:
    """Return the rows of each part in the studies that have been run."""
    from vitcli.runner.study.statistics import compare
    from vitcli.runner.study.table import read_document

    paths = [path for name in STUDIES if (path := RESULTS / f"{name}.json").exists()]
    docs = [read_document(path.read_text()) for path in paths]
    found: dict[str, Rows] = {}
    for doc in docs:
        assert doc.epochs is not None
        for row in compare(doc)[1:]:
            found.setdefault(row.variant, {})[doc.epochs] = row
    return found


def interval_of(row: "RowStatistics") -> tuple[float, float] | None:
    """Return the joint interval of a row; None if a training diverged or there is none."""
    from vitcli.runner.study.judgement import deciding_interval

    if row.num_diverged or row.joint_low is None or row.joint_high is None:
        return None
    return deciding_interval(row) or (row.joint_low, row.joint_high)


def lengths_say() -> str:
    """Return a sentence for each part: its difference at each length, and whether it changes."""
    from vitcli.runner.text import join_words

    sentences = []
    for name, rows in parts().items():
        said = [f"{_difference(row)} after {epochs} epochs" for epochs, row in rows.items()]
        intervals = [interval_of(row) for row in (rows[min(rows)], rows[max(rows)])]
        sentences.append(f"- `{name}`: {join_words(said)}. {_change(*intervals)}")
    return "\n".join(sentences)


def _difference(row: "RowStatistics") -> str:
    if row.num_diverged:
        return f"diverged in {row.num_diverged} of {row.n + row.num_diverged} trainings"
    low, high = interval_of(row) or (float("nan"), float("nan"))
    return f"{row.difference:+.2f} [{low:+.2f}, {high:+.2f}]"


def _change(first: tuple[float, float] | None, last: tuple[float, float] | None) -> str:
    """Return what two intervals say about the change of a difference."""
    if first is None or last is None:
        return "A part with which trainings diverge has no difference to compare."
    if last[1] < first[0]:
        return "The longer the training, the more its removal costs."
    if last[0] > first[1]:
        return "The longer the training, the less its removal costs."
    return "The intervals overlap: whether the difference depends on the length is undecided."


def figure() -> "Figure":
    """Return the figure: difference against epochs, a line for each part."""
    from matplotlib.figure import Figure

    from vitcli.runner.figure_style import FAINT, INK, SMALL_SIZE, add_source, add_title
    from vitcli.runner.study.figures import VARIANT_COLOURS, name_lines

    drawn = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = drawn.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    found, ends, lost = parts(), [], []
    lengths = sorted({epochs for rows in found.values() for epochs in rows})
    for i, (name, rows) in enumerate(found.items()):
        colour: Any = VARIANT_COLOURS[(i + 1) % len(VARIANT_COLOURS)]
        known = {e: (r.difference, r) for e, r in rows.items() if r.difference is not None}
        if not known:
            lost.append(name)
            continue
        places = [epochs * 1.02 ** (i - 2) for epochs in known]
        axes.plot(places, [height for height, _ in known.values()], color=colour, linewidth=1.4)
        for place, (height, row) in zip(places, known.values(), strict=True):
            face = "white" if row.num_diverged else colour
            axes.plot(place, height, "o", color=colour, markerfacecolor=face, markersize=5)
            if limits := interval_of(row):
                axes.vlines(place, *limits, color=colour, linewidth=1.6)
        ends.append((known[max(known)][0], name, colour, lengths[-1] * 1.08))
    axes.set_xscale("log")
    axes.set_xticks(lengths, [str(epochs) for epochs in lengths])
    axes.minorticks_off()
    axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_xlabel("epochs of the whole schedule (logarithmic)")
    axes.set_ylabel("accuracy minus baseline, points", fontsize=SMALL_SIZE + 1)
    name_lines(axes, ends)
    add_title(drawn, "What a part contributes, by the length of the training")
    diverged = f" All trainings diverged: {', '.join(lost)}." if lost else ""
    add_source(drawn, SOURCE + diverged)
    return drawn


def draw_lengths() -> None:
    """Write the figure. It is not compared: its bytes depend on matplotlib."""
    from vitcli.runner.figure_style import encode

    (RESULTS / "ablation-length.png").write_bytes(encode(figure, "png"))
