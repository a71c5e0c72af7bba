"""Comparison of a run with the learning curves of a committed result, epoch by epoch."""

from pathlib import Path

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import folders
from vitcli.runner.experiment.diff import changed_fields
from vitcli.runner.files import read_bounded
from vitcli.runner.report.report import DataTable, Fact, Field, Report
from vitcli.runner.run.compare import HIDDEN, short_setting
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.result import StudyResult, VariantResult
from vitcli.runner.study.table import read_document
from vitcli.runner.text import join_words, portable_fields, printable, quantity

MAX_BYTES = 2**26
ALPHA = 0.05
BY_CHANCE = (
    "note: a band is for one epoch: about one epoch in twenty lies outside by chance, and"
    " neighbours do so together"
)


def compare_expected(run: RunRecord, expected: str) -> Report:
    """Return where the curve of a run leaves the expected band, and what its settings change.

    ``expected`` is a result of ``ablate --format json``: a file, or its name in
    experiments/results; ``NAME/VARIANT`` is a row other than the first. The band of an epoch is the
    95 % prediction interval of one more seed, m +- t s sqrt(1 + 1/n) over n seeds.
    """
    document, row = _read(expected)
    metric = run.task.headline
    if document.headline.name != metric.name:
        raise ConfigError(
            f"{printable(expected)} measures {document.headline.label}, {run.name} {metric.label}"
        )
    if not run.curve:
        raise InputError(f"{run.name}: no epoch of it was measured yet")
    bands, own = _bands(row), dict(run.curve)
    epochs = [epoch for epoch in sorted(own) if epoch in bands]
    if not epochs:
        raise InputError(
            f"{run.name} has no epoch that two seeds of {printable(expected)} have, too"
        )
    rows = []
    for epoch in epochs:
        mean, low, high, num_seeds = bands[epoch]
        if not metric.is_possible(2):  # a share
            low, high = max(0.0, low), min(1.0, high)
        value = own[epoch]
        place = "below" if value < low else "above" if value > high else "inside"
        rows.append(
            {"epoch": epoch, "run": value, "expected": mean, "low": low, "high": high}
            | {"seeds": num_seeds, "place": place}
        )
    outside = [line["epoch"] for line in rows if line["place"] != "inside"]
    numbers = [Field(name, metric=metric) for name in ("run", "expected", "low", "high")]
    return Report(
        facts=[
            Fact("run", str(run.folder.path), text=run.name),
            Fact("expected", expected, about=quantity(len(row.trials), "seed")),
            Fact("num_outside", len(outside), label="outside", about=f"of {len(rows)} epochs"),
            Fact("first_outside", outside[0] if outside else None, label="first outside"),
        ],
        tables=[DataTable("epochs", ["epoch", *numbers, "seeds", "place"], rows)],
        notes=[*_differences(run, document, row), BY_CHANCE],
    )


def _read(expected: str) -> tuple[StudyResult, VariantResult]:
    path, variant = Path(expected), ""
    if not path.is_file():
        name, _, variant = expected.partition("/")
        results = {
            file.stem: file
            for folder in reversed(folders())
            for file in (folder / "results").glob("*.json")
        }
        if name not in results:
            known = f"there are {', '.join(sorted(results))}" if results else "there are none here"
            raise InputError(f"{printable(expected)}: no such result; {known}")
        path = results[name]
    try:
        document = read_document(read_bounded(path, MAX_BYTES).decode())
    except (InputError, OSError, ValueError) as error:
        raise InputError(f"{printable(path)}: {error}") from error
    rows = {row.variant: row for row in document.rows}
    if variant and variant not in rows:
        raise InputError(f"{printable(path)} has no row {variant!r}, but {join_words(rows)}")
    return document, rows[variant] if variant else document.rows[0]


def _bands(row: VariantResult) -> dict[int, tuple[float, float, float, int]]:
    """Return epoch -> mean, lower and upper bound, number of seeds."""
    from scipy import stats

    values: dict[int, list[float]] = {}
    for trial in row.trials:
        for epoch, value in trial.curve if trial.state == "finished" else ():
            values.setdefault(epoch, []).append(value)
    bands = {}
    for epoch, scores in values.items():
        if (count := len(scores)) > 1:
            low, high = stats.t.interval(
                1 - ALPHA,
                count - 1,
                loc=(mean := sum(scores) / count),
                scale=stats.tstd(scores) * (1 + 1 / count) ** 0.5,
            )
            bands[epoch] = mean, float(low), float(high), count
    return bands


def _differences(run: RunRecord, document: StudyResult, row: VariantResult) -> list[str]:
    """Return the notes on other images and other settings, which explain most distances."""
    notes = []
    if run.data_hash != document.data_hash:
        notes.append(f"note: {run.name} was trained on other images than the result")
    if spec := run.known_config:
        expected = document.base_config | row.changes
        own = portable_fields(changed_fields(spec))
        fields = [
            short_setting(field, own.get(field))
            for field in sorted(own.keys() | expected.keys())
            if field not in HIDDEN and own.get(field) != expected.get(field)
        ]
        if fields:
            notes.append(f"note: other settings than those of the result: {', '.join(fields)}")
    return notes
