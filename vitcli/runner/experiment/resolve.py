"""Fill in the fields of an experiment that follow from its data set. No torch."""

from typing import TYPE_CHECKING

from pydantic import ValidationError

from vitcli.core.spec import DATA_SETS, ExperimentSpec, ModelSpec, TrainSpec
from vitcli.core.spec.rows import MAX_SIDE
from vitcli.runner.data.catalogue import DataInfo
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import SIZES, STATISTICS, Experiment, load_experiment
from vitcli.runner.experiment.problems import describe
from vitcli.runner.text import Listener, quantity

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet

STEPS = 4
"""Smallest number of steps per epoch, and the number of them with a shrunk batch."""
FEW_STEPS = 16
"""Fewer steps per epoch are reported, because the usual number of epochs may then be too small."""
ENOUGH_STEPS = 200
"""Trainings with fewer steps in all are advised to take more epochs."""


def resolve_by_name(name: str) -> Experiment:
    experiment = load_experiment(name)
    return Experiment(experiment.name, describe_spec(experiment.spec), experiment.path)


def describe_spec(spec: ExperimentSpec) -> ExperimentSpec:
    """Return the spec with every field that can be known without reading images."""
    from vitcli.runner.data.load import describe_data

    facts = describe_data(spec.data)
    if (fitted := fit_pictures(spec, facts.img_size)) != spec:
        facts = describe_data(fitted.data)
    return fit_to_data(fitted, facts)


def fit_pictures(spec: ExperimentSpec, size: tuple[int, int]) -> ExperimentSpec:
    """Return the spec with ``data.resize`` set if own pictures have no whole number of patches.

    ``size`` is their size. A size that the user set for the pictures or the model stays.
    """
    if spec.data.name in DATA_SETS or spec.data.resize or spec.model.img_size:
        return spec
    fitting = fitting_sizes(spec.model, size)[0]
    return spec if fitting == size else spec.replace(data=spec.data.replace(resize=fitting))


def shrink_batch(
    experiment: Experiment,
    spec: ExperimentSpec,
    num_train: int,
    on_message: Listener,
    kept: int | None = None,
) -> ExperimentSpec:
    """Return the spec with a batch of a quarter of the images, if an epoch has too few steps.

    Nothing else changes, such as the learning rate. The batch size stays if the command line sets
    it. It also stays in a study, because variants that differ in it could become equal. A run that
    continues has the size ``kept``. A note reports the number of steps if pictures are few.
    """
    train = spec.train
    if kept:
        return spec.replace(train=train.replace(batch_size=kept))
    if experiment.variant is not None or num_train >= FEW_STEPS * train.batch_size:
        return spec
    images, size = f"note: {num_train:,} training images", train.batch_size
    if num_train < STEPS * size and "train.batch_size" not in experiment.typed:
        size = min(small_batch(spec, num_train), size)
    if size < train.batch_size:
        images += f" in batches of {size} instead of {train.batch_size} (train.batch_size)"
    if num_train >= size:
        on_message(f"{images}: {describe_steps(num_train // size, train)}")
    return spec.replace(train=train.replace(batch_size=size))


def small_batch(spec: ExperimentSpec, num_train: int, ranks: int = 1) -> int:
    """Return the batch size for few images: a quarter of them, and two if that would be one.

    The parts of a batch, of ``train.accumulate`` and of ``ranks`` processes, are equal, and batch
    norm needs some images in each. So the batch may be larger than ``num_train``.
    """
    parts = spec.train.accumulate * ranks
    part = max(num_train // STEPS // parts, spec.model.min_batch, 1)
    return max(part * parts, min(2, num_train // 2))


def steps_per_epoch(spec: ExperimentSpec, num_train: int, ranks: int = 1) -> int:
    """Return the number of full batches in an epoch, without ``train.limit_batches``."""
    size = spec.train.batch_size
    if num_train >= size:
        return num_train // size
    fitting = small_batch(spec, num_train, ranks)
    hint = f"try -s train.batch_size={fitting}"
    if fitting > num_train:
        hint = f"with this model, train.accumulate and number of processes, it takes {fitting}"
    raise ConfigError(
        f"train.batch_size: {num_train} images do not fill one batch of {size}; {hint}"
    )


def describe_steps(per_epoch: int, train: TrainSpec) -> str:
    """Return the number of steps of a training, and what to type if it is small."""
    per_epoch = min(per_epoch, train.limit_batches or per_epoch)
    total = per_epoch * train.epochs
    text = f"{quantity(per_epoch, 'step')} per epoch, {total:,} in all"
    if train.limit_batches or train.early_stopping or not 0 < total < ENOUGH_STEPS:
        return text
    return f"{text}; to train longer: --epochs {-(-ENOUGH_STEPS // per_epoch)}"


def resolve(spec: ExperimentSpec, data: "DataSet") -> ExperimentSpec:
    """Return the spec with every field that follows from the data set."""
    spec = fit_to_data(spec, data)
    # A channel with a single level has no standard deviation to divide by; it is only centred.
    std = spec.data.std or tuple(value or 1.0 for value in data.std)
    mean = spec.data.mean or data.mean
    return spec.replace(data=spec.data.replace(mean=mean, std=std))


def fit_to_data(spec: ExperimentSpec, data: "DataSet | DataInfo") -> ExperimentSpec:
    """Return a spec with the fields that come from the data set; refuse other values in them."""
    facts = {name: getattr(data, name) for name in SIZES}
    known = [(f"model.{name}", getattr(spec.model, name), fact) for name, fact in facts.items()]
    known.append(("data.class_names", spec.data.class_names, data.class_names))
    for field, given, fact in known:
        if given is not None and given != fact:
            is_size = field == "model.img_size"
            hint = f"; read them at this size: {resize_setting(given)}" if is_size else ""
            name = spec.data.name
            raise ConfigError(f"{field} is set to {given}, but data set {name} has {fact}{hint}")
    for name in STATISTICS:
        given = getattr(spec.data, name)
        if given is not None and len(given) != data.in_chans:
            values = quantity(len(given), "value")
            channels = quantity(data.in_chans, "channel")
            raise ConfigError(f"data.{name} has {values} for {channels}")
    checked: tuple[str, ...] = ("model",)
    try:
        model = spec.model.replace(**facts)
        checked = ()
        return spec.replace(model=model, data=spec.data.replace(class_names=data.class_names))
    except ValidationError as error:
        first = error.errors()[0]
        problem = describe((*checked, *first["loc"]), first["type"], first)
        fitting, hint = fitting_sizes(spec.model, data.img_size), ""
        if data.img_size not in fitting:
            hint = f"; sizes that fit: {' or '.join(map(resize_setting, fitting))}"
        raise ConfigError(f"{problem} (from data set {spec.data.name}){hint}") from error


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
