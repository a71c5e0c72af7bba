"""The spec of the model family ``timm``."""

from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from vitcli.core.spec import ExperimentSpec, ModelSpec, TrainSpec
from vitcli.core.spec.families import FamilyRow
from vitcli.runner.errors import ConfigError
from vitcli.runner.text import did_you_mean, join_words

MISSING = "models of timm need the package timm; in the checkout, type: pip install '.[timm]'"


class TimmSpec(ModelSpec):
    """A model of timm, as timm builds it. It needs the extra ``timm``."""

    family: Literal["timm"] = "timm"
    name: str | None = None
    """Name of the model in timm, also with a tag, such as vit_small_patch14_dinov2.lvd142m. There
    is no default: it must be set."""
    pretrained: bool = False
    """Start from timm's published weights, with the size and the normalisation of the pictures that
    timm states for them, unless ``data`` sets others. ``train.init`` takes other weights."""

    min_batch: ClassVar[int] = 2

    @property
    def is_pretrained(self) -> bool:
        return self.pretrained

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not self.name:
            raise ValueError("family 'timm' needs name, such as vit_small_patch14_dinov2.lvd142m")
        return self


ROW = FamilyRow(
    about="a model of timm by its name (Wightman 2019)",
    build="vitcli.plugins.timm.model:TimmModel",
    spec=TimmSpec,
    small={"name": "test_resnet"},
    fit="vitcli.plugins.timm.spec:fit_to_timm",
    weights="vitcli.plugins.timm.model:WEIGHTS",
)

PREFIX = "timm:"


def timm_config(name: str) -> Any:
    """Return timm's configuration of a name: picture size, mean, std, place of the weights."""
    if find_spec("timm") is None:
        raise ConfigError(MISSING)
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


def fit_to_timm(spec: ExperimentSpec) -> ExperimentSpec:
    """Return the spec with what timm states for its pretrained weights, unless the spec says it."""
    data, model = spec.data, spec.model
    assert isinstance(model, TimmSpec)
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
