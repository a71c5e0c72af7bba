"""Masked autoencoders, alone and beside a classification."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.core.specs import noisy
from tests.core.trainings import data_set, new_task
from vitcli.core.data.source import DataSet
from vitcli.core.nn.patch_embed import patchify, unpatchify
from vitcli.plugins.mae.mae import (
    BASELINES,
    MaskedModel,
    baseline_errors,
    hide,
    reconstruct,
    split_patches,
    take,
)
from vitcli.plugins.ssat.ssat import Ssat

PREFIXES = [{}, {"pool": "mean"}, {"reg_tokens": 2, "pos_embed_prefix": True}]


def mae(model=None, **task) -> MaskedModel:
    """Return a float64 module for images of 16x16 with 4x4 patches of 4x4 pixels."""
    torch.manual_seed(0)
    changes = {"model": model or {}, "task": {"name": "mae", "decoder_dim": 8} | task}
    return noisy(new_task(changes).module.double().eval())


def inputs(count: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 16, 16, dtype=torch.float64), torch.rand(count, 16)


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


def test_the_masks_of_an_evaluation_do_not_depend_on_the_seed():
    task, images = new_task({"task": {"name": "mae"}}), data_set().test
    other = type(task)(task.spec.replace(seed=1), task.module)
    assert torch.equal(task.held_out_noise(images), other.held_out_noise(images))


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


def test_a_reconstruction_keeps_the_visible_patches():
    module, (images, noise) = mae(), inputs()
    masked = module.split(noise)[1][..., None].expand(-1, -1, 48)
    is_masked = unpatchify(torch.zeros(2, 16, 48).scatter(1, masked, 1.0), 4, (4, 4)) == 1
    filled = reconstruct(module, images, noise)
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


SSAT = {"task": {"name": "ssat", "class_weight": 0.25}}


def with_labels(count: int = 24) -> DataSet:
    data = data_set()
    hidden = replace(data.train, labels=torch.full_like(data.train.labels, -1))
    return replace(data, train=data.train[:count], unlabelled=hidden)


def task(batch_size: int = 8, **augment) -> Ssat:
    found = new_task(SSAT | {"augment": augment, "train": {"batch_size": batch_size}})
    assert isinstance(found, Ssat)
    return found


@pytest.mark.parametrize("data", [data_set(), with_labels()], ids=["all labels", "few labels"])
def test_the_loss_is_the_weighted_sum_of_those_of_both_tasks(data):
    both = task()
    batch = next(both.batches(data, 0))
    found = both.losses(batch)
    classify, mae = new_task({}), new_task({"task": {"name": "mae"}})
    masked = {"images": batch["others"], "noise": batch["noise"]}
    alone = classify.losses(batch), mae.losses(masked)
    assert_close(found["loss"], 0.25 * alone[0]["loss"] + 0.75 * alone[1]["loss"])
    assert_close(found["masked_mse"], alone[1]["loss"].detach())
    assert torch.equal(found["accuracy"], alone[0]["accuracy"])


def test_the_reconstructed_images_are_flipped_but_not_cropped_erased_or_mixed():
    strong = {"crop_padding": 4, "erasing": 1.0, "mixup": 1.0, "cutmix": 1.0}
    data, batch = data_set(), next(task(flip="random", **strong).batches(data_set(), 0))
    flipped = next(task(flip="random").batches(data, 0))["images"]
    assert torch.equal(batch["others"], flipped)
    assert not torch.equal(flipped, next(task().batches(data, 0))["images"])
    assert not torch.isclose(batch["images"], flipped).flatten(1).all(1).any()


@pytest.mark.parametrize(("labels", "batch_size"), [(24, 8), (20, 8), (64, 16)])
def test_every_pass_contains_every_image_once(labels, batch_size):
    """Epochs of 24, 16 and 64 of 64 images: passes begin inside an epoch."""
    both, data = task(batch_size), with_labels(labels)
    used = labels // batch_size * batch_size
    index = torch.cat([both.rows(data, epoch)["others.index"][:used] for epoch in range(9)])
    passes = [part for part in index.split(64) if len(part) == 64]
    assert len(passes) >= 2
    assert all(torch.equal(part.sort().values, torch.arange(64)) for part in passes)
    assert not torch.equal(passes[0], passes[1])
    # Without augmentation, images are the normalised pixels of their rows of the whole set.
    others = next(both.batches(data, 1))["others"]
    rows = both.rows(data, 1)["others.index"][:batch_size]
    assert_close(others, data.normalize(data.all_train.pixels[rows]))
