"""One table: family -> builder."""

from collections.abc import Callable

from vitcli.core.models.coatnet import CoAtNet
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.pit import Pit
from vitcli.core.models.resnet import ResNet18
from vitcli.core.models.swin import Swin
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import ModelSpec

FAMILIES: dict[str, Callable[[ModelSpec], ImageModel]] = {
    "vit": VisionTransformer,
    "resnet18": ResNet18,
    "swin": Swin,
    "coatnet": CoAtNet,
    "pit": Pit,
}


def build_model(spec: ModelSpec, seed: int | None = None) -> ImageModel:
    """Build and initialise; without a seed, torch's global generator chooses one.

    Raises:
        ValueError: A size is open, or the parts do not fit.
    """
    return FAMILIES[spec.family](spec).initialised(seed)
