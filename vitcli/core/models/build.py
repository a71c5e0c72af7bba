"""Build a model from its spec."""

from vitcli.core.make import make
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import FAMILIES, ModelSpec


def build_model(spec: ModelSpec, seed: int | None = None) -> ImageModel:
    """Return the model with initial weights.

    Without a seed, torch's global generator draws a seed.

    Raises:
        ValueError: A size is not set, or the parts of the model do not fit together.
    """
    model: ImageModel = make(FAMILIES[spec.family], spec)
    return model.initialise(seed)
