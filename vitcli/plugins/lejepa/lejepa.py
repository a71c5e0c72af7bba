"""LeJEPA. Balestriero and LeCun 2025, https://arxiv.org/abs/2511.08544

Axes: B batch, V views (global ones first), G global views, P width of the embeddings, S slices
(directions), T points of the quadrature.
"""

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from vitcli.core import ranks
from vitcli.core.data.batches import Batch
from vitcli.core.models.image_model import build_model
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import ExperimentSpec
from vitcli.core.torch_use import without_autocast
from vitcli.plugins.lejepa.spec import LejepaSpec
from vitcli.plugins.views.view_task import Projector, ViewTask, all_features

T_MAX = 5.0
NUM_POINTS = 17
"""Points of the quadrature between -5 and 5. The integrand is even, so half of them suffice."""


def epps_pulley(samples: Tensor) -> Tensor:
    """Return the statistic of Epps and Pulley against N(0, 1): (..., B, S) -> (..., S).

    It is B times the integral of |mean exp(i t x) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) over t, by the
    trapezoid rule. Epps and Pulley 1983, https://doi.org/10.1093/biomet/70.3.723
    """
    t = torch.linspace(0, T_MAX, NUM_POINTS // 2 + 1, device=samples.device)
    gauss = (-0.5 * t.square()).exp()
    weights = torch.full_like(t, 2 * T_MAX / (NUM_POINTS // 2))  # both halves of the axis
    weights[0] /= 2
    weights[-1] /= 2
    angles = samples[..., None] * t  # (..., B, S, T)
    real, imaginary = angles.cos().mean(-3), angles.sin().mean(-3)  # (..., S, T)
    error = (real - gauss).square() + imaginary.square()
    return samples.shape[-2] * (error * (weights * gauss)).sum(-1)


def sigreg(embeddings: Tensor, directions: Tensor) -> Tensor:
    """Return the mean statistic over directions: (..., B, P), (P, S) -> scalar."""
    return epps_pulley(embeddings @ directions).mean()


COLLAPSED = 0.2
"""Standard deviation of the embeddings below which they carry no information; SIGReg wants 1."""


class LejepaModule(nn.Module):
    """Views (B, G, C, H, W) and (B, L, C, h, w) -> embeddings (B, V, P) in fp32."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        task = cast(LejepaSpec, spec.task)
        self.encoder = build_model(spec.model, spec.seed)
        widths = (self.encoder.num_features, task.hidden_dim, task.hidden_dim, task.proj_dim)
        self.projector = Projector(widths, batch_norm=True)
        self.projector.initialise(partial(keyed_generator, "init", spec.seed, "projector"))

    def forward(self, images: Tensor, local: Tensor | None = None) -> Tensor:
        features = all_features(self.encoder, images, local)
        return self.projector(features.flatten(0, 1)).float().unflatten(0, features.shape[:2])


class Lejepa(ViewTask):
    """Each view's embedding predicts the mean of the global views'; SIGReg prevents the collapse.

    loss = (1 - sigreg_weight) * invariance + sigreg_weight * SIGReg. There is no teacher and no
    stop of gradients. Deviations: the projection head has GELU where the authors' has ReLU; the
    features are the pooled tokens of the last layer.
    """

    encoder_name = "encoder"
    make_module = LejepaModule

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        task = cast(LejepaSpec, self.spec.task)
        found = ranks.gather(self.network(batch["images"], batch.get("local")))
        with without_autocast(found.device):
            same = invariance(found, task.num_global)
            drawn = torch.randn(found.shape[-1], task.num_slices, device=found.device)
            directions = ranks.from_first(drawn / drawn.norm(dim=0, keepdim=True))
            gaussian = sigreg(found.transpose(0, 1), directions)
        weight = task.sigreg_weight
        return {
            "loss": (1 - weight) * same + weight * gaussian,
            "invariance": same.detach(),
            "sigreg": gaussian.detach(),
            "spread": found.detach().std(0).mean(),
        }

    def diagnose(self, numbers: Mapping[str, float]) -> str:
        if numbers["spread"] < COLLAPSED:
            return (
                "collapse: the embeddings of all images are nearly the same (standard deviation"
                f" below {COLLAPSED}); raise task.sigreg_weight"
            )
        return ""


def invariance(embeddings: Tensor, num_global: int) -> Tensor:
    """Return the mean square distance of views (B, V, P) from the mean of the global ones."""
    center = embeddings[:, :num_global].mean(1, keepdim=True)
    return (embeddings - center).square().mean()
