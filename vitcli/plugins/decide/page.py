"""The ideas of a campaign: as a report, and as a page. No torch."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vitcli.plugins.decide.ledger import Campaign, Idea
from vitcli.runner.figure_style import INK, add_grid, encode_figures
from vitcli.runner.files import commit, require_replaceable
from vitcli.runner.report import pages
from vitcli.runner.report.report import DataTable, Fact, Field, Report, facts_of
from vitcli.runner.text import duration, interval, one_line, quantity, signed

PAGE = "report.html"
MARK = b": a campaign with vitcli</title>"


def report(root: Path, campaign: Campaign) -> Report:
    """Write the page of a campaign into its folder; return its report."""
    path = root / PAGE
    require_replaceable(path, "page of a campaign", MARK)
    tables = [table(name, getattr(campaign, name), campaign) for name in ("ideas", "claims")]
    tried = [idea for idea in campaign.ideas if idea.is_final]
    adopted = sum(idea.adopted for idea in tried)
    false, seconds = campaign.false_adoptions, campaign.seconds
    best = campaign.name_of(campaign.best)
    notes = [
        f"{quantity(len(tried), 'idea')} tried, {adopted} adopted. If none helps, up to {false:.2f}"
        " false adoptions are to be expected.",
        "The mean difference at an early stop is too large on average; quote the interval.",
    ]
    if adopted and not campaign.claims:
        notes.append("No claim yet: --claim compares the best with the start on new seeds.")
    figures = encode_figures({"ideas": lambda: forest(campaign.ideas, campaign)})
    content = pages.render(
        "vitcli.plugins.decide:campaign.html",
        name=root.name,
        lead=f"from {campaign.start.experiment} to {best}; {duration(seconds)} of training",
        ideas=tables[0].table(),
        claims=tables[1].table(),
        notes=notes,
        figures=pages.embedded_figures(
            figures,
            {"ideas": "Each idea against the best at that time: the interval over all looks."},
            "{}: the table has its numbers".format,
        ),
    )
    commit(path, content.encode())
    return Report(
        facts=[
            Fact("campaign", root.name),
            *facts_of(start=campaign.start.experiment, best=best, tried=len(tried)),
            *facts_of(adopted=adopted, seconds=seconds),
            Fact("false_adoptions", false, text=""),
        ],
        tables=tables,
        notes=notes,
        files=[path],
    )


def table(name: str, ideas: Sequence[Idea], campaign: Campaign) -> DataTable:
    rows = [
        {
            "number": number,
            "idea": idea.name,
            "verdict": idea.verdict,
            "pairs": len(idea.scores),
            "difference": idea.mean,
            "interval": idea.interval,
            "adopted": idea.adopted,
            "seconds": idea.seconds,
            "command": idea.command,
        }
        for number, idea in enumerate(ideas, 1)
    ]
    columns: list[Field | str] = [
        *("number", "idea", "verdict", "pairs"),
        Field(
            "difference",
            f"difference, {campaign.metric.difference_unit}",
            text=lambda mean: signed(mean, campaign.digits),
        ),
        Field("interval", text=lambda ends: interval(ends[0], ends[1], campaign.digits), none=""),
        *("adopted", Field("seconds", "time")),
        Field("command", is_shown=False),
    ]
    return DataTable(name, columns, rows)


def forest(ideas: Sequence[Idea], campaign: Campaign) -> Figure:
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
