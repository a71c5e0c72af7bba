"""Another model family or task; models of timm, with what timm states of them."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from vitcli.core.spec import FAMILIES, ExperimentSpec, ModelSpec, TimmSpec, TrainSpec
from vitcli.core.spec.families import DEFAULT_FAMILY, DEFAULTS, FAMILY
from vitcli.core.spec.own import FIELDS
from vitcli.core.spec.task import TASK
from vitcli.runner.errors import ConfigError
from vitcli.runner.text import did_you_mean, join_words

FIELD = f"model.{FAMILY.key}"
SIZES = ModelSpec.model_fields.keys() - {FAMILY.key}
"""Fields of every family: sizes that follow from the data."""


def switch_family(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Replace the model of an experiment if ``changes`` names another family.

    The widths and depths of one family make no sense in another, so the model becomes the small
    model of the new family. Other changes still apply to it. The sizes of the data stay. Pretrained
    weights of timm replace those of ``train.init``, with the pictures that they expect. Return a
    note about the new model, too; empty if the family stays.
    """
    model, name = raw.get("model"), changes.get(FIELD)
    if not isinstance(name, str) or name not in FAMILIES or name == FAMILY.name_of(model):
        return dict(raw), ""
    small = "small " if FAMILIES[name].small else ""
    note = (
        f"{FIELD}={name} replaces the experiment's model by a {small}{name};"
        " 'vitcli train --dry-run' shows all fields"
    )
    new = dict(raw) | {"model": _small_model(model, name)}
    if changes.get("model.pretrained") and FAMILIES[name].spec is TimmSpec:
        for part, dropped in {"data": ("mean", "std", "resize"), "train": ("init",)}.items():
            fields = new.get(part) or {}
            new[part] = {key: value for key, value in fields.items() if key not in dropped}
    return new, note


def _small_model(model: Any, name: str) -> dict[str, Any]:
    small = FAMILIES[name].small if name in FAMILIES else {}
    sizes = {field: value for field, value in dict(model or {}).items() if field in SIZES}
    return {**small, **sizes}


def model_below(model: Any, name: Any) -> Any:
    """Return the fields that a file or a variant with the family ``name`` is laid over.

    These are the fields of ``model``, whose family may be another one, if they all suit a built-in
    family, as in files of 1.0.0; else those of its small model, as in ``switch_family``.
    """
    is_mapping = isinstance(model, Mapping) and isinstance(name, str)
    if not is_mapping or name == model.get(FAMILY.key, DEFAULT_FAMILY):
        return model
    row = FAMILIES.get(name)
    known = row.spec.model_fields if row and not row.source else {}
    if known and all(key in known or DEFAULTS.get(key, ...) == model[key] for key in model):
        return model
    return _small_model(model, name)


def choice_below(field: str, below: Any, name: Any) -> Any:
    """Return the fields that those of a choice are laid over: another name has its own defaults.

    ``below`` are the fields of the choice, such as ``model.ffn``, or its name alone; they may be
    invalid. ``name`` is None if the name stays.
    """
    if field == "model":
        return model_below(below, name)
    fields = below if isinstance(below, Mapping) else {} if below is None else {"name": below}
    known = fields.get("name") or (TASK.default if field.endswith("task") else None)
    return fields if name in (None, known) else {}


def is_choice(field: str) -> bool:
    """Return whether the fields below this one depend on a name beside them."""
    return field.removeprefix("pretrain.") in {"model", "task", "augment.policy", *FIELDS}


def is_option(field: str) -> bool:
    """Return whether a dictionary in this field is one value."""
    is_below = is_choice(field.rpartition(".")[0]) and not is_choice(field)
    return is_below and field != "task.teacher"


PREFIX = "timm:"


def timm_config(name: str) -> Any:
    """Return timm's configuration of a name: picture size, mean, std, place of the weights."""
    if find_spec("timm") is None:
        raise ConfigError(
            "models of timm need the package timm; in the checkout, type: pip install '.[timm]'"
        )
    import timm

    architecture, _, tag = name.partition(".")
    if not timm.is_model(name):
        hint = did_you_mean(architecture, timm.list_models())
        raise ConfigError(f"timm {timm.__version__} has no model {architecture!r}{hint}")
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        known = timm.list_pretrained(f"{architecture}.*")
        tags = join_words([repr(name.partition(".")[2]) for name in known]) or "none"
        raise ConfigError(
            f"timm {timm.__version__} has no weights {tag!r} of {architecture}, only {tags}"
        ) from error


def fit_to_timm(spec: ExperimentSpec, model: TimmSpec) -> ExperimentSpec:
    """Return the spec with what timm states for its pretrained weights, unless the spec says it."""
    data = spec.data
    try:
        config = timm_config(model.name or "")
    except ConfigError as error:
        raise ConfigError(f"model.name: {error}") from error
    for part in filter(None, (spec, spec.pretraining)):
        if part.train.accumulate > 1 or part.train.grad_checkpointing:
            refuse_training(model.name or "", part.train)
    if not model.pretrained:
        return spec
    if config is None:
        raise ConfigError(f"model.pretrained: timm has no weights of {model.name}")
    size = data.resize or model.img_size or tuple(config.input_size[1:])
    mean, std = data.mean or tuple(config.mean), data.std or tuple(config.std)
    return spec.replace(data=data.replace(resize=size, mean=mean, std=std))


def refuse_training(name: str, train: TrainSpec) -> None:
    """Refuse what changes the statistics of batch norm, and recomputed blocks without blocks."""
    import timm
    import torch

    with torch.device("meta"):
        model: Any = timm.create_model(name)
    norm = torch.nn.modules.batchnorm._BatchNorm
    has_batch_norm = any(isinstance(part, norm) for part in model.modules())
    if has_batch_norm and train.accumulate > 1:
        raise ConfigError(
            "train.accumulate: batch norm would see only a part of each batch, which changes the"
            " gradients; set train.accumulate to 1"
        )
    if has_batch_norm and train.grad_checkpointing:
        raise ConfigError(
            "train.grad_checkpointing: batch norm would count each batch twice; set it to false"
        )
    if train.grad_checkpointing:
        try:
            model.set_grad_checkpointing(True)
        except (AssertionError, AttributeError) as error:
            raise ConfigError(
                f"train.grad_checkpointing: timm cannot recompute the blocks of {name}"
            ) from error
