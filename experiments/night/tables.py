"""The tables of the page docs/results/night.md, from the ledger of the campaign."""

from experiments.night.campaign import HELP, HURT, IDEAS, LEDGER, RESULT, SAME
from vitcli.plugins.decide.ledger import Campaign, read, table
from vitcli.runner.report.tables import markdown_grid, to_markdown
from vitcli.runner.text import duration

RIGHT = {
    "changes nothing": ("unlikely to be better", "not decided", "equivalent"),
    "known to help": ("better",),
    "known to hurt": ("worse",),
}


def _campaign() -> Campaign:
    found = read(RESULT)
    assert found, f"no {RESULT / LEDGER}; python -m experiments.night.campaign makes it"
    return found


def ideas() -> str:
    campaign = _campaign()
    adopted = sum(idea.adopted for idea in campaign.ideas)
    said = (
        f"{len(campaign.ideas)} ideas, {adopted} adopted, {duration(campaign.seconds)} of training"
        f" with one CPU thread; if none helped, up to {campaign.false_adoptions:.2f} false"
        " adoptions were to be expected."
    )
    return f"{to_markdown(table('ideas', campaign.ideas, campaign).table())}\n\n{said}"


def claim() -> str:
    campaign = _campaign()
    return to_markdown(table("claims", campaign.claims, campaign).table())


def planted() -> str:
    """Return the verdicts on the planted ideas, and how many are right."""
    verdicts = {idea.name: idea.verdict for idea in _campaign().ideas}
    kinds = dict(zip(RIGHT, (SAME, HELP, HURT), strict=True))
    rows = [
        [f"`{IDEAS[place]}`", kind, verdict, "yes" if verdict in RIGHT[kind] else "no"]
        for kind, places in kinds.items()
        for place in places
        for verdict in [verdicts[IDEAS[place]]]
    ]
    right = sum(row[-1] == "yes" for row in rows)
    grid = markdown_grid(["idea", "what is known", "verdict", "right"], rows)
    return f"{grid}\n\n{right} of {len(rows)} are right."
