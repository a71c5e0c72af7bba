"""Masked autoencoder: pre-training by reconstruction of masked patches. He et al. 2022.

``visible`` (B, n) and ``masked`` (B, m) are indices of patches in reading order, int64.
Axes: B batch, N images, C channels, H W pixels, P patches of an image. In the model: N patches, P
patch_size, p prefix tokens, D embed_dim, F features, L = C P P pixels of a patch, K classes.
"""

from typing import cast

import torch
from torch import Tensor, nn

from vitcli.core.data.augment import standardize
from vitcli.core.data.batches import Batch, EpochPlan
from vitcli.core.data.policy import Size
from vitcli.core.data.source import DataSet, Images
from vitcli.core.models.layers import plain_block
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.init import STD, xavier_normal
from vitcli.core.nn.norm import EPS as NORM_EPS
from vitcli.core.nn.patch_embed import patchify, unpatchify
from vitcli.core.nn.pos_embed import grid_positions, sincos2d
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.objectives.pictures import Grid
from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import Draws, keyed_generator
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.mae.spec import MaskingSpec


def split_patches(noise: Tensor, num_masked: int) -> tuple[Tensor, Tensor]:
    """Return the visible and the masked patches of each image: those with less and more noise.

    ``noise`` (B, N) is uniform, so every selection is equally likely. He et al. 2022,
    https://arxiv.org/abs/2111.06377. Equal noise is resolved in reading order, so a selection does
    not depend on the device.
    """
    order = noise.argsort(dim=1, stable=True)
    count = noise.shape[1] - num_masked
    return order[:, :count], order[:, count:]


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """Return the tokens at some indices: (B, N, F), (B, n) -> (B, n, F)."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


def put(tokens: Tensor, index: Tensor, into: Tensor) -> Tensor:
    """Return ``into`` (B, N, F) with ``tokens`` (B, n, F) at the indices (B, n)."""
    return into.scatter(1, index[..., None].expand_as(tokens), tokens.to(into.dtype))


def nearest_visible(visible: Tensor, masked: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Return for each masked patch the nearest visible patch, as an index of patches (B, m).

    The distance is Euclidean. Of equally near patches, the first in reading order is taken.
    """
    rows, columns = (place.to(visible.device) for place in grid_positions(grid_size))
    count = len(rows)
    down, right = (place[:, None] - place[None] for place in (rows, columns))
    squared = down * down + right * right  # (N, N)
    found = squared[masked].gather(2, visible[:, None].expand(-1, masked.shape[1], -1))
    first = (found * count + visible[:, None]).argmin(2)  # (B, m), places in ``visible``
    return visible.gather(1, first)


EPS = 1e-6
"""Added to the variance of a patch by ``norm_pix``, as in the paper's code."""


class Decoder(nn.Module):
    """Tokens of the visible patches (B, p + n, D) -> pixels of the masked patches (B, m, L).

    A mask token stands for each masked patch. The decoder's own positions are fixed sines and
    cosines. Deviations from the paper: the blocks have the encoder's ``mlp_ratio`` (the paper has 4
    in both), and weights start from a normal instead of a uniform Xavier distribution.
    He et al. 2022, https://arxiv.org/abs/2111.06377
    """

    pos_embed: Tensor

    def __init__(self, encoder: VisionTransformer, task: MaskingSpec) -> None:
        super().__init__()
        spec, dim = encoder.spec, task.decoder_dim
        self.num_prefix_tokens = encoder.num_prefix_tokens
        shape = TokenShape(
            embed_dim=dim,
            grid_size=encoder.grid_size,
            num_prefix_tokens=self.num_prefix_tokens,
            num_heads=task.decoder_num_heads,
        )
        hidden = max(1, int(dim * (spec.hidden_dim / spec.embed_dim)))
        self.embed = Linear(spec.embed_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        positions = sincos2d(encoder.grid_size, dim)[None]
        self.register_buffer("pos_embed", positions, persistent=False)
        blocks = [plain_block(shape, hidden) for _ in range(task.decoder_depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim, NORM_EPS)
        self.predict = Linear(dim, encoder.image_shape[0] * spec.patch_size**2)

    def init_weights(self, draws: Draws) -> None:
        xavier_normal(self, draws)
        nn.init.normal_(self.mask_token, std=STD, generator=draws("mask_token"))

    def forward(self, tokens: Tensor, visible: Tensor, masked: Tensor) -> Tensor:
        """Return the pixels of masked patches: (B, p + n, D), (B, n), (B, m) -> (B, m, L)."""
        tokens = self.embed(tokens)
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        count = visible.shape[1] + masked.shape[1]
        everywhere = self.mask_token.expand(len(patches), count, -1)
        patches = put(patches, visible, everywhere) + self.pos_embed
        tokens = self.blocks(torch.cat([prefix.to(patches.dtype), patches], dim=1))
        return self.predict(take(self.norm(tokens[:, self.num_prefix_tokens :]), masked))


class MaskedModel(nn.Module):
    """An encoder that sees the visible patches of an image, and a decoder of the masked ones."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        assert isinstance(spec.task, MaskingSpec)
        self.encoder = build_vit(spec.model, spec.seed)
        self.num_masked = spec.task.num_masked(self.encoder.num_patches)
        if not 0 < self.num_masked < self.encoder.num_patches:
            spec.task.check(self.encoder.spec, spec.data, spec.train)
        self.norm_pix = spec.task.norm_pix
        self.decoder = Decoder(self.encoder, spec.task)
        if not self.decoder.mask_token.is_meta:
            seed = spec.seed
            self.decoder.init_weights(lambda name: keyed_generator("init", seed, f"decoder.{name}"))

    def patches(self, images: Tensor) -> Tensor:
        """Return the pixels of all patches: (B, C, H, W) -> (B, N, L)."""
        return patchify(images, self.encoder.spec.patch_size)

    def split(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the visible (B, n) and the masked patches (B, m) for noise (B, N)."""
        return split_patches(noise, self.num_masked)

    def targets(self, pixels: Tensor) -> Tensor:
        """Return what is predicted for the pixels of patches: (..., L) -> (..., L)."""
        if not self.norm_pix:
            return pixels
        variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)
        return (pixels - mean) / (variance + EPS).sqrt()

    def predict(self, images: Tensor, visible: Tensor, masked: Tensor) -> Tensor:
        """Return the targets (B, m, L) that the visible patches suggest for the masked patches."""
        return self.decoder(self.encoder.encode(images, visible), visible, masked)

    def errors(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return the mean squared error over the patches that the noise (B, N) masks, (B,) fp32."""
        visible, masked = self.split(noise)
        wanted = self.targets(take(self.patches(images), masked))
        found = self.predict(images, visible, masked).float()
        return (found - wanted).square().mean((1, 2))

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        return self.errors(images, noise)


NOISE = "noise"
"""Name of the table of noise (N, P), and of its part in a batch (B, P)."""
BASELINES = ("mean_mse", "visible_mse", "nearest_mse")
"""Names of the errors of predictions without a model: see ``baseline_errors``."""
GREY = 127
"""Level of masked pixels in pictures."""


def draw_noise(num_images: int, num_patches: int, *key: int | str) -> Tensor:
    """Return uniform noise (N, P), which depends only on the key and the index of the image."""
    return torch.rand(num_images, num_patches, generator=keyed_generator(*key, "mask"))


class MaskedTask(Task):
    """Base class of tasks whose module is a ``MaskedModel``.

    An epoch has a table of noise, which determines the masks. So a mask is a function of (seed,
    epoch, image), whatever the device and the number of parts of a batch.
    """

    encoder_name = "encoder"
    module: MaskedModel

    @property
    def num_patches(self) -> int:
        return self.module.encoder.num_patches

    def draw_rows(self, epoch: int, num_images: int, size: Size, is_cuda: bool) -> EpochPlan:
        rows = super().draw_rows(epoch, num_images, size, is_cuda)
        noise = draw_noise(num_images, self.num_patches, self.spec.seed, epoch)
        return rows | {NOISE: noise[rows["index"]]}

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        return super().make_batch(data, rows) | {NOISE: rows[NOISE]}

    def held_out_noise(self, images: Images) -> Tensor:
        """Return the noise (N, P) of an evaluation, the same for every seed and epoch."""
        return draw_noise(len(images), self.num_patches, "held-out").to(images.pixels.device)

    @torch.inference_mode()
    def reconstruction_errors(self, module: nn.Module, images: Images) -> Outputs:
        """Return ``masked_mse`` and the errors of the baselines of each image of a split, (N,)."""
        model, was_training = cast(MaskedModel, module), module.training
        model.eval()
        noise, parts, start = self.held_out_noise(images), [], 0
        for batch in self.eval_batches(images):
            pixels = batch["images"]
            part = noise[start : start + len(pixels)]
            start += len(pixels)
            errors = {"masked_mse": model.errors(pixels, part)}
            parts.append(errors | baseline_errors(model, pixels, part))
        model.train(was_training)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    @torch.inference_mode()
    def pictures(self, module: nn.Module, data: DataSet, index: Tensor) -> dict[str, Grid]:
        model, device = cast(MaskedModel, module), data.test.pixels.device
        images = standardize(data.test.pixels[index.to(device)], *self._channels)
        noise = self.held_out_noise(data.test)[index.to(device)]
        filled = self.to_pixels(reconstruct(model, images, noise))
        shown = self.to_pixels(images)
        count, scale = f"{model.num_masked} of {self.num_patches}", ""
        if model.norm_pix:
            scale = " The mean and the contrast of a patch are those of the original."
        cells = torch.stack([shown, hide(model, shown, noise), filled], dim=1)
        grid = Grid(
            title="Reconstructions",
            caption=f"Test images with {count} patches masked; the masks are fixed.{scale}",
            columns=("original", "visible patches", "reconstruction"),
            cells=cells.cpu(),
        )
        return {"reconstructions": grid}


class Mae(MaskedTask):
    """The mean squared error of masked patches that are predicted from the visible patches.

    He et al. 2022, https://arxiv.org/abs/2111.06377
    """

    make_module = MaskedModel

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.network(batch["images"], batch[NOISE]).mean()}

    outputs = MaskedTask.reconstruction_errors

    def measure(self, outputs: Outputs) -> dict[str, float]:
        return mean_errors(outputs)


def mean_errors(outputs: Outputs) -> dict[str, float]:
    """Return the means of ``reconstruction_errors``, and the ratio to the best baseline."""
    if not outputs["masked_mse"].isfinite().all():
        raise ValueError("the reconstructions contain infinite or NaN values")
    names = ("masked_mse", *BASELINES)
    means = {name: outputs[name].double().mean().item() for name in names}
    return means | {"mse_ratio": means["masked_mse"] / min(means[name] for name in BASELINES)}


def baseline_errors(model: MaskedModel, images: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """Return the errors (B,) of three predictions without a model: one colour for each patch.

    ``mean_mse``: the mean colour of the data set, which is 0 in normalised images. ``visible_mse``:
    the mean colour of the image's visible patches. ``nearest_mse``: the mean colour of the nearest
    visible patch.
    """
    visible, masked = model.split(noise)
    pixels = model.patches(images)  # (B, P, pixels of a patch)
    channels = images.shape[1]
    area = pixels.shape[-1] // channels
    colours = pixels.unflatten(-1, (channels, area)).mean(-1)  # (B, P, C)
    nearest = take(colours, nearest_visible(visible, masked, model.encoder.grid_size))
    overall = take(colours, visible).mean(1, keepdim=True).expand_as(nearest)
    wanted = model.targets(take(pixels, masked))
    guesses = dict(zip(BASELINES, (torch.zeros_like(nearest), overall, nearest), strict=True))
    return {
        name: (model.targets(guess.repeat_interleave(area, -1)) - wanted).square().mean((1, 2))
        for name, guess in guesses.items()
    }


def reconstruct(model: MaskedModel, images: Tensor, noise: Tensor) -> Tensor:
    """Return images whose masked patches are predicted from the visible ones: (B, C, H, W).

    With ``norm_pix``, the predictions get the mean and the deviation of the true patches.
    """
    visible, masked = model.split(noise)
    pixels = model.patches(images)
    found = model.predict(images, visible, masked).float()
    if model.norm_pix:
        deviation, mean = torch.std_mean(take(pixels, masked), dim=-1, keepdim=True)
        found = found * deviation + mean
    whole = put(found, masked, pixels)
    return unpatchify(whole, model.encoder.spec.patch_size, model.encoder.grid_size)


def hide(model: MaskedModel, pixels: Tensor, noise: Tensor) -> Tensor:
    """Return pixels whose masked patches are grey: (B, 3, H, W) uint8."""
    size = model.encoder.spec.patch_size
    patches, (_, masked) = patchify(pixels, size), model.split(noise)
    whole = put(torch.full_like(take(patches, masked), GREY), masked, patches)
    return unpatchify(whole, size, model.encoder.grid_size)
