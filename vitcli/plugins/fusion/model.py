"""Models that classify an image together with a spectrogram.

A batch of B pairs has three parts, in this order: sounds without images, pairs, and images without
sounds. ``alone`` holds the numbers of images and of sounds that are alone. With an image alone,
every model computes the function of its image encoder, so the encoder can be used by itself.

Axes: B batch, C channels, H W pixels, M mel bands, F frames, N tokens, D embed_dim, h num_heads,
K classes.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.models.layers import build_patch_embed, build_table
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.init import STD, init_parts
from vitcli.core.ops.backend import Linear, attention, merge_heads
from vitcli.core.randomness import Draws, keyed_generator, seed_of
from vitcli.core.spec import ExperimentSpec, VitSpec
from vitcli.core.spec.rows import make
from vitcli.core.spec.slots import INITS
from vitcli.core.torch_use import without_autocast
from vitcli.plugins.fusion.spec import FUSIONS, FusionSpec
from vitcli.plugins.fusion.synthetic import SHAPE

Alone = tuple[int, int]
"""Number of images and number of sounds that are alone."""
JOINT_DIM = 64
"""Width of the space in which images and sounds are compared."""


def sound_model_spec(spec: ExperimentSpec) -> VitSpec:
    """Return the spec of a model like ``spec.model`` for spectrograms."""
    assert isinstance(spec.model, VitSpec)
    assert isinstance(spec.task, FusionSpec)
    patch_size = spec.task.sound_patch_size
    return spec.model.replace(img_size=SHAPE, in_chans=1, patch_size=patch_size)


def build_fusion(spec: ExperimentSpec) -> "FusionModel":
    """Return the model of the task's row of ``FUSIONS``, with the seed's initial weights."""
    assert isinstance(spec.task, FusionSpec)
    model: FusionModel = make(FUSIONS[spec.task.fusion], spec)
    return model


class FusionModel(nn.Module):
    """Base class: images (B, C, H, W) and spectrograms (B, 1, M, F) -> logits (B, K)."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        assert isinstance(spec.model, VitSpec)
        self.image = VisionTransformer(spec.model).initialise(spec.seed)
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
        pair = {
            name: CrossAttention(model.embed_dim, model.num_heads) for name in ("image", "sound")
        }
        self.cross = nn.ModuleDict(pair)
        self.initialise_part(self.cross, "cross")

    def forward(self, images: Tensor, sounds: Tensor, alone: Alone = (0, 0)) -> dict[str, Tensor]:
        num_images, num_sounds = alone
        images, sounds = images[num_sounds:], sounds[: len(sounds) - num_images]
        count = len(images) - num_images  # pairs
        if count <= 0:
            image = self.image(images) if len(images) else None
            sound = self.sound(sounds) if len(sounds) else None
            return {"logits": _sum_logits(image, sound, alone)} | self._single(image, sound)
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
        image, sound = (
            F.normalize(x.float(), dim=-1) for x in (self.image(seen), self.sound(heard))
        )
        return {"image": image, "sound": sound}

    def loss(self, image: Tensor, sound: Tensor) -> Tensor:
        """Return the mean of the cross-entropies of image -> sound and sound -> image."""
        with without_autocast(image.device):
            scores = image @ sound.mT / self.log_temperature.exp().clamp(min=0.01)
        own = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.mT, own)) / 2
