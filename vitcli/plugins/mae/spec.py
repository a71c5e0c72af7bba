"""The spec of the task ``mae``, and the fields of every task that reconstructs masked patches."""

from typing import Literal, Self

from pydantic import Field, model_validator

from vitcli.core.metric import error
from vitcli.core.spec import DataSpec, ModelSpec, TaskSpec, TrainSpec, VitSpec
from vitcli.core.spec.slots import PATCH_EMBEDS
from vitcli.core.spec.task import TaskRow

masked_mse = error(
    name="masked_mse",
    label="masked MSE",
    short="mse",
    condense="vitcli.core.metrics.stored:condense_errors",
    per_image="vitcli.core.metrics.stored:errors",
)
"""Mean squared error of the reconstructed pixels in masked patches, in units of the normalised
pixels. The masks of an evaluation are always the same."""
mse_ratio = error(name="mse_ratio", label="MSE by that of the best baseline")


class MaskingSpec(TaskSpec):
    """Fields of tasks that reconstruct masked patches."""

    mask_ratio: float = Field(0.75, gt=0, lt=1)
    """Share of the patches that are masked; their number is rounded."""
    decoder_dim: int = Field(64, ge=4, le=8192, multiple_of=4)
    """Width of a token in the decoder; a multiple of 4."""
    decoder_depth: int = Field(1, ge=1, le=64)
    """Number of blocks in the decoder."""
    decoder_num_heads: int = Field(2, ge=1, le=256)
    """Number of attention heads in the decoder."""
    norm_pix: bool = False
    """Normalise the pixels of each patch that is reconstructed to mean 0 and variance 1."""

    def num_masked(self, num_patches: int) -> int:
        return round(self.mask_ratio * num_patches)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.decoder_dim % self.decoder_num_heads:
            raise ValueError(
                f"decoder_num_heads {self.decoder_num_heads} does not divide decoder_dim"
                f" {self.decoder_dim}"
            )
        return self

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        if not isinstance(model, VitSpec):
            raise ValueError(
                f"model.family: task {self.name!r} encodes only the visible patches, which family"
                f" {model.family!r} cannot do; take vit"
            )
        if model.no_other_grid:
            raise ValueError(
                f"model: task {self.name!r} encodes only the visible patches, but"
                f" {model.no_other_grid}"
            )
        if not PATCH_EMBEDS[model.patch_embed].cuts_patches:
            able = " or ".join(name for name, row in PATCH_EMBEDS.items() if row.cuts_patches)
            raise ValueError(
                f"model.patch_embed: {model.patch_embed!r} mixes pixels of neighbouring patches, so"
                f" task {self.name!r} could look into masked patches; take {able}"
            )
        if self.norm_pix and (model.patch_size, model.in_chans) == (1, 1):
            raise ValueError("task.norm_pix: a patch of one value has no variance; set it to false")
        if model.img_size is not None:
            height, width = (side // model.patch_size for side in model.img_size)
            masked = self.num_masked(height * width)
            if not 0 < masked < height * width:
                raise ValueError(
                    f"task.mask_ratio: {self.mask_ratio} masks {masked} of {height * width}"
                    " patches; at least one must be masked and one visible"
                )


class MaeSpec(MaskingSpec):
    """Reconstruction of masked patches."""

    name: Literal["mae"] = "mae"


ROW = TaskRow(
    about="masked autoencoder: reconstruct masked patches (He et al. 2022)",
    build="vitcli.plugins.mae.mae:Mae",
    spec=MaeSpec,
    headline=masked_mse,
    recorded=("masked_mse", "mse_ratio"),
    uses_labels=False,
)
