"""Masked autoencoders: what the encoder sees, what the loss counts, and who may be an encoder."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.core.specs import REQUIRED
from tests.core.trainings import data_set, experiment, new_task
from vitcli.core.nn.patch_embed import patchify, unpatchify
from vitcli.core.objectives.mae.mae import BASELINES, baseline_errors, hide, reconstruct
from vitcli.core.objectives.mae.masking import split_patches, take
from vitcli.core.objectives.mae.model import MaskedModel

PREFIXES = [{}, {"pool": "mean"}, {"reg_tokens": 2, "pos_embed_prefix": True}]


def mae(model=None, **task) -> MaskedModel:
    """Return a float64 module for images of 16x16 with 4x4 patches of 4x4 pixels."""
    torch.manual_seed(0)
    changes = {"model": model or {}, "task": {"name": "mae", "decoder_dim": 8} | task}
    module = new_task(changes).module.double().eval()
    assert isinstance(module, MaskedModel)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def inputs(count: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 16, 16, dtype=torch.float64), torch.rand(count, 16)


def changed_patches(images: Tensor, index: Tensor) -> Tensor:
    """Return images with other pixels in the patches at ``index`` (B, n)."""
    patches = patchify(images, 4)
    index = index[..., None].expand(-1, -1, patches.shape[-1])
    return unpatchify(patches.scatter_add(1, index, torch.ones_like(patches)), 4, (4, 4))


@pytest.mark.parametrize("model", PREFIXES)
def test_masked_pixels_do_not_reach_the_encoder(model):
    module, (images, noise) = mae(model), inputs()
    visible, masked = module.split(noise)
    hidden, seen = changed_patches(images, masked), changed_patches(images, visible[:, :1])
    tokens = module.encoder.encode(images, visible)
    assert torch.equal(module.encoder.encode(hidden, visible), tokens)
    assert not torch.allclose(module.encoder.encode(seen, visible), tokens)
    predicted = module.predict(images, visible, masked)
    assert torch.equal(module.predict(hidden, visible, masked), predicted)
    assert not torch.allclose(module.predict(seen, visible, masked), predicted)


def hide_mask(masked: Tensor) -> Tensor:
    """Return 1 in masked and 0 in visible pixels, (B, 3, 16, 16)."""
    zeros = torch.zeros(len(masked), 16, 48, dtype=torch.float64)
    return unpatchify(zeros.scatter(1, masked[..., None].expand(-1, -1, 48), 1.0), 4, (4, 4))


@pytest.mark.parametrize("norm_pix", [False, True])
@pytest.mark.parametrize("model", PREFIXES)
def test_the_error_is_that_of_a_reference_with_loops(model, norm_pix):
    module, (images, noise) = mae(model, norm_pix=norm_pix), inputs()
    decoder, prefix, found = module.decoder, module.encoder.num_prefix_tokens, []
    for image, order in zip(images, noise.argsort(1), strict=True):
        tokens = decoder.embed(module.encoder.encode(image[None], order[None, :4]))[0]
        rows = [tokens[prefix + order.tolist().index(i)] if i in order[:4] else decoder.mask_token[0, 0] for i in range(16)]  # fmt: skip  # noqa: E501
        whole = torch.cat([tokens[:prefix], torch.stack(rows) + decoder.pos_embed[0]])[None]
        predicted = decoder.predict(decoder.norm(decoder.blocks(whole)))[0, prefix:]
        wanted = patchify(image[None], 4)[0]
        if norm_pix:
            wanted = (wanted - wanted.mean(1, True)) / (wanted.var(1, keepdim=True) + 1e-6).sqrt()
        found.append(sum(((predicted[i] - wanted[i]) ** 2).mean() for i in order[4:]) / 12)
    assert_close(module.errors(images, noise), torch.stack(found).float(), check_dtype=False)


def replace_seed(task):
    return type(task)(task.spec.replace(seed=1), task.module)


def test_the_masks_of_an_evaluation_do_not_depend_on_the_seed():
    task, images = new_task({"task": {"name": "mae"}}), data_set().test
    assert torch.equal(task.held_out_noise(images), replace_seed(task).held_out_noise(images))


def test_the_encoder_starts_from_the_weights_of_a_classifier():
    start, classifier = new_task({"task": {"name": "mae"}}).module, new_task({}).module
    for name, tensor in classifier.state_dict().items():
        assert torch.equal(start.state_dict()[f"encoder.{name}"], tensor)
    again = new_task({"task": {"name": "mae"}}).module.decoder
    assert torch.equal(again.mask_token, start.decoder.mask_token)
    assert start.decoder.mask_token.abs().sum() > 0


def test_baselines_are_those_of_a_reference_with_loops():
    module, (images, noise) = mae(), inputs()
    patches, (visible, masked) = patchify(images, 4), split_patches(noise, 12)
    wanted: dict[str, list[Tensor]] = {name: [] for name in BASELINES}
    for image, seen, unseen in zip(patches, visible.tolist(), masked.tolist(), strict=True):
        colours = image.view(16, 3, 16).mean(-1)
        guesses = dict.fromkeys(BASELINES, torch.zeros(3).double())
        guesses["visible_mse"] = colours[seen].mean(0)
        sums = dict.fromkeys(BASELINES, torch.tensor(0.0).double())
        for i in unseen:
            near = min(sorted(seen), key=lambda j: (i // 4 - j // 4) ** 2 + (i % 4 - j % 4) ** 2)
            guesses["nearest_mse"] = colours[near]
            for name, guess in guesses.items():
                sums[name] = sums[name] + (image[i] - guess.repeat_interleave(16)).square().mean()
        for name, total in sums.items():
            wanted[name].append(total / 12)
    found = baseline_errors(module, images, noise)
    assert list(found) == list(BASELINES)
    for name in BASELINES:
        assert_close(found[name], torch.stack(wanted[name]))


def test_an_evaluation_measures_the_error_and_its_ratio_to_the_best_baseline():
    task, data = new_task({"task": {"name": "mae"}}), data_set()
    outputs = task.outputs(task.module, data.test)
    measured = task.measure(outputs)
    best = min(measured[name] for name in BASELINES)
    assert measured["mse_ratio"] == pytest.approx(measured["masked_mse"] / best)
    assert measured["masked_mse"] == pytest.approx(outputs["masked_mse"].mean().item(), rel=1e-5)
    assert task.module.training
    with pytest.raises(ValueError, match="infinite or NaN"):
        task.measure(outputs | {"masked_mse": torch.full((64,), torch.nan)})


@pytest.mark.parametrize("norm_pix", [False, True])
def test_a_reconstruction_keeps_the_visible_patches(norm_pix):
    module, (images, noise) = mae(norm_pix=norm_pix), inputs()
    filled, is_masked = reconstruct(module, images, noise), hide_mask(module.split(noise)[1]) == 1
    assert torch.equal(filled[~is_masked], images[~is_masked])
    assert not torch.isclose(filled[is_masked], images[is_masked]).any()
    pixels = torch.full((2, 3, 16, 16), 200, dtype=torch.uint8)
    hidden = hide(module, pixels, noise)
    assert torch.equal(hidden == 127, is_masked)
    assert torch.equal(hidden == 200, ~is_masked)


@pytest.mark.parametrize("norm_pix", [False, True])
def test_a_perfect_prediction_reconstructs_the_image(norm_pix, monkeypatch):
    module, (images, noise) = mae(norm_pix=norm_pix), inputs()
    wanted = module.targets(take(module.patches(images), module.split(noise)[1]))
    monkeypatch.setattr(module, "predict", lambda *_: wanted)
    assert_close(reconstruct(module, images, noise), images, rtol=1e-3, atol=1e-3)


REFUSED = {
    "model: task 'mae' .* pos_embed 'rope2d'": {"pos_embed": "rope2d", "num_heads": 2},
    "model: task 'mae' .* pos_embed 'relative'": {"pos_embed": "relative"},
    "model: task 'mae' .* attention 'linformer'": {"attention": "linformer"},
    "model: task 'mae' .* attention 'strided'": {"attention": "strided"},
    "model: task 'mae' .* attention 'local'": {"attention": "local"},
    "model.patch_embed: 'conv_stem'": {"patch_embed": "conv_stem"},
    "model.patch_embed: 'conv_tokenizer'": {"patch_embed": "conv_tokenizer"},
    "model.patch_embed: 'shifted'": {"patch_embed": "shifted"},
    "model: task 'mae' .* ffn 'depthwise'": {"ffn": "depthwise"},
    **{
        f"model.family: .* family '{name}'": {"family": name, **fields}
        for name, fields in REQUIRED.items()
        if name not in ("vit", "resnet18")
    },
}


@pytest.mark.parametrize("name", ["mae", "ssat"])
@pytest.mark.parametrize("message", REFUSED)
def test_encoders_that_need_all_patches_are_refused(message, name):
    with pytest.raises(ValueError, match=message.replace("'mae'", f"'{name}'")):
        experiment({"model": REFUSED[message], "task": {"name": name}})


@pytest.mark.parametrize("ratio", [0.01, 0.99])
def test_a_ratio_that_masks_no_patch_or_every_patch_is_refused(ratio):
    with pytest.raises(ValueError, match=r"task.mask_ratio: .* of 16 patches"):
        experiment({"task": {"name": "mae", "mask_ratio": ratio}})
