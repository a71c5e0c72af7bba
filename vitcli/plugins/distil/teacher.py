"""The frozen model that teaches. Axes: B batch, C channels, H W pixels, h w grid, K classes."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.models.image_model import build_model, hooked
from vitcli.core.randomness import seed_of
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.distil.spec import DistilSpec, TeacherSpec


def distil_spec(spec: ExperimentSpec) -> DistilSpec:
    return cast(DistilSpec, spec.task)


class Teacher:
    """A model in eval mode whose outputs are computed without gradients.

    It takes the student's images, and changes their normalisation and size to its own. Its weights
    are random until they are loaded into ``model``; on ``meta``, there are only shapes.
    """

    def __init__(self, spec: ExperimentSpec, device: torch.device) -> None:
        asked = distil_spec(spec).teacher or TeacherSpec()
        if device.type == "meta":
            with device:
                model = build_model(asked.model or spec.model)
        else:
            seed = seed_of("teacher", spec.seed)
            model = build_model(asked.model or spec.model, seed).to(device)
        self.model = model.eval().requires_grad_(False)
        ours, theirs = ((each.mean, each.std) for each in (spec.data, asked))
        self._change: tuple[Tensor, Tensor] | None = None
        """What images are multiplied by, and what is then added; None changes nothing."""
        if ours != theirs and all((*ours, *theirs)):
            (mean, std), (wanted, spread) = (
                torch.tensor(pair, device=device)[..., None, None] for pair in (ours, theirs)
            )
            self._change = std / spread, (mean - wanted) / spread

    def _prepare(self, images: Tensor) -> Tensor:
        if self._change is not None:
            images = images * self._change[0] + self._change[1]
        size = self.model.image_shape[1:]
        if images.shape[-2:] != size:
            images = F.interpolate(images, size, mode="bilinear", align_corners=False)
        return images

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return the teacher's logits in fp32: (B, C, H, W) -> (B, K)."""
        found: Tensor = self.model(self._prepare(images))
        return found.float()

    @torch.no_grad()
    def maps(self, images: Tensor, names: Sequence[str]) -> list[Tensor]:
        """Return the outputs of parts of the teacher as maps in fp32, each (B, D, h, w)."""
        run: Any = getattr(self.model, "forward_features", self.model)
        with hooked({name: self._part(name) for name in names}) as found:
            run(self._prepare(images))
        ratio = self.model.image_shape[1] / self.model.image_shape[2]
        prefix = getattr(self.model, "num_prefix_tokens", 0)
        maps = (as_map(found.get(name), ratio, prefix, name).float() for name in names)
        form = getattr(getattr(self.model, "net", None), "output_fmt", "")  # of timm
        return [
            each.movedim(-1, 1) if form == "NHWC" and found[name].ndim == 4 else each
            for name, each in zip(names, maps, strict=True)
        ]

    def _part(self, name: str) -> nn.Module:
        try:
            return self.model.get_submodule(name)
        except AttributeError:
            known = [each for each, _ in self.model.named_modules() if each.count(".") <= 1]
            raise ValueError(
                f"task.teacher_layers: the teacher has no part {name!r}, only"
                f" {', '.join(filter(None, known))}"
            ) from None


def as_map(output: Tensor | None, ratio: float, prefix: int, name: str) -> Tensor:
    """Return a map (B, D, h, w), or tokens (B, N, D) without their prefix, as a map.

    ``ratio`` is the height of the image divided by its width.
    """
    if isinstance(output, Tensor) and output.ndim == 4:
        return output
    if isinstance(output, Tensor) and output.ndim == 3:
        tokens = output[:, prefix:]
        height = round(math.sqrt(tokens.shape[1] * ratio))
        if height and tokens.shape[1] % height == 0:
            return tokens.mT.unflatten(2, (height, -1))
    raise ValueError(f"task.teacher_layers: the output of {name!r} is no map of the image")
