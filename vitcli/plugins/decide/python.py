"""`vitcli.decide`: the verdict on numbers or on experiments."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vitcli.plugins.decide import rule
from vitcli.runner.files import make_output_folder
from vitcli.runner.run.folder import RUNS


def decide(
    change: Any,
    against: Any,
    on_message: Callable[[str], None],
    *,
    max_seeds: int | None = None,
    margin: float | None = None,
    campaign: str | None = None,
    folder: str | Path | None = None,
    higher_is_better: bool = True,
    data: str | None = None,
    epochs: int | None = None,
    limit_batches: int | None = None,
    **options: Any,
) -> rule.Decision:
    if not isinstance(change, str | Path | Mapping) and isinstance(change, Iterable):
        sign = 1 if higher_is_better else -1
        values = [sign * float(value) for value in change]
        return rule.decide(values, most=max_seeds or rule.MOST, margin=margin)
    from vitcli.plugins.decide.ideas import Call
    from vitcli.plugins.decide.pairs import compare
    from vitcli.runner.study.from_python import FIELDS, plain, reporter
    from vitcli.runner.study.plan import Options

    place = Path(folder) if folder else RUNS / campaign if campaign else None
    given = {"data": data, "epochs": epochs, "limit_batches": limit_batches}
    call = Call(
        folder=place,
        is_campaign=campaign is not None,
        against=str(against) if against else None,
        typed={FIELDS[name]: value for name, value in given.items() if value is not None},
        max_seeds=max_seeds,
        margin=margin,
        command=f"vitcli.decide({change!r}, {against!r})",
        on_message=on_message,
    )
    is_fields = isinstance(change, Mapping)
    pairs = call.compare(None if is_fields else str(change), plain(change) if is_fields else {})
    if not pairs.idea.is_final:
        make_output_folder(pairs.root)
        choices = Options(**options, command=call.command)
        compare(pairs, choices, reporter(on_message, pairs.row))
    return pairs.idea.decision(pairs.campaign.max_seeds)
