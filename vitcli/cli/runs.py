"""`vitcli runs`: the runs in the folder runs/."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from vitcli.cli import options as shared
from vitcli.cli.console import confirmed, emit_report, say
from vitcli.cli.options import group
from vitcli.core.metric import Metric, metric_of
from vitcli.runner.errors import InputError
from vitcli.runner.report.report import DataTable, Fact, Field, Report, value_text
from vitcli.runner.text import duration, natural_key, tera

if TYPE_CHECKING:
    from vitcli.runner.run.record import RunRecord

LAST_EPOCHS = 5
MAX_SETTINGS = 6

commands = group(
    help="List, watch, compare, export and remove runs; make a page.",
    example="vitcli runs ls --top 3",
)

Runs = Annotated[list[str], shared.OwnRun(help="Run folders, or names under runs/.")]
RunState = Literal["running", "interrupted", "finished", "diverged", "failed", "damaged"]
Names = Annotated[
    list[str] | None, shared.OwnRun(help="Runs, folders of runs, or 'pets*'.", show_default="all")
]
OfState = Annotated[RunState | None, Option(help="List runs in this state.", show_default="all")]
Order = Annotated[
    shared.Order | None, Option(help=shared.ORDER_HELP, show_default="date, or score with --top")
]
Top = Annotated[int | None, Option(min=1, help=shared.TOP_HELP, show_default="all")]


@commands.command(example="vitcli runs ls --sort accuracy")
def ls(
    names: Names = None,
    state: OfState = None,
    sort: Order = None,
    top: Top = None,
    form: shared.Format = "text",
) -> None:
    """List runs and the settings that differ."""
    from vitcli.runner.run.folder import RUNS
    from vitcli.runner.run.listing import has_name, list_records, rank, select_runs

    every = list_records()
    for name in names or []:
        if Path(name).is_dir() and not any(has_name(run, name) for run in every):
            every += list_records(Path(name))
    runs = select_runs(every, names or [], state=state)
    if top is not None:
        best = {run.path for run in rank(runs)[:top] if run.score is not None}
        runs = [run for run in runs if run.path in best]
    newest = runs[-1:]
    if sort == "name":
        runs = sorted(runs, key=lambda run: natural_key(run.name))
    elif sort in ("score", "accuracy") or (top and sort is None):
        runs = rank(runs)
        newest = runs[:1]
    following = [f"vitcli runs show {shlex.quote(newest[0].name)}"] if newest else []
    emit_report(Report(tables=[run_table(runs)], notes=notes_on(runs), next=following), form)
    if runs:
        return
    if every:
        say(f"none of the {len(every):,} runs fits; list all of them: vitcli runs ls")
    else:
        say(f"no runs in {RUNS.absolute()}; start with: vitcli train")


def notes_on(runs: Sequence["RunRecord"]) -> list[str]:
    """Return a note for each plugin that runs need and that is off, and on lost checkpoints."""
    from vitcli.runner.experiment.own_code import missing_plugin

    names: dict[str, list[str]] = {}
    for run in runs:
        missing = missing_plugin(run.config, run.plugins)
        lack = run.reason if run.state == "finished" else missing
        names.setdefault(lack, []).append(run.name)
    return [f"{reason}: {', '.join(found)}" for reason, found in names.items() if reason]


def run_table(runs: Sequence["RunRecord"]) -> DataTable:
    """Return the table of runs. If any run does not classify, every result has a label."""
    from vitcli.runner.run.listing import short_data_name

    metrics = {run.name: run.headline for run in runs}
    labels = {metric.label for metric in metrics.values()}
    result = Field(
        name="test_score",
        header="result" if len(labels) > 1 else next(iter(labels), ""),
        of_row=partial(result_text, metrics=metrics, with_label=len(labels) > 1),
    )
    fields = [
        Field("name", "run"),
        Field("data", text=short_data_name),
        Field("state", of_row=state_text),
        result,
        Field("parameters"),
        Field("flops", "TFLOP", text=tera),
        Field("train_seconds", "time", text=duration),
        Field("differs", "settings", of_row=settings),
    ]
    shown = {field.name for field in fields}
    rows = [run.document() for run in runs]
    hidden = [name for name in (rows[0] if rows else {}) if name not in shown]
    fields += [Field(name, is_shown=False) for name in hidden]
    return DataTable("runs", fields, rows)


def state_text(run: Mapping[str, Any]) -> str:
    """Return the state, with finished and planned epochs such as ``interrupted 3/6``."""
    if run["state"] == "finished" or run["epochs_planned"] is None:
        return str(run["state"])
    return f"{run['state']} {run['epochs']}/{run['epochs_planned']}"


def result_text(run: Mapping[str, Any], metrics: Mapping[str, Metric], with_label: bool) -> str:
    """Return the headline number of a run, such as ``error 0.0123``; a validation one is marked."""
    metric, score = metrics[run["name"]], run["test_score"]
    mark = ""
    if score is None:
        score, mark = run["val_score"], " val"
    if score is None:
        return "-"
    text = metric.text(score) + mark
    return f"{metric.label} {text}" if with_label else text


def settings(run: Mapping[str, Any]) -> str:
    """Return what differs from the experiment, and what no name shows: start, seed, experiment."""
    from vitcli.runner.run.compare import short_setting

    differs = {name: value for name, value in run["differs"].items() if name != "train.init"}
    start = {"from": run["started_from"]} if run["started_from"] else {}
    words = [short_setting(field, value) for field, value in (start | differs).items()]
    if len(words) > MAX_SETTINGS:
        words[MAX_SETTINGS:] = [f"and {len(words) - MAX_SETTINGS} more"]
    parts = run["name"].split("/")
    if run["seed"] and f"seed{run['seed']}" not in parts:
        words.append(f"seed={run['seed']}")
    if run["experiment"] and run["experiment"] not in parts:
        words.insert(0, f"{run['experiment']}:" if words else run["experiment"])
    return " ".join(words)


@commands.command(example="vitcli runs show quickstart")
def show(run: shared.Run, form: shared.Format = "text") -> None:
    """Show the state, configuration, last epochs and result of a run."""
    from vitcli.runner.experiment.diff import changed_fields
    from vitcli.runner.experiment.own_code import missing_plugin
    from vitcli.runner.run.record import load_run, refuse_unreadable

    record = load_run(run)
    refuse_unreadable(record.folder)
    title = "config (only fields that differ from the defaults)"
    result = f"result so far ({record.reason})" if record.reached else "result"
    meta = {name: value for name, value in record.meta.items() if name != "config"}
    report = Report(
        facts=[
            Fact("run", record.name),
            Fact("folder", str(record.path)),
            Fact("state", record.state, about=f"at step {record.step}"),
            Fact("step", record.step, text=""),
            Fact("reason", record.reason, text=None if record.reason else ""),
        ],
        tables=[
            mapping_table("config", title, changed_fields(record.known_spec or record.config)),
            mapping_table("result", result, record.result or record.reached, record.metric_of),
            mapping_table("meta", "meta", meta),
            epochs(record.metrics, record.metric_of),
        ],
        notes=[] if record.metrics or record.problems else ["no epoch is finished yet"],
        next=[] if missing_plugin(record.config, record.plugins) else next_commands(record),
    )
    emit_report(report, form)


def mapping_table(
    name: str,
    title: str,
    values: Mapping[str, Any],
    metric_of: Callable[[str], Metric | None] = metric_of,
) -> DataTable:
    of_row = partial(value_of_row, metric_of=metric_of)
    fields = [Field("name", title), Field("value", of_row=of_row)]
    rows = [{"name": key, "value": value} for key, value in values.items() if value is not None]
    return DataTable(name, fields, rows, is_mapping=True)


def value_of_row(
    row: Mapping[str, Any], metric_of: Callable[[str], Metric | None] = metric_of
) -> str:
    name, value = row["name"], row["value"]
    if name == "code" and isinstance(value, dict):  # hashes of files, versions of packages
        return ", ".join(f"{source} {str(digest)[:12]}" for source, digest in value.items()) or "-"
    return value_text(name, value, metric_of(name))


def epochs(
    records: Sequence[Mapping[str, Any]], metric_of: Callable[[str], Metric | None]
) -> DataTable:
    names = dict.fromkeys(name for record in records for name in record)
    fields = [
        Field(
            name,
            header=name.replace("_accuracy", "_acc").replace("_per_second", "/s"),
            metric=metric_of(name),
            is_shown=name != "step" and name in records[-1],
        )
        for name in names
    ]
    rows = [{name: record.get(name) for name in names} for record in records]
    return DataTable("metrics", fields, rows, caption="last epochs", last=LAST_EPOCHS)


def next_commands(record: "RunRecord") -> list[str]:
    from vitcli.core.spec import OptimSpec

    run, state = record.folder, record.state
    if state == "finished":
        return [run.command("eval")]
    if state == "damaged":
        return [run.command("runs verify")]
    if state == "running":
        return [f"tensorboard --logdir {shlex.quote(str(run.path))}"]
    if state == "diverged":
        lr = record.setting("optim.lr") or OptimSpec().lr
        return [run.command(f"train -s optim.lr={lr / 3:.1g}", of_config=True)]
    return [run.command("train --resume")]


@commands.command(example="vitcli runs diff quickstart cifar10-pocket")
def diff(
    one: Annotated[str, shared.AnyRun(metavar="A", help=shared.RUN_HELP)],
    other: Annotated[str, shared.AnyRun(metavar="B", help="Run to compare with A.")],
    form: shared.Format = "text",
) -> None:
    """Compare the configuration, environment and results of two runs."""
    from vitcli.runner.run.compare import compare_runs, describe_tests
    from vitcli.runner.run.record import load_run

    left, right = load_run(one), load_run(other)
    parts = compare_runs(left, right)
    names = [left.name, right.name]
    same = [f"{name}: the same" for name, pairs in parts.items() if not pairs]
    once = "these are single runs; a different random seed also changes the numbers"
    report = Report(
        facts=[Fact(side, name, text="") for side, name in zip("ab", names, strict=True)],
        tables=[pair_table(name, pairs, names) for name, pairs in parts.items()],
        notes=[*same, *describe_tests([left, right]), f"note: {once}"],
    )
    emit_report(report, form)


@commands.command(example="vitcli runs compare quickstart --expected quickstart-avx2")
def compare(
    run: shared.Run,
    expected: Annotated[
        str | None,
        Option(
            metavar="RESULT",
            show_default="the experiment of the run",
            help="Committed result: a file of ablate --format json, or its name in"
            " experiments/results; NAME/VARIANT is another row than the first.",
        ),
    ] = None,
    form: shared.Format = "text",
) -> None:
    """Compare the learning curve of a run with a committed result."""
    from vitcli.runner.run.record import load_run
    from vitcli.runner.study.expected import compare_expected

    record = load_run(run)
    emit_report(compare_expected(record, expected or str(record.experiment)), form)


def pair_table(title: str, pairs: Mapping[str, Any], names: Sequence[str]) -> DataTable:
    fields = [
        Field("name", title),
        Field("a", header=names[0], of_row=partial(side_text, side="a")),
        Field("b", header=names[1], of_row=partial(side_text, side="b")),
    ]
    rows = [{"name": name, "a": a, "b": b} for name, (a, b) in pairs.items()]
    if title == "measured":
        fields.append(Field("difference", "B - A", of_row=format_difference))
        for row in rows:
            is_known = row["a"] is not None and row["b"] is not None
            row["difference"] = row["b"] - row["a"] if is_known else None
    return DataTable(title, fields, rows)


def side_text(row: Mapping[str, Any], side: str) -> str:
    value = row[side]
    return "-" if value is None else value_of_row({"name": row["name"], "value": value})


def format_difference(row: Mapping[str, Any]) -> str:
    """Return a difference with its sign; that of shares in percentage points."""
    name, difference = row["name"], row["difference"]
    if difference is None:
        return "-"
    sign = "+" if difference > 0 else "-" if difference < 0 else ""
    text, metric = value_text(name, abs(difference)), metric_of(name)
    if metric and metric.unit == "%":
        text = text.replace("%", "points")
    return sign + text


@commands.command(example="vitcli runs verify quickstart")
def verify(runs: Runs, form: shared.Format = "text") -> None:
    """Check the files of runs or studies; exit code 4 if one is damaged."""
    from vitcli.runner.run.folder import find_runs
    from vitcli.runner.run.verify import verify_run

    verdicts_of = {run.name: verify_run(run) for run in find_runs(runs)}
    rows = [
        {"run": name, "file": verdict.name, "state": verdict.state, "reason": verdict.reason}
        for name, verdicts in verdicts_of.items()
        for verdict in verdicts
    ]
    table = DataTable("verdicts", ["run", "state", "file", "reason"], rows)
    emit_report(Report(tables=[table]), form)
    kinds: dict[str, list[str]] = {"damaged": [], "cannot be read": []}
    for name, verdicts in verdicts_of.items():
        states = {verdict.state for verdict in verdicts if verdict.is_bad}
        if states:
            kinds["cannot be read" if states == {"unreadable"} else "damaged"].append(name)
    problems = [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
    if problems:
        raise InputError("; ".join(problems))


@commands.command(example="vitcli runs rm quickstart")
def rm(
    runs: Annotated[
        list[str],
        shared.OwnRun(metavar="RUN|STUDY", help="Run or study folders, or names under runs/."),
    ],
    yes: shared.Yes = False,
    form: shared.Format = "text",
) -> None:
    """Remove runs and their checkpoints, or whole studies."""
    from vitcli.runner.study.remove import find_removal, remove

    removals = [find_removal(run) for run in runs]
    if not yes and not confirmed("runs rm", [removal.describe() for removal in removals]):
        say("nothing was removed")
        return
    for path in remove(removals):
        say(f"not removed, because vitcli did not write it: {path}")
    emit_report(Report(facts=[Fact("removed", [removal.name for removal in removals])]), form)
