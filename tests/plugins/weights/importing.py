"""Weights of timm's models, for the tests of `vitcli import`."""

from pathlib import Path

import safetensors.torch
import timm
import torch

from tests.plugins.weights.test_parity import scramble
from vitcli.runner.evaluate.weights import load_model

FIELDS = ("-s", "model.pos_embed_prefix=true", "-s", "model.pool=cls")
State = dict[str, torch.Tensor]


def theirs(kind=timm.models.VisionTransformer, **fields) -> torch.nn.Module:
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = kind(**(sizes | {"mlp_ratio": 2.0, "num_classes": 2} | fields))
    scramble(model)
    return model.eval()


def save(model: torch.nn.Module, file: str = "vit.safetensors") -> str:
    safetensors.torch.save_file(model.state_dict(), file)
    return file


def publish(model: torch.nn.Module, hub: Path) -> None:
    """Put weights of timm's test_vit where the cache of the Hub has them."""
    place = hub / "models--timm--test_vit.r160_in1k"
    for folder in ("refs", "snapshots/abc"):
        (place / folder).mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    save(model, str(place / "snapshots" / "abc" / "model.safetensors"))


def same_logits(run: str, model: torch.nn.Module) -> None:
    images = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(load_model(run)(images), model(images), atol=1e-5, rtol=1e-5)
