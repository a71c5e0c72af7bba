"""The declared margin of equivalence: which one, since when, and how much was known by then."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.run.folder import RESULT_STATES
from vitcli.runner.study.definition import Study
from vitcli.runner.study.result import Margin
from vitcli.runner.study.saved import SavedTrials
from vitcli.runner.study.states import trial_states


def declared_margins(study: Study, root: Path, saved: SavedTrials | None) -> tuple[Margin, ...]:
    """Return every margin that was declared, the last one in force.

    The declarations are in the plan of the study's folder, or of its saved trials. A margin that
    the study file has, but no plan, is declared now.

    Args:
        study: The study.
        root: Its folder.
        saved: Saved trials, beside which a copy of the declarations may lie.
    """
    known = read_margins(root)
    if not known and saved is not None:
        known = read_margins(saved.folder / study.name)
    if study.equivalence_margin == (known[-1].points if known else None):
        return known
    new = Margin(
        points=study.equivalence_margin,
        date=date.today().isoformat(),
        num_finished=count_results(study, root, saved),
    )
    return (*known, new)


def count_results(study: Study, root: Path, saved: SavedTrials | None) -> int:
    """Return how many trials have a result, of all variants, of the file's seeds and the asked."""
    seeds = tuple(dict.fromkeys([*study.file_seeds, *study.seeds]))
    states = trial_states(replace(study, seeds=seeds), root, (), saved)
    return sum(state.state in RESULT_STATES for state in states.values())


def read_margins(folder: Path) -> tuple[Margin, ...]:
    """Return the declarations in the plan of a folder; none without a readable plan."""
    try:
        stored = read_plan(folder)["margins"]
        return tuple(Margin.model_validate(each) for each in stored)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def as_plan(margins: Sequence[Margin]) -> list[dict[str, object]]:
    """Return declarations as plain data for a plan."""
    return [margin.model_dump(mode="json") for margin in margins]
