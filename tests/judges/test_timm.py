"""Judge: timm's benchmark tables. They decide numbers of parameters and operations.

The rows are those of ``results/benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv`` in the repository
huggingface/pytorch-image-models, in 10^6 parameters and 10^9 multiply-adds at 224 pixels, counted
with fvcore. Convention as in ``test_torchvision.py``; fvcore also counts some norms.
"""

import pytest

from tests.judges.conftest import Judge
from tests.judges.test_torchvision import sizes, vit
from vitcli.core.spec import model_spec

JUDGE = Judge(
    "timm's benchmark tables", "Apache-2.0", "parameters and operations", of="7479d451 (2024)"
)
pytestmark = pytest.mark.judge
PIT = {"family": "timm", "name": "pit_ti_224", "img_size": (224, 224)}
"""timm's own model, because the patches of ``family: pit`` do not overlap."""


@pytest.mark.parametrize(
    ("name", "spec", "parameters", "operations"),
    [
        ("vit_tiny_patch16_224", vit(16, 192, 12, 3), 5.72, 1.26),
        ("vit_small_patch16_224", vit(16, 384, 12, 6), 22.05, 4.61),
        ("vit_base_patch32_224", vit(32, 768, 12, 12), 88.22, 4.41),
        ("pit_ti_224", model_spec(**PIT, in_chans=3, num_classes=1000), 4.85, 0.70),
    ],
)
def test_sizes_are_those_of_timm(agree, name, spec, parameters, operations):
    ours = sizes(spec)
    agree(f"{name}: 10^6 parameters", ours[0] / 1e6, parameters, within=1e-3)
    agree(f"{name}: 10^9 multiply-adds", ours[1], operations, within=1e-2)
