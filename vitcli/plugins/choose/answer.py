"""The answer of `vitcli choose`: the models side by side, and what more pictures would add."""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from vitcli.core.inspect.cost import count_parameters
from vitcli.core.spec import DataSpec
from vitcli.core.spec.data import DEPTH_FIELDS, OWN_FIELDS
from vitcli.plugin import commands
from vitcli.plugins.choose.choose import Groups, Pictures, Probed, divide_pictures, error_of, probe
from vitcli.plugins.choose.curve import extrapolate, groups_needed, learning_curve
from vitcli.plugins.choose.models import Candidate, load_candidates
from vitcli.runner.data.extras import column_of
from vitcli.runner.data.find import own_path
from vitcli.runner.data.folds import except_in, fewest_groups
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.trained_run import OnStage
from vitcli.runner.experiment.config import load_experiment, typed_changes, typed_command
from vitcli.runner.machine.device import pick_device
from vitcli.runner.report.report import SHARE, DataTable, Fact, Field, Report, hidden
from vitcli.runner.report.tables import ascii_signs
from vitcli.runner.study.judgement import RowStatistics, judge_difference
from vitcli.runner.study.significance import ALPHA, holm
from vitcli.runner.text import Listener, interval, percent, printable, quantity, signed

FOLDS, FEWEST_FOLDS = 5, 3
LEARNED = "it, or a run before it, learned from these images, so its accuracy would be too high"
UNKNOWN = "does not say which pictures it learned from; if these, its accuracy is too high"
TAKEN = ("name", "skip_bad", "allow_leaks", "folds", *OWN_FIELDS)
"""Fields of ``data`` that the command takes; a model brings the others."""


def choose_model(
    names: Sequence[str] | None,
    changes: Mapping[str, Any],
    options: Mapping[str, str],
    *,
    device: str,
    data_dir: Path | None,
    limit_batches: int | None,
    offline: bool,
    on_message: Listener,
    on_stage: OnStage,
) -> Report:
    """Probe models on the training images of ``data.name``; by default all on this machine.

    Raises:
        ConfigError: A field or a name means nothing here.
        InputError: The pictures are too few or damaged, or no model can take part.
    """
    asked = _asked(changes, options)
    folds = asked.folds or FOLDS
    where, tell_once = pick_device(device), cache(on_message)
    pictures: Pictures | None = None
    probed, left_out, unknown = list[Probed](), dict[str, str](), list[str]()
    for candidate in load_candidates(names, left_out, offline, on_message):
        wanted = candidate.preprocessing(asked, changes)
        try:
            data = load_data(wanted, data_dir=data_dir, offline=offline, on_message=tell_once)
        except InputError as error:
            if names or all(getattr(wanted, name) == getattr(asked, name) for name in DEPTH_FIELDS):
                raise
            left_out[candidate.name] = str(error).partition("\n")[0]
            continue
        if column := column_of(data.train.extra):
            raise ConfigError(
                f"{printable(data.name)}: its column {column.column!r} has no classes to choose by;"
                f" to train with it, type: -s task.name={column.task}"
            )
        has_learned = candidate.has_learned(data)
        if has_learned:
            left_out[candidate.name] = LEARNED
            continue
        if has_learned is None:
            unknown.append(candidate.name)
        if pictures is None:
            pictures = divide_pictures(data, asked, folds, limit_batches, data_dir)
        probed.append(probe(candidate, pictures, pictures.seen_by(data), where, on_stage))
    if pictures is None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError(f"there is no model to choose from; {reasons}")
    probed.sort(key=lambda model: -model.scores.accuracy)
    data, best, apart = pictures.data, probed[0], except_in(pictures.unlinked)
    gain, curve = _gain(best, pictures, on_stage)
    unused = f"in {folds} folds; {quantity(len(data.test), 'test image')} are not used"
    largest, share = best.scores.majority
    is_chosen = "The best model was chosen on these images, so its accuracy is a little too high."
    return Report(
        facts=[
            Fact("data", data.name),
            Fact("num_images", len(pictures.images), label="training images", about=unused),
            *hidden(folds=folds, num_classes=data.num_classes),
            Fact("largest_class_share", share, about=f"({data.class_names[largest]})"),
            Fact("best", best.candidate.name),
            *gain,
        ],
        tables=[_models(probed, pictures.groups, folds), curve],
        notes=[
            "Intervals (95 %) are for other pictures of the same kind and as many to learn from."
            " Those of the differences hold together, for all pairs of models.",
            *([is_chosen] if len(probed) > 1 else []),
            *([f"Copies are in one fold{apart}; accuracies are too high."] if apart else []),
            *(f"left out: {name}: {reason}" for name, reason in left_out.items()),
            *(f"{name} {UNKNOWN}" for name in unknown),
        ],
        next=[_following(best.candidate, changes, data_dir, has_leaks=bool(data.leaks))],
    )


def _asked(changes: Mapping[str, Any], options: Mapping[str, str]) -> DataSpec:
    if others := [field for field in changes if field.removeprefix("data.") not in TAKEN]:
        known = ", ".join(f"data.{field}" for field in TAKEN[1:])
        raise ConfigError(f"{others[0]}: a model brings its own; choose takes {known}")
    asked = load_experiment("finetune", changes, options).spec.data.replace(val_split=0)
    if asked.folds and asked.folds < FEWEST_FOLDS:
        raise ConfigError(f"data.folds is {asked.folds}; choose needs {FEWEST_FOLDS} or more")
    return asked


def _models(probed: Sequence[Probed], groups: Groups, folds: int) -> DataTable:
    """Return the table of the models. These images chose the best, so each pair is a comparison."""
    best, pairs = probed[0], len(probed) * (len(probed) - 1) // 2
    errors = [
        error_of(model.is_right - best.is_right, groups, [1, -1], folds) for model in probed[1:]
    ]
    p_values = holm([2 * error.tail(abs(error.mean)) for error in errors], pairs)
    rows = list[dict[str, Any]]()
    for model, error, p in zip(probed, [None, *errors], [None, *p_values], strict=True):
        candidate, accuracy = model.candidate, model.scores.accuracy
        low, high = error_of(model.is_right, groups, [1, 1, 0, 0], folds).interval(ALPHA)
        row: dict[str, Any] = {
            "model": candidate.name,
            "accuracy": accuracy,
            "accuracy_interval_95": [max(0.0, low), min(1.0, high)],
            "balanced_accuracy": model.scores.balanced_accuracy,
            **dict.fromkeys(("difference", "interval", "p_holm", "judgement")),
            "parameters": count_parameters(candidate.encoder),
            "num_features": model.features.shape[1],
            "ms_per_image": 1000 * model.seconds_per_image,
        }
        if error is not None and p is not None:
            statistics = RowStatistics(
                variant=candidate.name,
                n=1,
                difference=accuracy - best.scores.accuracy,
                joint_low=error.interval(ALPHA / pairs)[0],
                decided_at=len(groups) if p <= ALPHA else None,
                is_higher=False,
            )
            row["difference"], row["p_holm"] = statistics.difference, p
            row["interval"] = [*error.interval(ALPHA / pairs)]
            row["judgement"] = judge_difference(statistics, None, higher_is_better=True)
        rows.append(row)
    share, balanced = Field("accuracy", metric=SHARE), Field("balanced_accuracy", metric=SHARE)
    other: dict[str, Any] = {"none": "", "is_shown": len(probed) > 1}
    return DataTable(
        "models",
        [
            "model",
            share,
            Field(
                "accuracy_interval_95",
                "95 % interval",
                text=lambda ends: " to ".join(percent(end, 1) for end in ends),
            ),
            *([] if best.scores.has_equal_classes else [balanced]),
            Field("difference", "difference, points", text=_points, **other),
            Field("interval", text=_interval, **other),
            Field("p_holm", "p", text="{:.2g}".format, **other),
            Field("judgement", **other | {"none": "best"}),
            "parameters",
            "num_features",
            Field("ms_per_image", "ms an image"),
        ],
        rows,
    )


def _points(share: float) -> str:
    return ascii_signs(signed(100 * share, 1))


def _interval(limits: Sequence[float]) -> str:
    return ascii_signs(interval(100 * limits[0], 100 * limits[1], 1))


def _gain(best: Probed, pictures: Pictures, on_stage: OnStage) -> tuple[list[Fact], DataTable]:
    """Return what twice as many images would add to a model, and its learning curve."""
    labels, groups = pictures.images.labels, pictures.groups
    fewest, label = fewest_groups(groups, labels.tolist())
    name, title, rows = "gain_of_twice", "twice as many pictures", list[dict[str, Any]]()
    fields: list[Field | str] = ["images", Field("accuracy", metric=SHARE)]
    needed = groups_needed(len(best.probes))
    if fewest < needed:
        known = (
            f"class {pictures.data.class_names[label]!r} has {fewest} different images or groups"
        )
        text = (
            f"not known: {known}, and a learning curve needs {needed} in each class; add"
            f" {needed - fewest} to it, or move its folder away"
        )
        facts = [Fact(name, None, label=title, text=text), *hidden(gain_interval_95=None)]
        return facts, DataTable("learning_curve", fields, rows)
    stage = f"{best.candidate.name}: learning curve"
    curve = learning_curve(
        best.features,
        labels.to(best.features.device),
        groups,
        pictures.parts.to(best.features.device),
        best.probes,
        lambda done, most: on_stage(stage, done, most),
    )
    gain, limits = extrapolate(curve, groups, len(labels))
    for size, error in zip(curve.sizes.tolist(), curve.errors.mean(0).tolist(), strict=True):
        rows.append({"images": round(size), "accuracy": 1 - error})
    text, more = f"{_points(gain)} {_interval(limits)} points", f"{len(labels):,} more of the same"
    facts = [
        Fact(name, gain, label=title, text=text, about=f"of accuracy, from {more} kind"),
        *hidden(gain_interval_95=[*limits]),
    ]
    return facts, DataTable("learning_curve", fields, rows)


def _following(
    best: Candidate, changes: Mapping[str, Any], data_dir: Path | None, *, has_leaks: bool
) -> str:
    """Return the command that tunes a model; if a training would be refused, what finds copies."""
    name = str(changes["data.name"])
    if has_leaks and not changes.get("data.allow_leaks") and "data check" in commands():
        return shlex.join(typed_command("data check", name))
    fit = best.fit(changes) if own_path(name) else DataSpec().fit
    others = ("data.name", "data.folds")
    fields = {field: value for field, value in changes.items() if field not in others}
    fields |= {"data.fit": fit} if fit != DataSpec().fit else {}
    words = typed_command("train", "finetune", "--init", best.name, "--data", name)
    words += typed_changes(fields, {"data.fit": "--fit"})
    words += ["--data-dir", str(data_dir)] if data_dir else []
    is_linear = isinstance(best.encoder.head, nn.Linear)
    return shlex.join(words + ([] if is_linear else typed_changes({"train.init_head": "random"})))
