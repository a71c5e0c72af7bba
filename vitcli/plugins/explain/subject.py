"""The model and the picture that the topics are shown on, with all that its layers compute.

Axes: B batch (1), C channels, H W pixels, N tokens (prefix first), D = h d embed_dim, h heads.
"""

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitcli.core.data.augment import normalize
from vitcli.core.generated.data_sets import generated_set
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import SelfAttention, Softmax
from vitcli.core.nn.block import Branch
from vitcli.core.spec import GENERATED, DataSpec
from vitcli.runner.data.pictures import decode, picture_bytes, quiet_pillow
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.predict import Predictor, describe_model
from vitcli.runner.run.folder import RunDir


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The attention of one block on the picture."""

    attention: SelfAttention
    tokens: Tensor
    """(1, N, D), the input of attention."""
    query: Tensor
    """(1, h, N, d), and so are key and value."""
    key: Tensor
    value: Tensor
    weights: Tensor
    """(1, h, N, N), rows sum to 1."""
    output: Tensor
    """(1, N, D)"""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A Vision Transformer with softmax attention, and one picture."""

    predictor: Predictor
    model: VisionTransformer
    picture_name: str
    pixels: Tensor
    """(3, H, W) uint8, at the input size of the model."""
    batch: Tensor
    """(1, C, H, W), normalised."""
    layers: tuple[Layer, ...]
    last_tokens: Tensor
    """(1, N, D), the output of the last block, before the last norm."""

    def sizes(self) -> dict[str, int]:
        _, heads, tokens, head_width = self.layers[0].query.shape
        return {
            "tokens": tokens,
            "patches": self.model.num_patches,
            "width": self.layers[0].tokens.shape[-1],
            "heads": heads,
            "head_width": head_width,
            "depth": len(self.layers),
        }

    @property
    def query(self) -> int:
        """The token whose attention is shown: CLS, or the patch in the middle of the picture."""
        if self.model.cls_token is not None:
            return 0
        height, width = self.model.grid_size
        return self.model.num_prefix_tokens + height // 2 * width + width // 2

    def place(self, token: int) -> tuple[int, int] | None:
        """Return row and column of a patch, from 0; None for CLS and registers."""
        patch = token - self.model.num_prefix_tokens
        return divmod(patch, self.model.grid_size[1]) if patch >= 0 else None

    def token_name(self, token: int) -> str:
        """Return ``CLS``, ``register 1`` or ``row 3, column 5`` (from 1)."""
        if place := self.place(token):
            return f"row {place[0] + 1}, column {place[1] + 1}"
        if token == 0 and self.model.cls_token is not None:
            return "CLS"
        return f"register {token + (self.model.cls_token is None)}"

    def facts(self) -> dict[str, str]:
        rows, columns = self.model.grid_size
        prefix = self.model.num_prefix_tokens
        extra = f" + {prefix} without a place (CLS, registers)" if prefix else ""
        sizes = self.sizes()
        per_head = f"{sizes['heads']} heads of width d = {sizes['head_width']}"
        return {
            "model": describe_model(self.predictor.run, self.predictor.spec),
            "picture": self.picture_name,
            "tokens N": f"{sizes['tokens']} = {rows} x {columns} patches{extra}",
            "layers": str(sizes["depth"]),
            "heads": f"{sizes['heads']} in each layer",
            "width D": f"{sizes['width']} = {per_head}",
        }


def load_subject(
    run: RunDir, image: Path | str | None = None, on_message: Callable[[str], None] = warnings.warn
) -> Subject:
    """Return the model of a run, and what its layers compute on a picture.

    By default, this is the first test picture of the run's generated data set, or of ``scenes``.
    """
    predictor = Predictor(run, "cpu", on_message=on_message)
    check_model(predictor.model, run.name)
    data = predictor.spec.data
    if image is not None:
        content, name = picture_bytes(image), str(image)
    else:
        drawn = data.name if data.name in GENERATED else "scenes"
        row = generated_set(drawn)
        test = row.draw(10, 10)[1]
        label = row.class_names[int(test.labels[0])]
        name = f"a drawn {label} of the data set {drawn} (another: type a picture file)"
        content = png(test.pixels[0].permute(1, 2, 0))
    with quiet_pillow():
        how = data if image is not None else DataSpec()
        seen = decode(content, name, predictor.size, predictor.in_chans, how)
    return run_on_picture(predictor, seen, name)


def png(pixels: Tensor) -> bytes:
    with io.BytesIO() as file:
        Image.fromarray(pixels.numpy()).save(file, "PNG")
        return file.getvalue()


@torch.no_grad()
def run_on_picture(predictor: Predictor, seen: Tensor, picture_name: str) -> Subject:
    model, data = predictor.model, predictor.spec.data
    assert isinstance(model, VisionTransformer)
    batch = normalize(seen[None], torch.tensor(data.mean), torch.tensor(data.std))
    layers, stream = [], model.embed(batch)
    for block in model.blocks:
        branch, attention = attention_branch(block)
        tokens = branch.inner_input(stream)
        query, key, value = attention.heads(tokens)
        output, weights = attention.forward_with_weights(tokens)
        parts = {"query": query, "key": key, "value": value, "weights": weights}
        layers.append(Layer(attention=attention, tokens=tokens, output=output, **parts))
        stream = block(stream)
    if not stream.isfinite().all():
        raise InputError(f"{predictor.run.path}: a feature of the model is infinite or NaN")
    return Subject(
        predictor=predictor,
        model=model,
        picture_name=picture_name,
        pixels=seen.expand(3, -1, -1) if len(seen) == 1 else seen,
        batch=batch,
        layers=tuple(layers),
        last_tokens=stream,
    )


def check_model(model: Any, name: str) -> None:
    is_explained = (
        isinstance(model, VisionTransformer)
        and len(model.blocks)
        and model.token_shape.num_tokens > 1
        and not model.spec.attn_mask_diagonal
        and type(attention_branch(model.blocks[0])[1].attend) is Softmax
    )
    if not is_explained:
        raise ConfigError(
            f"{name}: only softmax attention of each token to all tokens, in a Vision Transformer,"
            " is explained; name another run, or cifar10-pocket"
        )


def attention_branch(block: Any) -> tuple[Branch, SelfAttention]:
    branch = next(iter(block.children()))
    assert isinstance(branch, Branch)
    assert isinstance(branch.inner, SelfAttention)
    return branch, branch.inner
