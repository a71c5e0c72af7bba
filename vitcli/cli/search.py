"""`vitcli search`: train configurations of a space, choose the best, and test it once."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitcli.cli import complete
from vitcli.cli.console import emit_json, say
from vitcli.cli.engines import check_folders, takes_options
from vitcli.cli.options import SAVE_HELP, DryRun, Json, Sets, Status, exclude
from vitcli.cli.search_output import show_final, show_plan, show_result, show_status
from vitcli.runner.text import quantity

if TYPE_CHECKING:
    from vitcli.runner.run.record import TrialState
    from vitcli.runner.search.definition import Search
    from vitcli.runner.search.objective import Objective
    from vitcli.runner.search.result import SearchResult
    from vitcli.runner.search.storage import Place
    from vitcli.runner.study.plan import Options
    from vitcli.runner.study.result import StudyResult
    from vitcli.runner.train.events import TrialEvent

Name = Annotated[
    str,
    typer.Argument(
        metavar="SEARCH",
        help="Search name ('vitcli experiments ls' lists them) or file.",
        autocompletion=complete.search,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FOLDER", help="Folder of the search.", show_default="runs/..."
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Optuna storage of the search, such as postgresql://host/db.",
        show_default="a journal in the folder",
        hidden=True,
    ),
]
Final = Annotated[
    bool,
    typer.Option("--final/--no-final", help="Train and test the winner at the end.", hidden=True),
]


@takes_options
def search(
    name: Name,
    sets: Sets = None,
    *,
    options: "Options",
    output: Output = None,
    dry_run: DryRun = False,
    status: Status = False,
    final: Final = True,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=SAVE_HELP,
            hidden=True,
        ),
    ] = None,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Search a space of configurations for the best one.

    Validation images decide. The final stage alone reads the test images. Run the command again to
    continue.

    \b
    Example:
      vitcli search search-quickstart --dry-run
    """
    from vitcli.runner.data.find import refuse_unused_folder
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.experiment.config import parse_sets
    from vitcli.runner.run.folder import RUNS
    from vitcli.runner.search.definition import load_search, require_optuna

    exclude({"--dry-run": dry_run, "--status": status})
    check_folders(output, save)
    chosen = load_search(name, parse_sets(sets))
    if chosen.note:
        say(f"note: {chosen.note}")
    require_optuna()
    from vitcli.runner.search.objective import Objective
    from vitcli.runner.search.storage import JOURNAL, Place

    refuse_unused_folder(chosen.base.data.name, options.data_dir)
    if save and storage:
        raise ConfigError("--save keeps the journal of a search, which one with --storage has not")
    place = Place(root=output or RUNS / chosen.name, name=chosen.name, url=storage, save=save)
    if dry_run:
        show_plan(chosen, place, options, as_json=json)
    elif status and not place.has_storage():
        what = "no such search yet"
        if place.plan():  # a search of vitcli 0.8 has a plan, too
            what = f"a search of vitcli 0.8, or one that lost its {JOURNAL}; its trials still count"
        raise ConfigError(f"{place.root}: there is {what}; leave out --status")
    elif status:
        show_status(Objective(chosen, place, options, writes=False), as_json=json)
    else:
        run(chosen, place, options, final=final, as_json=json)


def run(
    chosen: "Search", place: "Place", options: "Options", *, final: bool, as_json: bool
) -> None:
    """Train, choose, write the files of the result and print it."""
    from vitcli.cli.study_output import refuse_gaps
    from vitcli.runner.errors import PartlyError
    from vitcli.runner.search.objective import Objective
    from vitcli.runner.search.publish import publish
    from vitcli.runner.search.result import make_result
    from vitcli.runner.search.run import left_over, run_search

    begin = time.monotonic()
    with place.hold():
        objective = Objective(chosen, place, options, say=say)
        try:
            with view(objective) as show:
                run_search(objective, show)
        finally:
            if objective.results:
                doc = make_result(objective)
                publish(doc, place.root)
        if not objective.results:
            raise PartlyError("no trial has a result, because no valid point was found")
        tested: StudyResult | None = None
        states: Mapping[str, TrialState] = {}
        if not as_json:
            show_result(doc)
        if final and chosen.fields.final and doc.winner:
            left = left_over(options, time.monotonic() - begin)
            tested, states = run_final(chosen, doc, place, left)
        if as_json:
            both = {"final": tested.model_dump(mode="json") if tested else None}
            emit_json(doc.model_dump(mode="json") | both)
        elif tested:
            show_final(tested)
        refuse_gaps(states, f"try them again: {options.command}")
        say(f"report  {place.root / 'report.html'}")
        say(f"next    {options.command} --status")


def run_final(
    chosen: "Search", doc: "SearchResult", place: "Place", options: "Options"
) -> "tuple[StudyResult | None, Mapping[str, TrialState]]":
    """Train base and winner with fresh seeds and test each training; return results and states.

    The results are None if the winner is the base.
    """
    from vitcli.cli.ablate import saved_trials, train
    from vitcli.cli.study_output import announce_saved
    from vitcli.runner.experiment import own_code
    from vitcli.runner.search.final import FOLDER, load_final
    from vitcli.runner.study.collect import read_results
    from vitcli.runner.study.page import publish
    from vitcli.runner.study.plan import plan_study

    root, save = place.root, place.save
    study = load_final(chosen, doc, root, save)
    if study is None:
        say("final   the winner is the base itself, so there is nothing to compare")
        return None, {}
    say(f"final   base and winner on training and validation images ({study.path})")
    names = tuple(variant.name for variant in study.variants)
    saved = saved_trials(save, options) if save else None
    plan = plan_study(study, root / FOLDER, names, saved=saved)
    announce_saved(plan.states, saved)
    states = train(plan, options, save)
    words = ["vitcli", "ablate", str(study.path), *own_code.options(), "-o", str(root / FOLDER)]
    command = shlex.join(words)
    found = read_results(study, root / FOLDER, names, saved).replace(command=command)
    publish(found, root / FOLDER)
    return found, states


@contextmanager
def view(objective: "Objective") -> "Iterator[Callable[[TrialEvent], None]]":
    """Yield what shows the events of a search: each trial by its hash and its point."""
    from vitcli.cli.trials import display
    from vitcli.runner.study.plan import worker_count
    from vitcli.runner.train.events import Message, TrialEvent

    chosen = objective.search
    say(f"search {chosen.name}: {quantity(chosen.num_trials, 'trial')}, {chosen.fields.sampler}")
    count = worker_count(chosen, objective.options)
    left = max(0, chosen.num_trials - len(objective.results))
    with display(left, count, chosen.base.task.row, "val") as screen:

        def show(found: "TrialEvent") -> None:
            label = objective.label(found.folder) if found.folder else ""
            screen.show(TrialEvent(label, found.event))

        objective.say = lambda text: show(TrialEvent("", Message(text=text)))
        yield show
