"""The screen of `vitcli runs watch`: the progress of all trials, and a curve in braille."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitcli.cli.console import table
from vitcli.runner.text import duration, printable, quantity, shorten, wrap

Points = Sequence[tuple[float, float]]
BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot, by row and column; see the Unicode block Braille Patterns."""
BLANK = 0x2800


@dataclass(frozen=True, kw_only=True)
class Range:
    """The numbers at two opposite edges of a picture."""

    low: float
    high: float

    def place(self, value: float, count: int) -> int:
        """Return the place of a value among ``count`` dots, from 0."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(share * (count - 1))


def range_of(values: Sequence[float]) -> Range:
    return Range(low=min(values), high=max(values))


def draw(curves: Sequence[Points], width: int, height: int, x: Range, y: Range) -> list[list[int]]:
    """Return a picture of curves, (height, width), of character codes.

    Points are joined by lines. The first character of a row is at the left, that of the first row
    at the top.
    """
    picture = [[BLANK] * width for _ in range(height)]
    for points in curves:
        dots = [(x.place(a, 2 * width), y.place(b, 4 * height)) for a, b in points]
        for start, end in zip(dots, dots[1:] or dots, strict=False):
            for column, row in line(start, end):
                top = 4 * height - 1 - row
                picture[top // 4][column // 2] |= BITS[top % 4][column % 2]
    return picture


def line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line, both ends included."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * i / steps),
            round(start[1] + (end[1] - start[1]) * i / steps),
        )
        for i in range(steps + 1)
    ]


if TYPE_CHECKING:
    from vitcli.core.spec.metrics import Metric
    from vitcli.runner.overview.progress import Progress, TrialProgress

MARKS = {
    "finished": "#",
    "saved": "s",
    "running": ">",
    "interrupted": "i",
    "diverged": "d",
    "failed": "x",
    "damaged": "?",
    "missing": ".",
}
"""State -> the character of a trial."""
NOT_BEGUN = "not begun"
"""The words for ``missing`` while trials are training."""
MAX_MARKS = 12
"""Most trials of a variant that are shown by one character each; more are counted."""
CURVE_ROWS, LOW_CURVE, HIGH = 8, 6, 30
"""Lines of the curve, and on a terminal with fewer than ``HIGH`` lines."""
MAX_PROBLEMS = 2
GONE_WRONG = ("diverged", "failed")
"""States whose numbers are compared with nothing."""
AXIS, LABEL = 8, 30
"""Characters left and right of the curves."""


def screen(
    progress: "Progress", width: int, height: int | None = None, *, ascii_only: bool = False
) -> str:
    """Return the lines of the screen.

    Args:
        height: Most lines; None for all trials.
    """
    below = ["", *problems(progress)]
    curve_rows = LOW_CURVE if height is not None and height < HIGH else CURVE_ROWS
    below += learning_curve(progress, width, curve_rows, ascii_only=ascii_only)
    below += ["", legend(progress)]
    rows = variant_rows(progress, width)
    head = [*wrap(summary(progress), width), ""]
    room = len(rows) if height is None else max(3, height - len(below) - len(head) - 1)
    hidden = 0
    if len(rows) > room:
        kept = visible(progress, room - 1)
        hidden, rows = len(rows) - len(kept), [rows[i] for i in kept]
    header = ["variant" if progress.is_study else "run", "trials", "epochs", result_title(progress)]
    header += ["vs baseline"] * progress.is_study
    lines = table(header, rows, numeric=range(2, len(header))).split("\n")
    lines += [f"... and {hidden} more"] * bool(hidden)
    return "\n".join([*head, *lines, *below])


def summary(progress: "Progress") -> str:
    """Return the number of trials in each state and the time left."""
    counts = Counter(trial.state for trial in progress.trials)
    words = [
        f"{counts[state]} {NOT_BEGUN if state == 'missing' else state}"
        for state in MARKS
        if counts[state]
    ]
    left = progress.seconds_left
    words += [f"about {duration(left)} left"] if left is not None else []
    total = quantity(len(progress.trials), "trial" if progress.is_study else "run")
    return f"{printable(progress.name)}: {total}: {', '.join(words)}"


def legend(progress: "Progress") -> str:
    """Return what the characters of the column "trials" mean."""
    states = {trial.state for trial in progress.trials}
    words = {"missing": NOT_BEGUN}
    return "  ".join(
        f"{mark} {words.get(state, state)}" for state, mark in MARKS.items() if state in states
    )


def problems(progress: "Progress") -> list[str]:
    """Return why trials failed, diverged or cannot be read; a few of them."""
    found = [t for t in progress.trials if t.reason and t.state in (*GONE_WRONG, "damaged")]
    lines = [f"{printable(t.name)}: {t.state}: {printable(t.reason)}" for t in found[:MAX_PROBLEMS]]
    rest = len(found) - len(lines)
    return [*lines, *([f"... and {rest} more"] if rest else []), *([""] if lines else [])]


def metric(progress: "Progress") -> "Metric | None":
    return next((trial.headline for trial in progress.trials if trial.headline), None)


def result_title(progress: "Progress") -> str:
    found = metric(progress)
    return f"latest {found.title}" if found else "result"


def variant_rows(progress: "Progress", width: int) -> list[list[str]]:
    """Return the cells of each variant."""
    variants = progress.variants
    baseline = next(iter(variants.values()), [])
    rows = []
    for i, (name, trials) in enumerate(variants.items()):
        planned = [trial.planned for trial in trials if trial.planned is not None]
        done = sum(
            trial.planned or 0 if trial.state == "saved" else trial.epochs for trial in trials
        )
        row = [
            shorten(printable(name), max(20, width // 3)),
            marks(trials),
            f"{done}/{sum(planned)}",
            latest(trials),
        ]
        if progress.is_study:
            row.append("baseline" if i == 0 else difference(trials, baseline))
        rows.append(row)
    return rows


def marks(trials: Sequence["TrialProgress"]) -> str:
    """Return a character for each trial, or the number of those with a result."""
    if len(trials) <= MAX_MARKS:
        return "".join(MARKS[trial.state] for trial in trials)
    done = sum(trial.state in ("finished", "diverged", "saved") for trial in trials)
    return f"{done}/{len(trials)}"


def latest(trials: Sequence["TrialProgress"]) -> str:
    """Return the mean of the latest headline numbers of trials that have not gone wrong."""
    known = [t for t in trials if t.curve and t.headline and t.state not in GONE_WRONG]
    if not known or not known[0].headline:
        return "-"
    values = [trial.curve[-1][1] for trial in known]
    found = known[0].headline
    return f"{found.scale * sum(values) / len(values):.{found.digits}f}"


def difference(trials: Sequence["TrialProgress"], baseline: Sequence["TrialProgress"]) -> str:
    """Return the mean difference from the baseline's trial with the same seed at the same epoch."""
    partners = {t.seed: dict(t.curve) for t in baseline if t.state not in GONE_WRONG}
    found = []
    for trial in trials:
        partner = partners.get(trial.seed, {})
        common = [(value, partner[epoch]) for epoch, value in trial.curve if epoch in partner]
        if common and trial.headline and trial.state not in GONE_WRONG:
            found.append(trial.headline.scale * (common[-1][0] - common[-1][1]))
    digits = trials[0].headline.digits if trials[0].headline else 2
    return f"{sum(found) / len(found):+.{digits}f}" if found else "-"


def visible(progress: "Progress", count: int) -> list[int]:
    """Return the places of the variants to show: the baseline, then those that need a look."""
    order = ("running", "failed", "damaged", "interrupted")
    urgency = {state: i for i, state in enumerate(order)}
    groups = [*progress.variants.values()]
    pinned = [0] if progress.is_study else []
    others = sorted(
        range(len(pinned), len(groups)),
        key=lambda i: (min(urgency.get(trial.state, len(order)) for trial in groups[i]), i),
    )
    return [*pinned, *sorted(others[: count - len(pinned)])]


def learning_curve(progress: "Progress", width: int, height: int, *, ascii_only: bool) -> list[str]:
    """Return the curve of the trial that changed last, and that of its baseline.

    Names at the right tell the two apart without colour.
    """
    shown = watched_trials(progress)
    columns = width - AXIS - LABEL
    if not shown or columns < 10:
        return []
    found = shown[0].headline
    assert found is not None
    curves = [[(float(e), found.scale * v) for e, v in trial.curve] for trial in shown]
    points = [point for curve in curves for point in curve]
    measured = [epoch for epoch, _ in points]
    epochs = max([*(trial.planned or 0 for trial in shown), *measured])
    x = range_of([1, max(2, epochs), *measured])
    y = range_of([value for _, value in points])
    ends: dict[int, str] = {}
    for trial, curve in zip(shown, curves, strict=True):
        row = height - 1 - y.place(curve[-1][1], height)
        row = row if row not in ends else row + (1 if row + 1 < height else -1)
        ends[row] = shorten(f"{curve[-1][1]:.{found.digits}f} {printable(trial.name)}", LABEL - 2)
    edges = {0: f"{y.high:.4g}", height - 1: f"{y.low:.4g}"}
    lines = [f"{found.title}, up to epoch {shown[-1].epochs} of {epochs:.0f}"]
    for row, codes in enumerate(draw(curves, columns, height, x, y)):
        drawn = "".join(character(code, ascii_only) for code in codes)
        lines.append(f"{edges.get(row, ''):>{AXIS - 2}} |{drawn} {ends.get(row, '')}".rstrip())
    return lines


def character(code: int, ascii_only: bool) -> str:
    if code == BLANK:
        return " "
    return "*" if ascii_only else chr(code)


def watched_trials(progress: "Progress") -> list["TrialProgress"]:
    """Return the trial whose record changed last, after the baseline's trial with its seed."""
    known = [
        trial for trial in progress.trials if trial.curve and trial.headline == metric(progress)
    ]
    if not known:
        return []
    newest = max(known, key=lambda trial: (trial.state == "running", trial.changed))
    first = next(iter(progress.variants))
    beside = [
        t for t in known if progress.is_study and t.variant == first and t.seed == newest.seed
    ]
    return [*(trial for trial in beside if trial is not newest), newest]
