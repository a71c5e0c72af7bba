"""Studies that a call in Python defines; a class stands for the name of its part."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from numbers import Integral
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vitcli.core.spec.own import PARTS
from vitcli.core.spec.task import TaskRow
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.yaml_text import document_of
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import NAME, Study, study_of
from vitcli.runner.study.page import publish
from vitcli.runner.study.plan import (
    Options,
    count_states,
    explain_states,
    plan_study,
    states_without_result,
)
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.run import run_study
from vitcli.runner.text import Listener, portable, quantity
from vitcli.runner.train.events import Ended, EpochDone, Message, TrialEvent

CALL = "ablate"
"""The place of all fields, for messages."""
FIELDS = {"epochs": "train.epochs", "limit_batches": "train.limit_batches", "data": "data.name"}
"""Argument of the call -> the field that it sets in every variant."""
LINE_SECONDS = 10.0


def plain(value: Any, call: str = CALL) -> Any:
    """Return a value as YAML has it: a part becomes its name, a path its text."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {str(key): plain(each, call) for key, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(each, call) for each in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if not isinstance(value, type) and hasattr(value, "tolist"):  # of NumPy or torch
        return plain(value.tolist(), call)
    if isinstance(value, Enum):  # an option of an own part
        return plain(value.value, call)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Hashable) and value in PARTS:
        return PARTS[value]
    raise ConfigError(
        f"{call}: {value!r} is neither a number, text or list nor one of your parts; a class needs"
        " a decorator of vitcli.parts, such as @attention"
    )


def define_study(
    base: str | Path | Mapping[str, Any],
    variants: Mapping[str, Mapping[str, Any] | None],
    seeds: int | Sequence[int],
    name: str,
    given: Mapping[str, Any],
    planned_seeds: int | None = None,
) -> Study:
    typed = {FIELDS[key]: plain(value) for key, value in given.items() if value is not None}
    fields = base if isinstance(base, Mapping) else {"base": base}
    name = name or ("ablation" if fields is base else f"{Path(str(base)).stem}-ablation")
    if not NAME.fullmatch(name):
        raise ConfigError(f"{CALL}: name {name!r}: use letters, digits and . _ + - only")
    if planned_seeds is not None:
        fields = {**fields, "planned_seeds": planned_seeds}
    chosen = range(int(seeds)) if isinstance(seeds, Integral) else seeds
    document = document_of(plain({**fields, "seeds": chosen, "variants": variants}), CALL)
    return study_of(document, Path(f"{name}.yaml"), None, typed)


def call_text(given: Mapping[str, Any]) -> str:
    """Return a call as it can be typed again; parts are named, and outside folders left out."""
    order = ("base", "variants", "seeds", "planned_seeds", "name", "code", *FIELDS)
    values = {key: portable(plain(given.get(key))) for key in order}
    values = {key: value for key, value in values.items() if value not in (None, [])}
    return f"vitcli.ablate({', '.join(f'{key}={value!r}' for key, value in values.items())})"


def run_here(study: Study, root: Path, options: Options, on_message: Listener) -> StudyResult:
    """Train the trials of a study that have no result, write its report and return its document."""
    names = tuple(variant.name for variant in study.variants)
    if study.note:
        on_message(f"note: {study.note}")
    work = plan_study(study, root, names)
    on_message(f"study {study.name} in {root}: {count_states(work.states)}")
    states = run_study(work, options, reporter(on_message, study.baseline.spec.task.row))
    document = read_results(study, root, names, states=states).replace(command=options.command)
    publish(document, root, on_message)
    left = states_without_result(states)
    for line in explain_states(left):
        on_message(line)
    if left:
        on_message(f"{quantity(len(left), 'trial')} without a result; the same call trains again")
    return document


def reporter(on_message: Listener, row: TaskRow) -> Callable[[TrialEvent], None]:
    said: set[str] = set()
    last = time.monotonic()

    def show(found: TrialEvent) -> None:
        nonlocal last
        event, text = found.event, ""
        if isinstance(event, Ended):
            result = event.state if event.score is None else row.headline.text(event.score)
            text = f"{found.folder}  {result}  {event.reason}".rstrip()
        elif isinstance(event, Message) and event.text not in said:
            text = f"{found.folder}: {event.text}" if found.folder else event.text
            said.add(event.text)
        elif isinstance(event, EpochDone) and time.monotonic() - last > LINE_SECONDS:
            record = event.record
            text = f"{found.folder}  epoch {record['epoch']}  loss {record['train_loss']:.3f}"
        if text:
            on_message(text)
            last = time.monotonic()

    return show
