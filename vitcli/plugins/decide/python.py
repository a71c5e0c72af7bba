"""`vitcli.decide`: the verdict on numbers, on own training functions, or on experiments."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vitcli.plugins.decide import rule
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, make_output_folder, read_json, to_hashed_json
from vitcli.runner.run.folder import RUNS

SCORES = "scores.json"
Train = Callable[[int], float]


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
    sign = 1 if higher_is_better else -1
    place = Path(folder) if folder else RUNS / campaign if campaign else None
    if not isinstance(change, str | Path | Mapping) and isinstance(change, Iterable):
        values = [sign * float(value) for value in change]
        return rule.decide(values, most=max_seeds or rule.MOST, margin=margin)
    if callable(change) and callable(against):
        if place is None:
            raise ConfigError("vitcli.decide: own training functions need a folder for scores")
        return of_functions(change, against, place, sign, max_seeds or rule.MOST, margin)
    from vitcli.plugins.decide.ideas import Call
    from vitcli.plugins.decide.pairs import compare
    from vitcli.runner.study.from_python import FIELDS, plain, reporter
    from vitcli.runner.study.plan import Options

    given = {"data": data, "epochs": epochs, "limit_batches": limit_batches}
    call = Call(
        folder=place,
        is_single=campaign is None,
        against=str(against) if against else None,
        typed={FIELDS[name]: value for name, value in given.items() if value is not None},
        max_seeds=max_seeds,
        margin=margin,
        command=f"vitcli.decide({change!r}, {against!r})",
        on_message=on_message,
    )
    is_fields = isinstance(change, Mapping)
    pairs = call.compare(None if is_fields else str(change), plain(change) if is_fields else {})
    make_output_folder(pairs.root)
    show = reporter(on_message, pairs.row)
    idea = compare(pairs, Options(**options, command=call.command), show, lambda _: None)
    return idea.decision(pairs.campaign.max_seeds)


def of_functions(
    change: Train, best: Train, folder: Path, sign: int, most: int, margin: float | None
) -> rule.Decision:
    """Train pair after pair, and keep the scores of each in a file of the folder."""
    make_output_folder(folder)
    path = folder / SCORES
    names = [getattr(train, "__qualname__", "") for train in (change, best)]
    fixed: dict[str, Any] = {"functions": names, "sign": sign, "max_seeds": most, "margin": margin}
    try:
        content = read_json(path) if path.exists() else {**fixed, "scores": []}
        scores, before = content["scores"], {name: content[name] for name in fixed}
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: edited or damaged ({error}); restore it") from error
    if before != fixed:
        raise ConfigError(f"{path}: began with {before}; call again with these, or take a folder")
    while True:
        differences = [sign * (ours - theirs) for ours, theirs in scores]
        decision = rule.decide(differences, most=most, margin=margin)
        if decision.is_final:
            return decision
        scores.append([float(train(len(differences))) for train in (change, best)])
        commit(path, to_hashed_json({**fixed, "scores": scores}))
