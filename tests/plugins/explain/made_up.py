"""Subjects of untrained models, without a run folder."""

from functools import cache
from typing import Any

import torch

from vitcli.core.models.vit import build_vit
from vitcli.core.spec import DataSpec, ExperimentSpec, VitSpec
from vitcli.plugins.explain.lesson import Lesson, lesson_of
from vitcli.plugins.explain.subject import Subject, load_subject, run_on_picture
from vitcli.plugins.explain.topics import TOPICS
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.evaluate.weights import DEFAULT_MODEL
from vitcli.runner.run.folder import BUNDLED, RunDir

SIZES: dict[str, Any] = {"img_size": 16, "in_chans": 3, "num_classes": 3}
SMALL = SIZES | {"embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0, "patch_size": 4}


def make_subject(picture_name: str = "noise", **fields: Any) -> Subject:
    """Return an untrained model on 16x16 pictures of three classes, a grid of 4x4 patches."""
    model = build_vit(VitSpec(**(SMALL | {"pool": "mean"} | fields)), 0).eval()
    with torch.no_grad():  # biases, positions and the head start at zero
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.manual_seed(1)))
    pixels = torch.randint(0, 256, (3, 16, 16), generator=torch.manual_seed(2)).to(torch.uint8)
    data = DataSpec(mean=(0.5,) * 3, std=(0.25,) * 3, class_names=("a", "b", "c"))
    spec = ExperimentSpec(model=model.spec, data=data)
    predictor = Predictor(RunDir(BUNDLED / DEFAULT_MODEL), "cpu", (spec, model))
    return run_on_picture(predictor, pixels, picture_name)


@cache
def lessons() -> dict[str, Lesson]:
    return {name: lesson_of(name, bundled()) for name in TOPICS}


@cache
def bundled() -> Subject:
    return load_subject(RunDir(BUNDLED / DEFAULT_MODEL))
