"""From the spec of a model to the model."""

from vitcli.core.make import make
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import FAMILIES, ModelSpec


def build_model(spec: ModelSpec, seed: int | None = None) -> ImageModel:
    """Build and initialise; without a seed, torch's global generator chooses one.

    Raises:
        ValueError: A size is open, or the parts do not fit.
    """
    model: ImageModel = make(FAMILIES[spec.family], spec)
    return model.initialised(seed)
