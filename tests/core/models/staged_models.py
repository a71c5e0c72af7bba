"""Small models with stages, with random parameters."""

from torch import nn

from tests.core.specs import changed, noisy
from vitcli.core.models.image_model import build_model
from vitcli.core.models.staged import StagedModel
from vitcli.core.spec import ModelSpec

SWIN = changed(
    family="swin", depth=6, depths=(2, 2), pool="mean", pos_embed="relative", norm_eps=1e-5
).replace(patch_embed="conv", patch_post_norm=True, patch_size=2, window_size=4)
COATNET = changed(
    family="coatnet", depth=6, depths=(1, 2, 2), layout="CCT", pool="mean", pos_embed="relative"
).replace(patch_size=1, stem_width=8)
PIT = changed(family="pit", depth=6, depths=(1, 2), patch_size=2, reg_tokens=1)
FAMILIES = {"swin": SWIN, "coatnet": COATNET, "pit": PIT}


def scrambled(model: nn.Module) -> nn.Module:
    """Return the module in eval mode with random parameters and running statistics."""
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    return noisy(model, 0.2).double().eval()


def build(spec: ModelSpec) -> StagedModel:
    model = scrambled(build_model(spec))
    assert isinstance(model, StagedModel)
    return model
