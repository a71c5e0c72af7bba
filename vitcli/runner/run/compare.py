"""Comparison of two runs, and of a run with its experiment."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from vitcli.core.metric import metric_of
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.task import TaskRow
from vitcli.runner.experiment.config import base_spec, flatten
from vitcli.runner.experiment.diff import (
    DATA_FIELDS,
    TEACHER_WEIGHTS,
    Change,
    Config,
    differences,
    with_data_defaults,
)
from vitcli.runner.experiment.problems import field_names
from vitcli.runner.experiment.yaml_text import format_value
from vitcli.runner.files import readable_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import RunRecord
from vitcli.runner.run.split import read_sides
from vitcli.runner.text import quantity

MEASURES = (
    *("test_accuracy", "test_loss", "test_top5_accuracy", "calibration_error", "val_accuracy"),
    *("train_loss", "train_accuracy"),
    *("parameters", "epochs", "train_seconds", "images_per_second"),
)
"""Numbers of most tasks and the numbers of a classification, in the order of the comparison."""
FACTS = ("data_hash", "init_sha256", "commit", "dirty", "torch", "hardware", "device", "threads")


def task_measures(row: TaskRow) -> list[str]:
    """Return the names in a run's files of the task's numbers that ``MEASURES`` does not have."""
    names = [
        *(f"test_{name}" for name in row.numbers),
        f"val_{row.headline.name}",
        *(f"train_{name}" for name in row.reports),
    ]
    return [name for name in names if name not in MEASURES]


def compare_runs(one: RunRecord, other: RunRecord) -> dict[str, dict[str, Change]]:
    """Return the fields and facts that differ between two runs, and all of their measures."""
    facts = {name: (one.meta.get(name), other.meta.get(name)) for name in FACTS}
    names = dict.fromkeys([*task_measures(one.task), *task_measures(other.task), *MEASURES])
    names |= dict.fromkeys(filter(metric_of, sorted(one.numbers.keys() ^ other.numbers.keys())))
    own = (n for run in (one, other) for n in run.numbers if run.metric_of(n) and not metric_of(n))
    names |= dict.fromkeys(own)
    measures = {name: (one.numbers.get(name), other.numbers.get(name)) for name in names}
    return {
        "config": differences(one.known_config or one.spec, other.known_config or other.spec),
        "environment": {name: pair for name, pair in facts.items() if pair[0] != pair[1]},
        "measured": {name: pair for name, pair in measures.items() if pair != (None, None)},
    }


def describe_tests(records: Sequence[RunRecord]) -> list[str]:
    """Return notes on two runs that were measured on other test pictures, or by other labels.

    The pictures are those of their split.json. Nothing of a run says which of its labels are
    corrected, so the file of corrections decides, or that the same one led to other data.
    """
    known = [read_sides(record.folder) for record in records]
    one, other = ({name for name, side in (s or {}).items() if side == "test"} for s in known)
    a, b = (record.setting("data.corrections") for record in records)
    has_other = one == other and records[0].data_hash != records[1].data_hash
    labels = (
        "note: the labels of test pictures may differ, and with them the scores: data.corrections"
        f" is {a or 'unset'}, and {b or 'unset'}{', with other data' if a == b else ''}"
    )
    notes = [labels] if a != b or (a and has_other) else []
    if None in known or one == other:
        return notes
    counts = [
        f"{quantity(len(tested), 'picture')} of {record.setting('model.num_classes')} classes"
        for tested, record in zip((one, other), records, strict=True)
    ]
    shared = f"{' and '.join(counts)}, of which {len(one & other):,} are the same"
    return [f"note: scores are of different test pictures (copies count once): {shared}", *notes]


HIDDEN = ("seed", "data.name", "code", TEACHER_WEIGHTS)
"""Fields that a list of runs shows anyway, or that follow from others."""


def differing_fields(
    name: str | None, config: Config | None, meta: dict[str, Any], references: dict[str, Config]
) -> dict[str, Any]:
    """Return the fields in which a run differs from its experiment: dotted field -> value.

    ``references`` holds the configuration that each experiment's runs are compared with. A missing
    one is added: the experiment's file, or the first run if there is no such file.
    """
    if config is None or name is None:
        return {}
    if name not in references:
        references[name] = base_spec(name) or config
    base = references[name]
    if isinstance(base, ExperimentSpec) and isinstance(config, ExperimentSpec):
        found = differences(with_data_defaults(base, config, meta), config)
        ours, theirs = type(config.model).model_fields, type(base.model).model_fields
        foreign = {f"model.{name}" for name in theirs.keys() - ours.keys()}
    else:
        found = differences(base, config)
        foreign = {name for name, (_, value) in found.items() if value is None}
        foreign |= {name for name in DATA_FIELDS if name in found and found[name][0] is None}
    return {
        field: value
        for field, (_, value) in found.items()
        if field not in HIDDEN and field not in foreign
    }


def compared_settings(run: RunDir, spec: ExperimentSpec, meta: dict[str, Any]) -> dict[str, Any]:
    """Return the settings by which runs are compared: dotted field -> value.

    They are the names of experiment and variant, the data set, the seed, and each field that
    differs from the experiment, or between the trials of a study.
    """
    name, variant = meta.get("experiment"), meta.get("variant")
    others = varying_fields(run) if variant else differing_fields(name, spec, meta, {})
    known = {"experiment": name, "variant": variant, "data.name": spec.data.name, "seed": spec.seed}
    return known | others


def varying_fields(run: RunDir) -> dict[str, Any]:
    """Return the fields of a trial that the plan of its study varies: dotted field -> value."""
    path = run.path.resolve()
    for root in path.parents[:3]:
        with suppress(KeyError, TypeError, AttributeError, ValueError):  # no plan, or another one
            trials = readable_json(root / "plan.json")["trials"]
            entry = trials[str(path.relative_to(root))]
            variants = {(item["variant"], str(item["setting"])): item for item in trials.values()}
            configs = [flatten(item["config"]) for item in variants.values()]
            point = entry["setting"] if isinstance(entry["setting"], dict) else {}  # of a search
            return point | {
                field: value
                for field, value in flatten(entry["config"]).items()
                if field not in HIDDEN
                and not field.startswith("code.")
                and any(config.get(field) != value for config in configs)
            }
    return {}


def short_setting(field: str, value: Any) -> str:
    """Return a setting such as ``depth=4``, without spaces between the numbers of a list.

    Numbers have four significant digits. The last part of the field is enough, unless another
    field ends with the same word, or the field is an option of an own part.
    """
    name = field.rpartition(".")[2] if field in _short_fields() else field
    text = format_value(_rounded(value))
    return f"{name}={text if isinstance(value, str) else text.replace(' ', '')}"


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


@cache
def _short_fields() -> set[str]:
    last = {field: field.rpartition(".")[2] for field in field_names()}
    counts = Counter(last.values())
    return {field for field, word in last.items() if counts[word] == 1}
