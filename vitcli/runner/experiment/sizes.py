"""The sizes of an experiment that follow from its data set."""

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from vitcli.core.spec import ExperimentSpec, ModelSpec
from vitcli.core.spec.base import MAX_SIDE
from vitcli.runner.data.catalogue import DataInfo
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import SIZES, STATISTICS
from vitcli.runner.experiment.problems import describe
from vitcli.runner.text import quantity

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet


def fit_to_data(spec: ExperimentSpec, data: "DataSet | DataInfo") -> ExperimentSpec:
    """Return a spec with the fields that come from the data set; refuse other values in them."""
    facts = {name: getattr(data, name) for name in SIZES}
    for name, fact in facts.items():
        given, hint = getattr(spec.model, name), ""
        if name == "img_size" and given:
            hint = f"; read them at this size: {resize_setting(given)}"
        _refuse_clash(f"model.{name}", given, fact, spec.data.name, hint)
    _refuse_clash("data.class_names", spec.data.class_names, data.class_names, spec.data.name)
    for name in STATISTICS:
        given = getattr(spec.data, name)
        if given is not None and len(given) != data.in_chans:
            values = quantity(len(given), "value")
            channels = quantity(data.in_chans, "channel")
            raise ConfigError(f"data.{name} has {values} for {channels}")
    try:
        return spec.replace(
            model=spec.model.replace(**facts),
            data=spec.data.replace(class_names=data.class_names),
        )
    except ValidationError as error:
        first = error.errors()[0]
        problem = describe(("model", *first["loc"]), first["type"], first)
        raise ConfigError(
            f"{problem} (from data set {spec.data.name}){_suggest_size(spec, data)}"
        ) from error


def fitting_sizes(model: ModelSpec, size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the sizes of whole patches nearest to ``size``: from below, then from above.

    The size from below has at least one patch. If ``size`` itself has whole patches, it is the only
    one. No side from above exceeds ``MAX_SIDE``.
    """
    patch = model.patch_side
    height, width = (max(patch, side - side % patch) for side in size)
    above = (-(-size[0] // patch) * patch, -(-size[1] // patch) * patch)
    return [
        (height, width),
        *([above] if above > (height, width) and max(above) <= MAX_SIDE else []),
    ]


def resize_setting(size: tuple[int, int]) -> str:
    height, width = size
    return f"-s data.resize={height if height == width else f'[{height},{width}]'}"


def _suggest_size(spec: ExperimentSpec, data: "DataSet | DataInfo") -> str:
    """Return the settings that fit the images to the model; empty if their size fits."""
    fitting = fitting_sizes(spec.model, data.img_size)
    if data.img_size in fitting:
        return ""
    return f"; sizes that fit: {' or '.join(map(resize_setting, fitting))}"


def _refuse_clash(field: str, given: Any, fact: Any, data_name: str, hint: str = "") -> None:
    if given is not None and given != fact:
        raise ConfigError(f"{field} is set to {given}, but data set {data_name} has {fact}{hint}")
