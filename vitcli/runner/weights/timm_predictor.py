"""A model of timm in memory, with the pre-processing that timm states for it."""

from collections.abc import Callable
from pathlib import Path

from vitcli.core.models.build import build_model
from vitcli.core.spec import DataSpec, ExperimentSpec, VitSpec
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights.timm_weights import TimmWeights


def timm_predictor(
    weights: TimmWeights, device: str = "auto", *, on_message: Callable[[str], None]
) -> Predictor:
    """Return weights of timm as a model for pictures of the model's own size.

    Classes have names if timm knows them. A model without names of classes does not classify, and
    its head is not used.

    Args:
        weights: The weights.
        device: The device of the model.
        on_message: Receives a report of each resized and each dropped tensor.

    Raises:
        InputError: The tensors are not those of the model.
    """
    count = weights.num_classes or 1
    names = weights.class_names
    model = build_model(VitSpec(**weights.fields, num_classes=count), seed=0).eval()
    state = weights.state_for(model, on_message)
    model.load_state_dict(state, strict=weights.num_classes > 0)
    if names is None:
        on_message("note: timm has no names for the classes of this model, so none is shown")
    data = DataSpec(mean=weights.mean, std=weights.std, class_names=names)
    spec = ExperimentSpec(model=model.spec, data=data)
    return Predictor(RunDir(Path(weights.file)), device, (spec, model))
