"""Classification of an image together with a sound.

Each image has a sound of its class, generated or read from a file. Sounds and noise are functions
of the image's content, its class and, in training, seed and epoch.

A batch of B pairs has three parts, in this order: sounds without images, pairs, and images without
sounds. ``alone`` holds the numbers of images and of sounds that are alone. With an image alone,
every model computes the function of its image encoder, so the encoder can be used by itself.

Axes: B batch, N images, C channels, H W pixels, T samples, M mel bands, F frames, K classes,
E width of the joint space. In models: N tokens, D embed_dim, h num_heads.
"""

from collections.abc import Iterator
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, EpochPlan, limit_images
from vitcli.core.data.source import DataSet, Images
from vitcli.core.metrics.classification import accuracy, measure_logits
from vitcli.core.models.layers import build_patch_embed, build_table
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.init import STD, init_parts
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.ops.backend import Linear, attention, merge_heads
from vitcli.core.randomness import Draws, keyed_generator, seed_of
from vitcli.core.ranks import gather
from vitcli.core.spec import ExperimentSpec, VitSpec
from vitcli.core.spec.rows import make
from vitcli.core.spec.slots import INITS
from vitcli.core.torch_use import evaluating, without_autocast
from vitcli.plugins.fusion.sounds import (
    SHAPE,
    content_keys,
    keys_for,
    noise,
    scramble,
    spectrograms,
    synthesize,
    unit_rms,
)
from vitcli.plugins.fusion.spec import FUSIONS, FusionSpec

Alone = tuple[int, int]
"""Number of images and number of sounds that are alone."""
JOINT_DIM = 64
"""Width of the space in which images and sounds are compared."""


def sound_model_spec(spec: ExperimentSpec) -> VitSpec:
    patch_size = cast(FusionSpec, spec.task).sound_patch_size
    return cast(VitSpec, spec.model).replace(img_size=SHAPE, in_chans=1, patch_size=patch_size)


class FusionModel(nn.Module):
    """Base class: images (B, C, H, W) and spectrograms (B, 1, M, F) -> logits (B, K)."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        self.image = build_vit(spec.model, spec.seed)
        self.draws: Draws = partial(keyed_generator, "init", spec.seed)

    def forward(self, images: Tensor, sounds: Tensor, alone: Alone = (0, 0)) -> dict[str, Tensor]:
        """Return ``logits`` and what the losses need.

        With losses of one modality there are ``image_logits`` and ``sound_logits`` of all images
        and of all sounds. With a contrastive loss there are ``image`` and ``sound`` (pairs, 64).
        """
        raise NotImplementedError

    def initialise_part(self, part: nn.Module, name: str) -> None:
        """Fill a part of the model with the scheme of the spec; on the device meta, do nothing."""
        if next(part.parameters()).is_meta:
            return

        def draws(each: str) -> torch.Generator:
            return self.draws(f"{name}.{each}")

        init_parts(part, draws)
        make(INITS[self.image.spec.init], part, draws)


class SoundTokens(nn.Module):
    """Embedded patches of spectrograms: (B, 1, M, F) -> (B, N, D), with positions and modality.

    The learned vector ``modality`` marks the tokens of sounds. Tokens of images have the vector 0,
    because the bias of a patch embedding absorbs what both vectors have in common.
    """

    def __init__(self, spec: VitSpec) -> None:
        super().__init__()
        self.grid_size = SHAPE[0] // spec.patch_size, SHAPE[1] // spec.patch_size
        shape = TokenShape(embed_dim=spec.embed_dim, grid_size=self.grid_size, num_prefix_tokens=0)
        self.patch_embed = build_patch_embed(spec)
        self.pos_embed = build_table(spec, shape)
        self.modality = nn.Parameter(torch.zeros(spec.embed_dim))
        self.pos_drop = nn.Dropout(spec.pos_drop)

    def forward(self, sounds: Tensor) -> Tensor:
        tokens = self.patch_embed(sounds) + self.modality
        if self.pos_embed is not None:
            tokens = tokens + self.pos_embed()
        return self.pos_drop(tokens)


class EarlyFusion(FusionModel):
    """One encoder for the patches of image and sound together."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__(spec)
        self.sound = SoundTokens(sound_model_spec(spec))
        self.initialise_part(self.sound, "sound")
        if not self.sound.modality.is_meta:
            nn.init.normal_(self.sound.modality, std=STD, generator=self.draws("modality"))

    def forward(self, images: Tensor, sounds: Tensor, alone: Alone = (0, 0)) -> dict[str, Tensor]:
        num_images, num_sounds = alone
        end, prefix, parts = len(images) - num_images, self.image.num_prefix_tokens, []
        if end > 0:
            seen, heard = self.image.embed(images[:end]), self.sound(sounds[:end])
            if self.image.norm_pre is not None:
                heard = self.image.norm_pre(heard)
        if num_sounds:  # CLS and registers do not depend on the image
            parts.append(self._classify(seen[:num_sounds, :prefix], heard[:num_sounds]))
        if end > num_sounds:
            parts.append(self._classify(seen[num_sounds:], heard[num_sounds:]))
        if num_images:
            parts.append(self.image(images[end:]))
        return {"logits": torch.cat(parts)}

    def _classify(self, *tokens: Tensor) -> Tensor:
        model = self.image
        joint = model.run_blocks(model.blocks, torch.cat(tokens, dim=1))
        return model.forward_head(model.last_norm(joint))


class LateFusion(FusionModel):
    """An encoder for images and one for sounds; the logits are the sum of theirs.

    The sum of two linear heads is one linear head on the concatenated features. Both encoders have
    the same blocks and different initial weights.
    """

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.task, FusionSpec)
        seed = seed_of("sound", spec.seed)
        self.sound = VisionTransformer(sound_model_spec(spec)).initialise(seed)
        self.has_unimodal = spec.task.unimodal > 0
        self.joint = JointSpace(self.image.num_features) if spec.task.contrast else None
        if self.joint:
            self.initialise_part(self.joint, "joint")

    def forward(self, images: Tensor, sounds: Tensor, alone: Alone = (0, 0)) -> dict[str, Tensor]:
        num_images, num_sounds = alone
        images, sounds = images[num_sounds:], sounds[: len(sounds) - num_images]
        seen = self.image.features(images) if len(images) else None
        heard = self.sound.features(sounds) if len(sounds) else None
        image = None if seen is None else self.image.head(seen)
        sound = None if heard is None else self.sound.head(heard)
        return {
            "logits": _sum_logits(image, sound, alone),
            **self._single(image, sound),
            **self._compare(seen, heard, alone),
        }

    def _single(self, image: Tensor | None, sound: Tensor | None) -> dict[str, Tensor]:
        if not self.has_unimodal or image is None or sound is None:
            return {}
        return {"image_logits": image, "sound_logits": sound}

    def _compare(
        self, seen: Tensor | None, heard: Tensor | None, alone: Alone
    ) -> dict[str, Tensor]:
        if self.joint is None or seen is None or heard is None:
            return {}
        num_images, num_sounds = alone
        return self.joint(seen[: len(seen) - num_images], heard[num_sounds:])


def _sum_logits(seen: Tensor | None, heard: Tensor | None, alone: Alone) -> Tensor:
    """Return the sum of the logits, (B, K), where a modality that is missing adds 0."""
    num_images, num_sounds = alone
    if seen is None or heard is None:
        found = heard if seen is None else seen
        assert found is not None
        return found
    return F.pad(seen, (0, 0, num_sounds, 0)) + F.pad(heard, (0, 0, 0, num_images))


class CrossAttention(nn.Module):
    """Multi-head attention from tokens (B, N, D) to other tokens (B, M, D) -> (B, N, D).

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.3
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = Linear(dim, dim)
        self.key, self.value = Linear(dim, dim), Linear(dim, dim)
        self.proj = Linear(dim, dim)

    def forward(self, tokens: Tensor, others: Tensor) -> Tensor:
        query, key = self._heads(self.query(tokens)), self._heads(self.key(others))
        return self.proj(merge_heads(attention(query, key, self._heads(self.value(others)))))

    def _heads(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class CrossFusion(LateFusion):
    """Late fusion, before whose heads the tokens of each modality attend to those of the other.

    x_image + attention(x_image, x_sound) and the same for the sound, after the last norm of both
    encoders. The branch of a modality that is missing is 0. Similar to the co-attention of Lu et
    al. 2019, https://arxiv.org/abs/1908.02265. Deviation: one layer without FFN, at the end.
    """

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__(spec)
        model = self.image.spec
        self.cross = nn.ModuleDict()
        for name in ("image", "sound"):
            self.cross[name] = CrossAttention(model.embed_dim, model.num_heads)
        self.initialise_part(self.cross, "cross")

    def forward(self, images: Tensor, sounds: Tensor, alone: Alone = (0, 0)) -> dict[str, Tensor]:
        num_images, num_sounds = alone
        count = len(images) - num_images - num_sounds  # pairs
        if count <= 0:
            return super().forward(images, sounds, alone)
        images, sounds = images[num_sounds:], sounds[: len(sounds) - num_images]
        sight, hearing = self.image.forward_features(images), self.sound.forward_features(sounds)
        seen, heard = self.image.pool(sight), self.sound.pool(hearing)
        both, paired = sight[:count], hearing[num_sounds:]
        looked = both + self.cross["image"](both, paired)
        listened = paired + self.cross["sound"](paired, both)
        logits = _sum_logits(
            self.image.forward_head(torch.cat([looked, sight[count:]])),
            self.sound.forward_head(torch.cat([hearing[:num_sounds], listened])),
            alone,
        )
        single = self._single(self.image.head(seen), self.sound.head(heard))
        return {"logits": logits, **single, **self._compare(seen, heard, alone)}


class JointSpace(nn.Module):
    """Unit vectors of images and sounds in one space: (B, D), (B, D) -> two (B, 64).

    Radford et al. 2021, https://arxiv.org/abs/2103.00020. The temperature starts at 0.07.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.image, self.sound = Linear(dim, JOINT_DIM), Linear(dim, JOINT_DIM)
        self.log_temperature = nn.Parameter(torch.tensor(0.07).log())

    def forward(self, seen: Tensor, heard: Tensor) -> dict[str, Tensor]:
        image = F.normalize(self.image(seen).float(), dim=-1)
        sound = F.normalize(self.sound(heard).float(), dim=-1)
        return {"image": image, "sound": sound}

    def loss(self, image: Tensor, sound: Tensor) -> Tensor:
        """Return the mean of the cross-entropies of image -> sound and sound -> image."""
        with without_autocast(image.device):
            scores = image @ sound.mT / self.log_temperature.exp().clamp(min=0.01)
        own = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.mT, own)) / 2


RETRIEVED = 1000
"""Number of pairs, evenly spaced over a split, among which sounds are retrieved."""


class Fusion(Task):
    """Cross-entropy of pairs, with modality dropout and optional further losses.

    Modality dropout: Neverova et al. 2015, https://arxiv.org/abs/1501.00102. Deviation: the first
    rows of a batch lose the image and the last rows lose the sound, in fixed numbers. The order of
    an epoch is random, so the choice is random too, and each part of a batch has a fixed shape.

    Losses of single modalities: Wang et al. 2020, https://arxiv.org/abs/1905.12681. Deviation: the
    paper estimates their weights, here both have the weight ``unimodal``.
    """

    encoder_name = "image"
    module: FusionModel

    def __init__(self, spec: ExperimentSpec, module: nn.Module) -> None:
        super().__init__(spec, module)
        self.options = cast(FusionSpec, spec.task)

    @classmethod
    def make_module(cls, spec: ExperimentSpec) -> nn.Module:
        return make(FUSIONS[cast(FusionSpec, spec.task).fusion], spec)

    def rows(self, data: DataSet, epoch: int) -> EpochPlan:
        rows = super().rows(data, epoch)
        key = seed_of("noise", self.spec.seed, epoch)
        return rows | {"noise": torch.full_like(rows["index"], key)}

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        """Return ``images``, ``sounds`` (B, 1, M, F) and ``targets``.

        MixUp and CutMix mix sounds by the share of the image's label, before the noise is added.
        """
        index = rows["index"]
        keys = content_keys(data.train.pixels[index])
        waves = self._waves(data.train, index, keys, held_out=False)
        if "own" in rows:
            waves = waves.roll(1, 0).lerp(waves, rows["own"][:, None].expand_as(waves))
        batch = super().make_batch(data, {k: v for k, v in rows.items() if k != "noise"})
        return self._add_noise(batch, waves, scramble(keys ^ rows["noise"]))

    def eval_batches(self, images: Images) -> Iterator[Batch]:
        """Yield the pairs of a split in order. Its speakers are not those of the training."""
        part, start = limit_images(images, self.spec), 0
        for batch in super().eval_batches(images):
            end = start + len(batch["images"])
            index = torch.arange(start, end, device=part.pixels.device)
            keys = content_keys(part.pixels[start:end])
            waves = self._waves(part, index, keys, held_out=True)
            yield self._add_noise(batch, waves, keys_for(keys, "noise", "evaluation"))
            start = end

    def _waves(self, images: Images, index: Tensor, keys: Tensor, *, held_out: bool) -> Tensor:
        """Return the sounds (B, T) of the images at ``index``, without noise."""
        if self.options.shuffle_sounds:
            index = keys_for(keys, "shuffled").remainder(len(images))
        if self.options.sound == "folder":
            return unit_rms(images.extra["sound"][index].float())
        num_classes = self.spec.model.num_classes or 1
        keys = keys_for(keys, "sound")
        return synthesize(keys, images.labels[index], num_classes, held_out=held_out)

    def _add_noise(self, batch: Batch, waves: Tensor, keys: Tensor) -> Batch:
        images = batch["images"]
        if level := self.options.image_noise:
            drawn = noise(keys_for(keys, "image"), images[0].numel())
            images = images + level * drawn.view_as(images)
        if level := self.options.sound_noise:
            waves = waves + level * noise(keys_for(keys, "sound"), waves.shape[1])
        return batch | {"images": images, "sounds": spectrograms(waves)}

    def check_data(self, data: DataSet) -> None:
        if self.options.sound == "folder" and "sound" not in data.train.extra:
            raise ValueError(
                f"task.sound: {data.name} has no sounds; add NAME.wav beside each NAME.png, or take"
                " task.sound=synthetic"
            )

    def alone(self, count: int) -> Alone:
        """Return how many images and sounds of a training batch are alone."""
        if self.options.modalities == "both":
            return (self.options.num_alone(count),) * 2
        return (count, 0) if self.options.modalities == "image" else (0, count)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        targets = batch["targets"]
        num_images, num_sounds = self.alone(len(targets))
        found = self.network(batch["images"], batch["sounds"], (num_images, num_sounds))
        logits = found["logits"].float()
        loss = self._cross_entropy(logits, targets)
        if self.options.unimodal:
            image = self._cross_entropy(found["image_logits"], targets[num_sounds:])
            end = len(targets) - num_images
            sound = self._cross_entropy(found["sound_logits"], targets[:end])
            loss = loss + self.options.unimodal * (image + sound)
        if self.options.contrast:
            joint = self.module.get_submodule("joint")
            assert isinstance(joint, JointSpace)
            contrast = joint.loss(gather(found["image"]), gather(found["sound"]))
            loss = loss + self.options.contrast * contrast
        labels = targets.argmax(-1) if targets.ndim == 2 else targets
        accuracy = (logits.detach().argmax(-1) == labels).float().mean()
        return {"loss": loss, "accuracy": accuracy}

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.spec.train.label_smoothing
        return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)

    @torch.inference_mode()
    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        """Return ``logits``, ``image_logits`` and ``sound_logits`` (N, K), and ``labels`` (N,).

        ``image_logits`` and ``sound_logits`` are those without the other modality. With a
        contrastive loss there are ``image`` and ``sound`` (N, 64), the places in the joint space.
        """
        found: dict[str, list[Tensor]] = {"labels": []}
        size = 0
        with evaluating(module):
            for batch in self.eval_batches(images):
                size = max(size, len(batch["images"]))
                for name, values in self._evaluate(module, batch, size).items():
                    found.setdefault(name, []).append(values)
                found["labels"].append(batch["targets"])
        return {name: torch.cat(parts) for name, parts in found.items()}

    def _evaluate(self, module: nn.Module, batch: Batch, size: int) -> Outputs:
        images, sounds, count = batch["images"], batch["sounds"], len(batch["images"])
        if images.is_cuda:  # a compiled model sees one shape
            missing = (0, 0, 0, 0, 0, 0, 0, size - count)
            images, sounds = F.pad(images, missing), F.pad(sounds, missing)
        whole = {"both": (0, 0), "image": (len(images), 0), "sound": (0, len(images))}
        kinds = {
            "logits": whole[self.options.modalities],
            "image_logits": whole["image"],
            "sound_logits": whole["sound"],
        }
        found: Outputs = {}
        for name, alone in kinds.items():
            outputs = module(images, sounds, alone)
            found[name] = outputs.pop("logits").float()[:count]
            found |= {k: v[:count] for k, v in outputs.items() if not k.endswith("logits")}
        return found

    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return the numbers of a classification, each modality's accuracy, and ``retrieval``."""
        labels = outputs["labels"]
        measured = measure_logits(outputs["logits"], labels)
        for name in ("image", "sound"):
            measured[f"{name}_accuracy"] = accuracy(outputs[f"{name}_logits"], labels)
        if "image" in outputs:
            measured["retrieval"] = retrieval(outputs["image"], outputs["sound"], labels)
        return measured


def retrieval(images: Tensor, sounds: Tensor, labels: Tensor) -> float:
    """Return the share of images whose most similar sound has their class: (N, E), (N, E), (N,).

    The sounds are those of at most ``RETRIEVED`` pairs, evenly spaced. Chance is the share of a
    class.
    """
    count = min(RETRIEVED, len(labels))
    chosen = torch.arange(count, device=labels.device) * len(labels) // count
    images, sounds, labels = images[chosen], sounds[chosen], labels[chosen]
    nearest = (images.float() @ sounds.float().mT).argmax(1)
    return (labels[nearest] == labels).double().mean().item()
