"""A task that the package does not have: predict the noise in an image."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch
from vitcli.core.data.source import DataSet, Images
from vitcli.core.metric import Metric
from vitcli.core.models.vit import build_vit
from vitcli.core.nn.patch_embed import patchify
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.objectives.pictures import Grid
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import TASKS, ExperimentSpec, TaskSpec
from vitcli.core.spec.task import TaskRow


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
    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        was_training = module.training
        module.eval()
        generator, found = keyed_generator("noise"), []
        for batch in self.eval_batches(images):
            noise = torch.randn(batch["images"].shape, generator=generator)
            found.append(self.errors(module, batch["images"], noise))
        module.train(was_training)
        return {"error": torch.cat(found)}

    def pictures(self, module: nn.Module, data: DataSet, index: Tensor) -> dict[str, Grid]:
        clean = next(self.eval_batches(data.test[index]))["images"]
        noise = torch.randn(clean.shape, generator=keyed_generator("noise"))
        cells = torch.stack([self.to_pixels(part) for part in (clean, clean + noise)])
        return {
            "noise": Grid(
                title="Noise",
                caption="Test images above, with noise below.",
                columns=tuple(f"image {i + 1}" for i in range(len(clean))),
                cells=cells,
                row_names=("image", "image with noise"),
            ),
        }

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
