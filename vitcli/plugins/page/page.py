"""The page of runs: one HTML file with every run and study below a folder. No torch.

The page needs no network and runs one script, which its content-security policy names by a hash.
Its data is JSON that is never run as code; the script writes names as text only. Files of runs may
be damaged or hostile: every value is checked or turned into printable text.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitcli.core.metric import metric_of
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.task import TASKS, TaskRow
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import flatten
from vitcli.runner.experiment.diff import TEACHER_WEIGHTS, Config, changed_fields, plain_fields
from vitcli.runner.files import commit, make_output_folder, policy_hash, readable_json
from vitcli.runner.overview.progress import StudyFolder, find_studies, split_seed
from vitcli.runner.report import pages
from vitcli.runner.run.compare import FACTS, differing_fields, short_setting
from vitcli.runner.run.folder import RunDir, list_runs
from vitcli.runner.run.listing import PAGE, PAGE_MARK, is_page_of_runs, short_data_name
from vitcli.runner.run.record import RunRecord, curve, read_record
from vitcli.runner.text import natural_key, portable_fields, printable, quantity, without_folders
from vitcli.version import __version__

SCRIPTS = tuple(f"{__package__}:{name}" for name in ("rows.js", "chart.js", "runs.js"))
"""The files of the page's script, in the order in which they are joined."""
RATES = ("lr", "grad_norm", "images_per_second")
"""Numbers of an epoch that every task records."""
COLUMNS = {"date": "started", "score": "result", "accuracy": "result", "name": "run"}
"""Order -> title of the column by which the page is sorted when it opens."""
HIDDEN_FIELDS = ("seed", "data.class_names", TEACHER_WEIGHTS)


def write_page(
    folder: Path, output: Path | None = None, sort: str | None = None, split: str = "test"
) -> tuple[Path, dict[str, Any]]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; train a run first: vitcli train")
    page = output or folder / PAGE
    if page.exists() and not is_page_of_runs(page):
        raise ConfigError(f"{page}: not a page of runs; name another file with -o")
    data = collect(folder, split) | {"sort": COLUMNS.get(sort or "")}
    if not (data["runs"] or data["studies"]):
        raise InputError(f"{folder}: holds no run; train one: vitcli train")
    style, script = pages.source(f"{__package__}:runs.css"), pages.sources(*SCRIPTS)
    html = pages.render(
        f"{__package__}:runs.html",
        data=data,
        split=split,
        title=printable(folder.resolve().name),
        mark=Markup(PAGE_MARK),
        style=style,
        script=script,
        style_hash=Markup(policy_hash(style)),
        script_hash=Markup(policy_hash(script)),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        version=__version__,
    )
    make_output_folder(page.parent)
    commit(page, html.encode())
    return page, data


def collect(folder: Path, split: str = "test") -> dict[str, Any]:
    studies = find_studies(folder)
    defaults: list[dict[str, Any]] = []
    kinds: dict[frozenset[str], int] = {}  # of equal fields, so that no run gets another one's
    references: dict[str, Config] = {}
    tasks: dict[str, Any] = {}
    runs = []
    for run in list_runs(folder):
        record = read_record(run)
        tasks[kind_of(record)] = describe_task(record.task)
        entry = describe_run(record, references, split) | place_of(run, folder)
        entry["curves"] = curves(record.metrics, record.task)
        if config := record.known_config:
            if isinstance(config, ExperimentSpec):
                every = flatten(config.model_dump(mode="json"))
                differing = set(flatten(config.model_dump(mode="json", exclude_defaults=True)))
            else:
                every, differing = flatten(plain_fields(config)), {*flatten(changed_fields(config))}
            every = portable_fields(every)
            shown = {name: value for name, value in every.items() if name not in HIDDEN_FIELDS}
            entry["config"] = {name: shown[name] for name in shown if name in differing}
            unchanged = {name: shown[name] for name in shown if name not in differing}
            kind = kinds.setdefault(frozenset(shown), len(kinds))
            defaults += [{}] * (kind == len(defaults))
            entry["kind"] = kind
            defaults[kind] = defaults[kind] | unchanged
        runs.append(entry)
    data = {
        "tasks": tasks,
        "defaults": defaults,
        "studies": [describe_study(study) for study in studies.values()],
        "runs": in_order(runs),
    }
    return data if split == "test" else without_test_results(data)


def without_test_results(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a page without curves of test results."""
    tasks = {
        name: task | {"series": [each for each in task["series"] if not is_of_test(each["name"])]}
        for name, task in data["tasks"].items()
    }
    runs = []
    for run in data["runs"]:
        shown = {name: each for name, each in run["curves"].items() if not is_of_test(name)}
        runs.append(run | {"curves": shown})
    return data | {"tasks": tasks, "runs": runs}


def is_of_test(number: str) -> bool:
    return number.startswith("test_")


def kind_of(run: RunRecord) -> str:
    """Return the runs whose results can be compared: those of a task, by one metric."""
    name, metric = run.task_name, run.headline
    row = TASKS.get(name)
    return name if row and metric == row.headline else f"{name}, {metric.label}"


def describe_run(run: RunRecord, references: dict[str, Config], split: str) -> dict[str, Any]:
    shown = "val" if split == "test" and run.is_validation else split
    differing = differing_fields(run.experiment, run.known_config, run.meta, references)
    settings = run.changed(settings=differing).shown_settings
    return {
        "state": run.state,
        "no_curve": printable(run.why_no_curve),
        "reason": printable(without_folders(run.reason)),
        "task": kind_of(run),
        "experiment": printable(run.experiment or ""),
        "data": printable(short_data_name(run.data or "")),
        "started": printable(run.session.started or "")[:16].replace("T", " "),
        "epochs": run.numbers.get("epochs", run.epochs),
        "planned": run.epochs_planned,
        "score": run.numbers.get(f"{shown}_{run.headline.name}"),
        "split": shown,
        "parameters": run.parameters,
        "seconds": run.train_seconds,
        "seed": run.seed,
        "settings": [printable(short_setting(*item)) for item in portable_fields(settings).items()],
        "facts": {
            name: printable(run.meta[name]) for name in FACTS if run.meta.get(name) is not None
        },
        "commit": printable(run.session.commit or ""),
        "dirty": run.is_dirty,
    }


def place_of(run: RunDir, folder: Path) -> dict[str, Any]:
    """Return the run's name below ``folder``, and its variant's."""
    path = run.path.relative_to(folder)
    variant, _ = split_seed(path)
    return {
        "name": printable(path if path.parts else run.name),
        "variant": printable(variant if variant.parts else run.name),
    }


def curves(records: Sequence[dict[str, Any]], row: TaskRow) -> dict[str, list[list[float]]]:
    """Return number -> [epochs, values] of the records."""
    found = {}
    for name in series_names(row):
        points = [(epoch, float(f"{value:.5g}")) for epoch, value in curve(records, name)]
        if points:
            found[name] = [list(axis) for axis in zip(*points, strict=True)]
    return found


def series_names(row: TaskRow) -> list[str]:
    return [
        *(f"{split}_{name}" for name in row.numbers for split in ("test", "val")),
        *(f"train_{name}" for name in dict.fromkeys([*row.reports, *row.numbers])),
        *RATES,
    ]


def describe_task(row: TaskRow) -> dict[str, Any]:
    headline = row.headline
    return {
        "label": headline.label,
        "unit": headline.unit,
        "scale": headline.scale,
        "digits": headline.digits,
        "higher": headline.higher_is_better,
        "series": [describe_series(name, row) for name in series_names(row)],
    }


def describe_series(name: str, row: TaskRow) -> dict[str, Any]:
    split, _, stem = name.partition("_")
    if stem == row.headline.name:
        return {"name": name, "title": f"{split} {row.headline.title}", "scale": row.headline.scale}
    title, metric = name.replace("_", " "), metric_of(name)
    unit = f", {metric.unit}" if metric and metric.unit else ""
    return {"name": name, "title": title + unit, "scale": metric.scale if metric else 1}


def describe_study(study: StudyFolder) -> dict[str, Any]:
    states = Counter(study.states().values())
    counts = ", ".join(f"{count:,} {state}" for state, count in states.items())
    question = readable_json(study.path / "results.json").get("question")
    return {
        "name": printable(RunDir(study.path).name),
        "question": printable(question) if isinstance(question, str) else "",
        "progress": f"{quantity(states.total(), 'trial')}: {counts}",
    }


def in_order(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of the experiment that was started last first, by name."""
    newest: dict[str, str] = {}
    for run in runs:
        newest[run["experiment"]] = max(newest.get(run["experiment"], ""), run["started"])

    def age(run: dict[str, Any]) -> tuple[str, str]:
        return newest[run["experiment"]], run["experiment"]

    by_name = sorted(runs, key=lambda run: natural_key(run["name"]))
    return sorted(by_name, key=age, reverse=True)
