"""The ideas of a campaign: as a report, and as a page. No torch."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vitcli.plugins.decide.ledger import Campaign, Idea
from vitcli.runner.figure_style import INK, add_grid, encode_figures
from vitcli.runner.files import commit, require_replaceable
from vitcli.runner.report import pages
from vitcli.runner.report.report import DataTable, Field, Report, facts_of, hidden
from vitcli.runner.text import duration, interval, one_line, quantity, signed

PAGE = "report.html"
MARK = b": a campaign with vitcli</title>"


def report(root: Path, campaign: Campaign) -> Report:
    """Write the page of a campaign into its folder; return its report."""
    path = root / PAGE
    require_replaceable(path, "page of a campaign", MARK)
    tables = [table(name, getattr(campaign, name), campaign) for name in ("ideas", "claims")]
    tried = [idea for idea in campaign.ideas if idea.is_final]
    facts = {
        "start": campaign.start.experiment,
        "best": campaign.name_of(campaign.best),
        "tried": len(tried),
        "adopted": sum(idea.adopted for idea in tried),
        "seconds": campaign.seconds,
    }
    notes = [
        f"{quantity(len(tried), 'idea')} tried, {facts['adopted']} adopted. If none helps, up to"
        f" {campaign.false_adoptions:.2f} false adoptions are to be expected.",
        "The mean difference at an early stop is too large on average; quote the interval.",
    ]
    if facts["adopted"] and not campaign.claims:
        notes.append("No claim yet: --claim compares the best with the start on new seeds.")
    content = pages.render(
        "vitcli.plugins.decide:campaign.html",
        name=root.name,
        lead=f"from {facts['start']} to {facts['best']}; {duration(campaign.seconds)} of training",
        tables=[each.table() for each in tables],
        notes=notes,
        figures=pages.embedded_figures(
            encode_figures({"ideas": lambda: forest(campaign)}),
            {"ideas": "Each idea against the best at that time: the interval over all looks."},
            "{}: the table has its numbers".format,
        ),
    )
    commit(path, content.encode())
    shown = facts_of(campaign=root.name, **facts)
    false = hidden(false_adoptions=campaign.false_adoptions)
    return Report(facts=[*shown, *false], tables=tables, notes=notes, files=[path])


def table(name: str, ideas: Sequence[Idea], campaign: Campaign) -> DataTable:
    stored = {"verdict", "interval", "adopted", "seconds", "command"}
    rows = [
        {"number": number, "idea": idea.name, "pairs": len(idea.scores), "difference": idea.mean}
        | idea.model_dump(include=stored)
        for number, idea in enumerate(ideas, 1)
    ]
    unit, digits = campaign.metric.difference_unit, campaign.digits
    columns: list[Field | str] = [
        *("number", "idea", "verdict", "pairs"),
        Field("difference", f"difference, {unit}", text=lambda mean: signed(mean, digits)),
        Field("interval", text=lambda ends: interval(ends[0], ends[1], digits), none=""),
        *("adopted", Field("seconds", "time")),
        Field("command", is_shown=False),
    ]
    return DataTable(name, columns, rows)


def forest(campaign: Campaign) -> Figure:
    ideas = campaign.ideas
    figure = Figure(figsize=(7.2, 1.0 + 0.24 * max(1, len(ideas))), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, idea in enumerate(ideas):
        if idea.interval is not None and idea.mean is not None:
            axes.plot(idea.interval, (place, place), color=INK, linewidth=2)
            axes.plot(idea.mean, place, "s", color=INK, markersize=4)
    axes.set_ylim(len(ideas) - 0.4, -0.6)
    axes.set_yticks(range(len(ideas)), [one_line(idea.name, 40) for idea in ideas])
    axes.set_xlabel(f"{campaign.label}: change minus best, {campaign.metric.difference_unit}")
    add_grid(axes, "x")
    return figure
