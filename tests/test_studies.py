"""Every shipped study builds, and each variant changes only the part that it names."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.spec import ExperimentSpec, VitSpec
from vitcli.core.spec.slots import INITS
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.diff import differences
from vitcli.runner.experiment.listing import is_study
from vitcli.runner.experiment.sizes import fit_to_data
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.plan import model_sizes

FOLDER = Path(__file__).parents[1] / "experiments"
STUDIES = sorted(path for path in FOLDER.glob("*.yaml") if is_study(path))
SIX = {
    "baseline": set(),
    "no-positional-encoding": {"model.pos_embed"},
    "single-head": {"model.num_heads"},
    "no-residual": {"model.residual"},
    "no-layernorm": {"model.norm"},
    "no-ffn": {"model.ffn"},
}
TABLES = [
    "ablation-quickstart",
    "ablation-cifar10-tiny",
    "ablation-cifar10-short",
    "ablation-cifar10",
]
REPORT = {"no-positional-encoding": -8.7, "single-head": -3.2, "no-residual": -12.1,
          "no-layernorm": -15.3, "no-ffn": -6.4}  # fmt: skip


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_row_builds_and_differs(path):
    study = load_study(str(path))
    sizes = model_sizes(study)
    assert list(sizes) == [variant.name for variant in study.variants]
    assert len({variant.spec for variant in study.variants}) == len(study.variants)
    assert len(study.seeds) >= (2 if study.parts or path.stem.startswith("study-") else 3)
    assert study.threads == 1


@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_the_table_changes_the_field_it_names_and_no_other(name):
    study = load_study(name)
    changed = {
        variant.name: set(differences(study.baseline.spec, variant.spec))
        for variant in study.variants
    }
    assert changed == SIX


@pytest.mark.parametrize("name", TABLES[1:])
def test_the_reference_drops_are_those_of_the_source(name):
    reference = load_study(name).reference
    assert reference is not None
    full = reference.rows["baseline"].accuracy
    assert full == 93.1
    drops = {row: round(reference.rows[row].accuracy - full, 9) for row in REPORT}
    assert drops == REPORT


@pytest.mark.parametrize("name", TABLES)
def test_each_variant_removes_the_expected_parameters(name):
    study = load_study(name)
    model, sizes = study.baseline.spec.model, model_sizes(study)
    D, L, hidden, patches = model.embed_dim, model.depth, model.hidden_dim, 64
    removed = {row: sizes["baseline"] - sizes[row] for row in SIX}
    assert removed == {
        "baseline": 0,
        "no-positional-encoding": patches * D if model.pos_embed == "learned" else 0,
        "single-head": 0,
        "no-residual": 0,
        "no-layernorm": (2 * L + 1) * 2 * D,
        "no-ffn": L * (2 * D * hidden + hidden + D + 2 * D),
    }


def test_the_fair_study_keeps_the_parameter_count():
    study = load_study("ablation-fair")
    sizes = model_sizes(study)
    assert all(abs(size / sizes["baseline"] - 1) < 0.05 for size in sizes.values())
    taken = model_sizes(load_study("ablation-cifar10-tiny"))
    assert any(abs(size / taken["baseline"] - 1) > 0.3 for size in taken.values()), "the control"
    for variant in study.variants:
        assert SIX[variant.name] <= set(differences(study.baseline.spec, variant.spec))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_variants_of_one_seed_start_with_the_baselines_weights(path):
    """Tensors of the same name and shape must be equal, or seeds would not pair.

    Variants that change the scheme of the initial weights differ in nothing else. A scheme that
    shapes each head's attention gives other matrices to another number of heads.
    """
    study = load_study(str(path))
    base = initial_tensors(study, study.baseline.name)
    same_family = [
        variant
        for variant in study.variants[1:]
        if variant.spec.model.family == study.baseline.spec.model.family
    ]
    for variant in same_family:
        if "model.init" in differences(study.baseline.spec, variant.spec):
            continue
        ours = initial_tensors(study, variant.name)
        common = [n for n in base if n in ours and base[n].shape == ours[n].shape]
        unequal = {name for name in common if not base[name].equal(ours[name])}
        has_other_heads = "model.num_heads" in differences(study.baseline.spec, variant.spec)
        if has_other_heads and INITS[variant.spec.model.init].factors_attention:
            of_heads = ("qkv.weight", "qkv.bias", "proj.weight")
            unequal = {name for name in unequal if not name.endswith(of_heads)}
        assert not unequal, variant.name
        if variant.spec.model.embed_dim == study.baseline.spec.model.embed_dim:
            drawn = [name for name in common if base[name].unique().numel() > 1]
            assert drawn, f"{variant.name}: nothing is in common, so nothing was compared"


def initial_tensors(study: Study, name: str) -> dict[str, torch.Tensor]:
    """Return an encoder's tensors at the start of a training with seed 0.

    Of blocks, there are at most two, or as many as the task names.
    """
    spec = resolved(study, name)
    if isinstance(spec.model, VitSpec):
        needed = max(2, *getattr(spec.task, "layers", ()), 0)
        spec = spec.replace(model=spec.model.replace(depth=min(needed, spec.model.depth)))
    return encoder_of(spec, new_module(spec)).state_dict()


def resolved(study: Study, name: str) -> ExperimentSpec:
    (variant,) = [variant for variant in study.variants if variant.name == name]
    return fit_to_data(variant.spec, describe_data(variant.spec.data))


def build(name: str, depth: int = 2) -> VisionTransformer:
    """Return a variant of the small table in float64, with weights moved off their start."""
    spec = resolved(load_study("ablation-cifar10-tiny"), name).model.replace(depth=depth)
    model = build_vit(spec).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, dtype=torch.float64)


def shuffled(images: torch.Tensor) -> torch.Tensor:
    """Return images with the same patches in another order."""
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)  # (B, C, 64, 4, 4)
    patches = patches[:, :, torch.randperm(64)].unflatten(2, (8, 8))
    return patches.permute(0, 1, 2, 4, 3, 5).reshape(images.shape)


@pytest.mark.parametrize("name", SIX)
def test_a_model_lacks_the_named_part_and_no_other(name, images):
    model = build(name)
    same = torch.allclose(model(images), model(shuffled(images)))
    assert same == (name == "no-positional-encoding"), "the order of patches does not matter"
    weights = model.attention_weights(images)[0]
    assert weights.shape[1] == (1 if name == "single-head" else 4)
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    has_norm = any(isinstance(m, torch.nn.LayerNorm) for m in model.modules())
    assert has_norm == (name != "no-layernorm")
    model(images).square().sum().backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == [], "every parameter gets a gradient"


@pytest.mark.parametrize("name", SIX)
def test_a_block_lacks_the_named_part_and_no_other(name, images):
    model = build(name, depth=1)
    block, tokens = model.blocks[0], torch.randn(2, 64, 64, dtype=torch.float64)
    seen = block.attn.norm
    blind = torch.allclose(seen(tokens), seen(7 * tokens), atol=1e-4)
    assert blind == (name != "no-layernorm"), "the branch does not see the scale of what it reads"
    for parameter in block.attn.inner.parameters():
        parameter.data.zero_()
    is_left_alone = torch.allclose(block(tokens), tokens)
    assert is_left_alone == (name == "no-ffn"), "without attention, a token is unchanged"
    for parameter in [] if block.ffn is None else block.ffn.inner.parameters():
        parameter.data.zero_()
    images.requires_grad_()
    model(images).sum().backward()
    silent = images.grad is None or not images.grad.any()
    assert silent == (name == "no-residual"), "the signal passes around zero branches"
