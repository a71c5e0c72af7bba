"""The experiment, or the run and the pictures, that a command line chooses."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.cli.console import say
from vitcli.runner.errors import ConfigError

if TYPE_CHECKING:
    from vitcli.core.spec import DataSpec, TrainSpec
    from vitcli.runner.experiment.config import Experiment
    from vitcli.runner.run.folder import RunDir


def collect_changes(
    sets: list[str] | None, shortcuts: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all changed fields, and which option changed a field; ``--set`` where absent."""
    from vitcli.runner.experiment.config import parse_sets

    given = {field: value for field, value in shortcuts.items() if value is not None}
    names = {field: f"--{field.rpartition('.')[2].replace('_', '-')}" for field in given}
    if "data.name" in given:
        names["data.name"] = "--data"
    return parse_sets(sets) | given, names


def adopt_model(
    name: str, changes: Mapping[str, Any], options: Mapping[str, str]
) -> "tuple[dict[str, Any], RunDir | None]":
    """Return changes with the run of ``--init`` and with the model that it fits; and the run.

    An experiment that starts from weights itself takes model, size of the pictures and
    normalisation from those of ``--init``, and for own pictures how files are read, unless they are
    set in the command. Any experiment takes the groups and corrections of the run, as
    ``adopt_fields`` says. Published weights, such as ``timm:NAME``, are a model and no run.
    """
    from vitcli.core.spec import FAMILIES
    from vitcli.core.spec.data import LABEL_FIELDS, READ_FIELDS
    from vitcli.runner.data.find import own_path
    from vitcli.runner.experiment.config import STATISTICS, load_experiment
    from vitcli.runner.experiment.family import split_published
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.train.initial import tensor_fields

    asked = str(changes["train.init"])
    others = {field: value for field, value in changes.items() if field != "train.init"}
    if published := split_published(asked):
        family, model = published
        fields = {"model.family": family, "model.name": model, "model.pretrained": True}
        return others | fields, None
    if Path(asked).is_file():
        if FAMILIES[load_experiment(name, others, options).spec.model.family].weights:
            return dict(changes), None
        raise ConfigError(
            f"--init {asked}: a weights file does not name its model; add -s model.family=timm"
            f" -s model.name=NAME, or type: vitcli import {shlex.quote(asked)} EXPERIMENT"
        )
    source = find_run(asked)
    base, theirs = load_experiment(name, others, options).spec, source.spec()
    taken: dict[str, Any] = {"train.init": source.name}
    taken |= adopt_fields(LABEL_FIELDS, base.data, source, changes)
    if base.train.init in (None, source.name):
        return taken | others, source
    are_own = own_path(base.data.name) and own_path(theirs.data.name)
    read = (*STATISTICS, *READ_FIELDS) if are_own else STATISTICS
    taken |= {f"data.{field}": getattr(theirs.data, field) for field in read}
    taken |= {"data.resize": theirs.model.img_size}
    if tensor_fields(base.model) != tensor_fields(theirs.model):
        fields = {"family": theirs.model.family} | tensor_fields(theirs.model)
        taken |= {f"model.{field}": value for field, value in fields.items()}
        height, width = theirs.model.img_size or (0, 0)
        say(f"the model is that of {source.name}: {theirs.model.family}, {height}x{width} pixels")
    return taken | others, source


def adopt_fields(
    names: Sequence[str], data: "DataSpec", source: "RunDir", changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields ``names`` of the run whose pictures keep their sides, and say them.

    Both have own pictures, and neither ``data`` nor ``changes`` sets them. Corrections name files,
    so those of another folder are left out.
    """
    from vitcli.runner.data.find import own_path
    from vitcli.runner.experiment.config import typed_changes
    from vitcli.runner.run.split import learned_run

    run, taken = learned_run(source) or source, dict[str, Any]()
    theirs = run.spec().data
    here, there = own_path(data.name), own_path(theirs.name)
    if not (here and there):
        return taken
    for name in names:
        field, value = f"data.{name}", getattr(theirs, name)
        if value is None or field in changes or getattr(data, name) is not None:
            continue
        typed = shlex.join(typed_changes({field: value}))
        if name == "corrections" and here.resolve() != there.resolve():
            say(f"note: without the {name} of {run.name}, for {theirs.name}; to use them: {typed}")
        else:
            say(f"{field} is that of {run.name}: {typed}; to use none: -s {field}=null")
            taken[field] = value
    return taken


def shorten_pretraining(
    train: "TrainSpec", changes: Mapping[str, Any], options: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of the pre-training ``train`` that a short try lowers, with a note.

    ``--limit-batches`` makes a training a try. It lowers the batches of the pre-training, too, and
    ``--epochs`` beside it the epochs.
    """
    lowered = {}
    for name in ("epochs", "limit_batches"):
        limit, planned = changes.get(f"train.{name}"), getattr(train, name)
        is_asked = f"train.{name}" in options and f"pretrain.train.{name}" not in changes
        if is_asked and limit is not None and (planned is None or limit < planned):
            lowered[f"pretrain.train.{name}"] = limit
    if lowered:
        given = " and ".join(options[field.removeprefix("pretrain.")] for field in lowered)
        kept = f"-s pretrain.train.epochs={train.epochs}"
        keep = f"; to keep its epochs: {kept}" if "pretrain.train.epochs" in lowered else ""
        say(f"note: {given} shorten{'' if len(lowered) > 1 else 's'} the pre-training, too{keep}")
    return lowered


def load_changed(
    name: str, changes: Mapping[str, Any], options: Mapping[str, str] | None = None
) -> "Experiment":
    """Return an experiment with ``changes``, of which some are of ``options``; print its note."""
    from vitcli.runner.experiment.config import load_experiment
    from vitcli.runner.run.folder import CONFIG
    from vitcli.runner.run.record import named_as_run

    experiment = load_experiment(name, changes, options)
    if experiment.path.name == CONFIG:
        experiment = named_as_run(experiment)
    if experiment.note:
        say(f"note: {experiment.note}")
    return experiment


def run_and_pictures(
    command: str, typed: Sequence[str | None], *, needs_picture: bool = True
) -> tuple[str | None, list[str]]:
    """Return the run among the arguments, None for the default run, and the pictures.

    The first word is the run if it names one, an exported model or timm:NAME, or if it is no file
    or folder and has no suffix. A word alone is a picture where a picture is needed.
    """
    from vitcli.plugin import missing_for
    from vitcli.runner.evaluate.load import CLASSIFIERS
    from vitcli.runner.experiment.family import split_published
    from vitcli.runner.run.folder import RUNS, bundled_models

    words = [word for word in typed if word is not None]
    first, *others = words or [""]
    path = Path(first)
    is_here = first == "-" or (first != "" and path.exists())
    is_folder = is_here and path.is_dir()
    is_run = bool(
        split_published(first) is not None
        or path.suffix in CLASSIFIERS
        or (is_here and missing_for(CLASSIFIERS.field, path.suffix))
        or (is_folder and (path / "config.yaml").is_file())
        or (is_folder and RUNS.resolve() in path.resolve().parents)
    )
    is_path = first.startswith((".", "/", "~", "-")) or not first
    is_name = not is_path and (first in bundled_models() or (RUNS / first).is_dir())
    if needs_picture and not others:
        if not words or is_run or (is_name and not is_here):
            example = shlex.join(["vitcli", command, *words, "photo.jpg"])
            raise ConfigError(f"'vitcli {command}' needs a picture; type for example: {example}")
        return None, [first]
    if is_name and is_here and not is_run:
        raise ConfigError(
            f"{first} is a run, and also a {'folder' if is_folder else 'file'} here; type"
            f" {shlex.quote(str(RUNS / first))} for the run, or {shlex.quote(f'./{first}')}"
        )
    if words and (is_run or is_name or not (is_here or path.suffix)):
        return first, others
    return None, words
