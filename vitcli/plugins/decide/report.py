"""The report on the ideas of a campaign. No torch."""

from collections.abc import Sequence

from vitcli.plugins.decide.ledger import Campaign, Idea
from vitcli.runner.report.report import DataTable, Field, Report, facts_of, hidden
from vitcli.runner.text import interval, quantity, signed


def report(name: str, campaign: Campaign) -> Report:
    tried = [idea for idea in campaign.ideas if idea.is_final]
    adopted = sum(idea.adopted for idea in tried)
    notes = [
        f"{quantity(len(tried), 'idea')} tried, {adopted} adopted. If none helps, up to"
        f" {campaign.false_adoptions:.2f} false adoptions are to be expected.",
        "The mean difference at an early stop is too large on average; quote the interval.",
    ]
    if adopted and not campaign.claims:
        notes.append("No claim yet: --claim compares the best with the start on new seeds.")
    return Report(
        facts=[
            *facts_of(
                campaign=name,
                start=campaign.start.experiment,
                best=campaign.name_of(campaign.best),
                tried=len(tried),
                adopted=adopted,
                seconds=campaign.seconds,
            ),
            *hidden(false_adoptions=campaign.false_adoptions),
        ],
        tables=[table(kind, getattr(campaign, kind), campaign) for kind in ("ideas", "claims")],
        notes=notes,
    )


def table(name: str, ideas: Sequence[Idea], campaign: Campaign) -> DataTable:
    stored = {"verdict", "interval", "adopted", "seconds", "command"}
    rows = [
        {"number": number, "idea": name_of(idea, ideas), "pairs": len(idea.scores)}
        | {"difference": idea.mean, **idea.model_dump(include=stored)}
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


def name_of(idea: Idea, ideas: Sequence[Idea]) -> str:
    """Return the name of an idea, with the version of its code if there are several."""
    same = [
        other.side for other in ideas if (other.name, other.against) == (idea.name, idea.against)
    ]
    is_only = all(side == idea.side for side in same)
    return idea.name if is_only else f"{idea.name} ({idea.side.config_hash[:8]})"
