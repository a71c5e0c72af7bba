"""What `vitcli search` prints: the plan, the state and the result of a search."""

from typing import TYPE_CHECKING

from vitcli.cli.console import emit, emit_json, line_width, text_of
from vitcli.runner.text import duration, quantity

if TYPE_CHECKING:
    from vitcli.runner.search.definition import Search
    from vitcli.runner.search.objective import Objective
    from vitcli.runner.search.result import SearchResult
    from vitcli.runner.search.storage import Place
    from vitcli.runner.study.plan import Options
    from vitcli.runner.study.result import StudyResult


def show_plan(chosen: "Search", place: "Place", options: "Options", *, as_json: bool) -> None:
    """Print the size of the space, the share of valid points and the cost of the search."""
    from vitcli.runner.search.estimate import estimate_search

    found = estimate_search(chosen, place, options)
    if as_json:
        emit_json(found.as_json())
        return
    emit(f"search     {chosen.name}")
    for field, each in chosen.space.parameters.items():
        emit(f"           {field}: {each.text}")
    size = f"{found.size:,.0f} points" if found.size != float("inf") else "endless (real numbers)"
    drawn = "all points" if found.is_complete else f"{found.num_drawn:,} random points"
    emit(f"space      {size}; {100 * found.valid_share:.0f} % valid ({drawn} judged)")
    for rule, number in found.skipped.items():
        example = f", such as: {found.examples[rule]}" if found.examples.get(rule) else ""
        emit(f"           {rule}: {number:,}{example}")
    emit(f"sampler    {chosen.fields.sampler}, seed {chosen.fields.seed}")
    val = f"{chosen.base.data.val_split:,} validation images; no test image is read"
    second = f" and {chosen.fields.cost}" if chosen.fields.cost else ""
    emit(f"objective  {chosen.headline.label}{second} on {val}")
    emit(f"trials     {found.num_open} of {quantity(chosen.num_trials, 'trial')} to train")
    if found.num_repeats:
        emit(f"repeats    {quantity(found.num_repeats, 'training')} with further seeds")
    one = f"about {duration(found.seconds_each)} each"
    at_once = f"{found.count} at once, {one}, {found.source}"
    emit(f"time       about {duration(found.seconds)}: {at_once}")
    if chosen.fields.final:
        seeds = ", ".join(map(str, chosen.fields.final.seeds))
        emit(f"final      base and winner with seeds {seeds}; its time comes on top")


def show_status(objective: "Objective", *, as_json: bool) -> None:
    """Print the results so far and the trials that are not finished."""
    from vitcli.runner.search.result import make_result

    doc = make_result(objective)
    if as_json:
        unfinished = [str(objective.root / folder) for folder in objective.unfinished()]
        emit_json(doc.model_dump(mode="json") | {"unfinished": unfinished})
        return
    show_result(doc)
    for folder in objective.unfinished():
        emit(f"not finished: {objective.label(folder)} ({objective.root / folder})")


def show_result(doc: "SearchResult") -> None:
    """Print the best trials and the notes on them."""
    from vitcli.runner.search.result import best_table

    best = best_table(doc)
    if best.rows:
        emit(f"{text_of(best)}\n")
    for note in best.notes:
        emit(note)


def show_final(doc: "StudyResult") -> None:
    """Print the table of the final stage: the only test scores of a search."""
    from vitcli.runner.study.table import render

    emit("")
    emit(render(doc, "text", line_width()), wrap=False)
