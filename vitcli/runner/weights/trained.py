"""A trained model that is exported.

Axes: B batch, C channels, H W pixels, K classes, F features.
"""

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.run.folder import RunDir
from vitcli.version import __version__

INPUT = "images"
SHAPES = {
    "crop": "the largest central part with the shape of the input",
    "pad": "black bars around the whole picture",
    "stretch": "each side is resized alone",
}
"""``data.fit`` -> how the picture takes the shape of the input."""


class Features(nn.Module):
    """Normalised images (B, C, H, W) -> the pooled features (B, F) of an encoder."""

    def __init__(self, encoder: ImageModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder.features(images)


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """The image model of a run in eval mode on the CPU."""

    run: RunDir
    spec: ExperimentSpec
    encoder: ImageModel

    @property
    def classifies(self) -> bool:
        return self.spec.task.row.classifies

    @property
    def output(self) -> str:
        """Return the name of the output: ``logits`` (B, K) or ``features`` (B, F)."""
        return "logits" if self.classifies else "features"

    def as_output(self, encoder: ImageModel) -> nn.Module:
        """Return the module that computes the output of an encoder like that of the run."""
        return encoder if self.classifies else Features(encoder).eval()

    def state(self) -> dict[str, Tensor]:
        unused = () if self.classifies else self.encoder.head_names
        return {k: v for k, v in self.encoder.state_dict().items() if k not in unused}

    def images(self, count: int) -> Tensor:
        """Return random normalised images (count, C, H, W), the same in every call."""
        generator = torch.Generator().manual_seed(count)
        return torch.randn(count, *self.encoder.image_shape, generator=generator)

    def preprocessing(self) -> dict[str, Any]:
        """Return how ``predict`` makes the input of a picture file, before the normalisation."""
        channels, height, width = self.encoder.image_shape
        return {
            "orientation": "turned upright as the EXIF data say",
            "transparent": "on white",
            "filter": "bilinear with antialiasing",
            "shape": SHAPES[self.spec.data.fit],
            "colours": {1: "grey", 3: "RGB"}.get(channels, "not for picture files"),
            "height": height,
            "width": width,
        }

    def metadata(self) -> dict[str, str]:
        """Return what a program needs to use the file, as texts; lists and the model as JSON."""
        data = self.spec.data
        values: dict[str, Any] = {
            "mean": data.mean,
            "std": data.std,
            "preprocessing": self.preprocessing(),
            "temperature": self.run.read("result.json").get("temperature"),
            "class_names": data.class_names if self.classifies else None,
            "model": self.spec.model.model_dump(mode="json"),
        }
        texts = {name: json.dumps(value) for name, value in values.items() if value is not None}
        about = f"{INPUT}: float32 (B, C, H, W), (pixels / 255 - mean) / std"
        return {"input": about, "output": self.output, "vitcli": __version__} | texts
