"""`vitcli search`: train configurations of a space, and choose the best on validation images."""

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from vitcli.cli import complete
from vitcli.cli import options as shared
from vitcli.cli.console import emit_exactly, emit_report, line_width, say
from vitcli.cli.engines import Gpus, Place, check_engine, check_folders, takes_options
from vitcli.cli.options import exclude, output_option, with_code, with_example
from vitcli.plugin import load_target
from vitcli.runner.engines.engine import ENGINES, LOCAL
from vitcli.runner.errors import PartlyError, require_packages
from vitcli.runner.files import make_output_folder
from vitcli.runner.report.report import DataTable, Report, facts_of, hidden
from vitcli.runner.text import quantity

if TYPE_CHECKING:
    from vitcli.plugins.search.definition import Search
    from vitcli.plugins.search.document import SearchResult
    from vitcli.plugins.search.trials import Trials
    from vitcli.runner.study.plan import Options

NUM_BEST = 10

Name = Annotated[
    str,
    Argument(
        metavar="SEARCH",
        help="Search name ('vitcli experiments ls' lists them) or file.",
        autocompletion=complete.experiment,
    ),
]
Output = Annotated[Path | None, output_option("FOLDER", "Folder of the search.", "runs/...")]


@with_example("vitcli search search-quickstart --dry-run")
@takes_options
@with_code
def search(
    name: Name,
    sets: shared.Sets = None,
    *,
    options: "Options",
    engine: Place = LOCAL,
    gpus: Gpus = None,
    output: Output = None,
    dry_run: shared.DryRun = False,
    status: shared.Status = False,
    json: shared.Json = False,
) -> None:
    """Search a space of configurations for the best one.

    Validation images decide; no test image is read. The last line names the study that tests the
    best configuration. Run the command again to continue.
    """
    from vitcli.plugins.search.definition import load_search
    from vitcli.runner.data.find import refuse_unused_folder
    from vitcli.runner.experiment.config import parse_sets
    from vitcli.runner.run.folder import RUNS

    form = "json" if json else "text"
    exclude({"--dry-run": dry_run, "--status": status})
    check_folders(output, None)
    if not (dry_run or status):
        check_engine(engine, options.jobs, gpus)
    chosen = load_search(name, parse_sets(sets))
    if chosen.note:
        say(f"note: {chosen.note}")
    require_packages("a search", ["optuna"], "search")
    from vitcli.plugins.search.document import (
        make_document,
        validation_score,
        write_confirmation,
    )
    from vitcli.plugins.search.trials import Trials, read_plan
    from vitcli.runner.study.page import publish, refuse_foreign_files

    refuse_unused_folder(chosen.base.data.name, options.data_dir)
    root = output or RUNS / chosen.name
    refuse_foreign_files(root)
    read_plan(root)
    if dry_run:
        show_plan(chosen, root, options, form)
    elif status:
        show_result(make_document(Trials(chosen, root, options, writes=False)), form)
    else:
        make_output_folder(root)
        elsewhere = ENGINES[engine].train
        if elsewhere and not load_target(elsewhere)(root, chosen.threads, options, gpus):
            return
        trials = Trials(chosen, root, options)
        if elsewhere is None:
            train(trials)
        doc = make_document(trials)
        publish(doc, root, say)
        show_result(doc, form)
        say(f"report  {root / 'report.html'}")
        has_score = any(validation_score(row) is not None for row in doc.rows)
        nothing = "the default is best" if has_score else "no trial has a score"
        say(f"next    {write_confirmation(trials, doc) or f'nothing to test: {nothing}'}")
        if left := trials.pending():
            trials_left = quantity(len(left), "trial")
            raise PartlyError(f"no result of {trials_left}; try again: {options.command}")


def train(trials: "Trials") -> None:
    from vitcli.cli.trials import display
    from vitcli.plugins.search.trials import run_search
    from vitcli.runner.study.plan import worker_count

    chosen = trials.search
    say(f"search {chosen.name}: {quantity(chosen.num_trials, 'trial')}, {chosen.fields.sampler}")
    left = max(0, chosen.num_trials - len(trials.asked()) + len(trials.pending()))
    count = worker_count(chosen.threads, trials.options)
    with display(left, count, chosen.base.task.row, "val") as screen:
        run_search(trials, screen.show)


def show_plan(chosen: "Search", root: Path, options: "Options", form: str) -> None:
    from vitcli.cli.trials import time_fact
    from vitcli.runner.experiment.config import Experiment
    from vitcli.runner.study.estimate import dry_run_trial
    from vitcli.runner.study.plan import worker_count

    count = worker_count(chosen.threads, options)
    default = Experiment(chosen.name, chosen.base, chosen.path)
    one = dry_run_trial(default, root, options, say, without_test=True).total
    seconds = None if one is None else ceil(chosen.num_trials / count) * one
    space = {field: values.text for field, values in chosen.fields.space.items()}
    rows = [{"field": field, "values": text} for field, text in space.items()]
    report = Report(
        facts=[
            *hidden(search=chosen.name),
            *facts_of(sampler=chosen.fields.sampler, trials=chosen.num_trials, at_once=count),
            time_fact(seconds, "{} if each trial takes that of the default"),
        ],
        tables=[DataTable("space", ["field", "values"], rows, is_mapping=True)],
    )
    emit_report(report, form)


def show_result(doc: "SearchResult", form: str) -> None:
    from vitcli.runner.study.table import render

    shown = doc if form == "json" else doc.replace(rows=doc.rows[:NUM_BEST])
    emit_exactly(render(shown, form, line_width()))
