"""Masked autoencoders: what the encoder sees, what the loss counts, and who may be an encoder."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.core.specs import REQUIRED
from tests.core.trainings import data_set, experiment, new_task, training_on
from vitcli.core.nn.patch_embed import patchify, unpatchify
from vitcli.core.objectives.mae.mae import BASELINES, baseline_errors, draw_noise, hide, reconstruct
from vitcli.core.objectives.mae.masking import split_patches, take
from vitcli.core.objectives.mae.model import MaskedModel
from vitcli.core.objectives.mae.spec import MaeSpec
from vitcli.core.spec import ExperimentSpec, ResNet18Spec

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


def test_12_of_16_patches_are_masked():
    visible, masked = mae().split(torch.rand(5, 16))
    assert (visible.shape, masked.shape) == ((5, 4), (5, 12))


@pytest.mark.parametrize("norm_pix", [False, True])
def test_the_error_ignores_visible_patches(norm_pix):
    """The decoder predicts its bias whatever it is given, so only the targets matter."""
    module, (images, noise) = mae(norm_pix=norm_pix), inputs()
    torch.nn.init.zeros_(module.decoder.predict.weight)
    visible, _ = module.split(noise)
    errors = module.errors(images, noise)
    assert torch.equal(module.errors(changed_patches(images, visible), noise), errors)
    stretched = images.square()
    assert not torch.isclose(module.errors(stretched, noise), errors).any()


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


def test_positions_are_those_of_the_patches_and_not_of_the_selection():
    module, (images, _) = mae({"pos_embed": "learned"}), inputs()
    order = torch.stack([torch.randperm(16), torch.randperm(16)])
    shuffled, whole = (module.encoder.encode(images, keep) for keep in (order, None))
    assert_close(shuffled[:, 1:], whole[:, 1:].gather(1, order[..., None].expand(-1, -1, 24)))


def test_masked_patches_differ_by_their_positions():
    """Without the decoder's positions, all masked patches of an image would be predicted alike."""
    module, (images, noise) = mae(), inputs()
    predicted = module.predict(images, *module.split(noise))
    assert not torch.allclose(predicted[:, 0], predicted[:, 1])
    module.decoder.pos_embed.zero_()
    alike = module.predict(images, *module.split(noise))
    assert_close(alike[:, 0], alike[:, 1])


def test_a_mask_is_a_function_of_seed_epoch_and_image():
    task, again = new_task({"task": {"name": "mae"}}), new_task({"task": {"name": "mae"}})
    fewer = new_task({"task": {"name": "mae"}, "train": {"batch_size": 8}})
    data = data_set()
    noise = torch.cat([batch["noise"] for batch in task.batches(data, 1)])
    list(again.batches(data, 0))
    assert torch.equal(torch.cat([batch["noise"] for batch in again.batches(data, 1)]), noise)
    assert torch.equal(torch.cat([batch["noise"] for batch in fewer.batches(data, 1)]), noise)
    rest = [batch["noise"] for batch in task.batches(data, 1, first_batch=2)]
    assert torch.equal(torch.cat(rest), noise[32:])
    other = torch.cat([batch["noise"] for batch in task.batches(data, 2)])
    assert other.shape == noise.shape
    assert not (other[:, :, None] == noise[0]).any()
    seeds = replace_seed(task)
    assert not torch.equal(torch.cat([batch["noise"] for batch in seeds.batches(data, 1)]), noise)


def replace_seed(task):
    return type(task)(task.spec.replace(seed=1), task.module)


def test_the_noise_of_an_image_does_not_depend_on_its_place_in_the_epoch():
    task = new_task({"task": {"name": "mae"}})
    rows = task.rows(data_set(), 2)
    assert torch.equal(rows["noise"], draw_noise(64, 16, 0, 2)[rows["index"]])


def test_the_masks_of_an_evaluation_do_not_depend_on_the_seed():
    task, images = new_task({"task": {"name": "mae"}}), data_set().test
    assert torch.equal(task.held_out_noise(images), replace_seed(task).held_out_noise(images))


def test_the_parts_of_a_batch_have_the_same_gradients():
    whole, parts = new_task({"task": {"name": "mae"}}), new_task({"task": {"name": "mae"}})
    batch = next(whole.batches(data_set(), 0))
    losses = []
    for task, count in ((whole, 1), (parts, 4)):
        fields = {"train.accumulate": count, "train.batch_size": count, "optim.max_grad_norm": None}
        losses.append(next(training_on(task, [batch], fields).run_epoch(0)).scalars)
    assert_close(losses[0]["loss"], losses[1]["loss"])
    for left, right in zip(whole.module.parameters(), parts.module.parameters(), strict=True):
        assert (left.grad is None) == (right.grad is None)
        if left.grad is not None:
            assert_close(left.grad, right.grad, rtol=1e-3, atol=1e-6)


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


def test_pictures_show_original_input_and_reconstruction():
    task, data = new_task({"task": {"name": "mae"}}), data_set()
    (grid,) = task.pictures(task.module, data, torch.tensor([5, 0, 7])).values()
    assert grid.cells.shape == (3, len(grid.columns), 3, 16, 16)
    assert torch.equal(grid.cells[:, 0], data.test.pixels[[5, 0, 7]])
    assert "12 of 16 patches" in grid.caption
    (again,) = task.pictures(task.module, data, torch.tensor([7])).values()
    assert torch.equal(again.cells[0], grid.cells[2]), "the mask belongs to the image"


def test_pictures_of_grey_images_have_three_channels():
    task, data = new_task({"task": {"name": "mae"}, "model": {"in_chans": 1}}), data_set()
    grey = replace(data.test, pixels=data.test.pixels[:, :1])
    task.spec = task.spec.replace(data=task.spec.data.replace(mean=(0.5,), std=(0.5,)))
    (grid,) = task.pictures(task.module, replace(data, test=grey), torch.tensor([1])).values()
    assert grid.cells.shape == (1, 3, 3, 16, 16)


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


def test_models_without_tokens_are_refused():
    with pytest.raises(ValueError, match=r"model.family: .* family 'resnet18' cannot do; take vit"):
        ExperimentSpec(model=ResNet18Spec(), task=MaeSpec())


ALLOWED = [
    {"pos_embed": "learned"},
    {"pos_embed": "sincos1d"},
    {"pos_embed": "none"},
    {"attention": "performer"},
    {"attention": "linear"},
    {"patch_embed": "conv", "patch_post_norm": True},
    {"pool": "seq"},
    {"norm_position": "post"},
    {"attn_scale": "learned"},
]


@pytest.mark.parametrize("model", ALLOWED)
def test_all_other_encoders_learn(model):
    task = new_task({"model": model, "task": {"name": "mae"}})
    loss = task.losses(next(task.batches(data_set(), 0)))["loss"]
    loss.backward()
    assert loss.isfinite()
    blocks = [p for name, p in task.encoder(task.module).named_parameters() if "blocks" in name]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in blocks)


@pytest.mark.parametrize("ratio", [0.01, 0.99])
def test_a_ratio_that_masks_no_patch_or_every_patch_is_refused(ratio):
    with pytest.raises(ValueError, match=r"task.mask_ratio: .* of 16 patches"):
        experiment({"task": {"name": "mae", "mask_ratio": ratio}})


def test_decoder_heads_that_do_not_divide_its_width_are_refused():
    with pytest.raises(ValueError, match="decoder_num_heads 3 does not divide decoder_dim 64"):
        experiment({"task": {"name": "mae", "decoder_num_heads": 3}})
