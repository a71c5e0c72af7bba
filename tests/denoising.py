"""A task that the package does not have: predict the noise in an image."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch
from vitcli.core.data.source import Images
from vitcli.core.models.vit import build_vit
from vitcli.core.nn.patch_embed import patchify
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import TASKS, ExperimentSpec, TaskSpec
from vitcli.core.spec.tasks import Metric, TaskRow
from vitcli.core.tasks.task import Outputs, Task


class Denoiser(nn.Module):
    """Noisy images (B, C, H, W) -> the noise in each patch (B, N, C P P)."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        self.encoder = build_vit(spec.model, spec.seed)
        length = self.patches(torch.zeros(1, *self.encoder.image_shape)).shape[-1]
        self.decoder = nn.Linear(self.encoder.token_shape.embed_dim, length)

    def patches(self, images: Tensor) -> Tensor:
        return patchify(images, self.encoder.spec.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder.forward_features(images)
        return self.decoder(tokens[:, self.encoder.num_prefix_tokens :])


class Denoise(Task):
    encoder_name = "encoder"
    make_module = Denoiser

    def errors(self, network: nn.Module, images: Tensor, noise: Tensor) -> Tensor:
        found, wanted = network(images + noise), self.module.patches(noise)
        return F.mse_loss(found.float(), wanted, reduction="none").mean((1, 2))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        noise = torch.randn_like(batch["images"])
        return {"loss": self.errors(self.network, batch["images"], noise).mean()}

    @torch.inference_mode()
    def outputs(self, module: nn.Module, images: Images, *, flip: bool = False) -> Outputs:
        generator, found = keyed_generator("noise"), []
        for batch in self.eval_batches(images):
            noise = torch.randn(batch["images"].shape, generator=generator)
            found.append(self.errors(module, batch["images"], noise))
        return {"error": torch.cat(found)}

    def measure(self, outputs: Outputs) -> dict[str, float]:
        return {"error": outputs["error"].double().mean().item()}


ERROR = Metric(name="error", label="error", higher_is_better=False)
ROW = TaskRow(
    about="predict the noise in an image",
    build=Denoise,
    spec=TaskSpec,
    headline=ERROR,
    recorded=("error",),
)


def add_rows() -> None:
    TASKS["denoise"] = ROW
