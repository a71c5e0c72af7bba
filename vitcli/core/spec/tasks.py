"""The table of training objectives. The fields of a task are in its spec class."""

from typing import Literal

from vitcli.core.spec.captions import ClipSpec
from vitcli.core.spec.masking import MASKED_MSE, MaeSpec, SsatSpec
from vitcli.core.spec.rows import SpecOf
from vitcli.core.spec.sound import FusionSpec
from vitcli.core.spec.task import (
    ACCURACY,
    KNN_ACCURACY,
    TASKS,
    ZERO_SHOT_ACCURACY,
    TaskRow,
    TaskSpec,
)
from vitcli.core.spec.views import DinoSpec, LejepaSpec

DEFAULT_TASK = "classify"


class ClassifySpec(TaskSpec):
    """Supervised classification."""

    name: Literal["classify"] = "classify"


TASKS |= {
    "classify": TaskRow(
        about="supervised classification with cross-entropy",
        build="vitcli.core.tasks.classify:Classify",
        spec=ClassifySpec,
        headline=ACCURACY,
        reports=("loss", "accuracy"),
        recorded=("loss", "accuracy"),
        classifies=True,
        unprefixed=("calibration_error",),
        recompute="vitcli.core.tasks.predictions:accuracy",
        condense="vitcli.core.tasks.predictions:condense",
        per_image="vitcli.core.tasks.predictions:correct",
    ),
    "mae": TaskRow(
        about="masked autoencoder: reconstruct masked patches (He et al. 2022)",
        build="vitcli.core.tasks.mae:Mae",
        spec=MaeSpec,
        headline=MASKED_MSE,
        recorded=("masked_mse", "mse_ratio"),
        uses_labels=False,
        recompute="vitcli.core.tasks.predictions:masked_mse",
        condense="vitcli.core.tasks.predictions:condense_errors",
        per_image="vitcli.core.tasks.predictions:errors",
    ),
    "ssat": TaskRow(
        about="classify and reconstruct masked patches in one training (Das et al. 2024)",
        build="vitcli.core.tasks.ssat:Ssat",
        spec=SsatSpec,
        headline=ACCURACY,
        reports=("loss", "accuracy", "masked_mse"),
        recorded=("loss", "accuracy", "masked_mse", "mse_ratio"),
        classifies=True,
        unprefixed=("calibration_error",),
        recompute="vitcli.core.tasks.predictions:accuracy",
        condense="vitcli.core.tasks.predictions:condense",
        per_image="vitcli.core.tasks.predictions:correct",
    ),
    "dino": TaskRow(
        about="self-distillation between views of an image (DINO, Caron et al. 2021)",
        build="vitcli.core.tasks.dino:Dino",
        spec=DinoSpec,
        headline=KNN_ACCURACY,
        reports=("loss", "sample_entropy", "batch_entropy"),
        recorded=("knn_accuracy",),
        uses_labels=False,
        recompute="vitcli.core.tasks.predictions:accuracy",
        condense="vitcli.core.tasks.predictions:condense",
        per_image="vitcli.core.tasks.predictions:correct",
    ),
    "lejepa": TaskRow(
        about="equal, Gaussian embeddings of views (LeJEPA, Balestriero and LeCun 2025)",
        build="vitcli.core.tasks.lejepa:Lejepa",
        spec=LejepaSpec,
        headline=KNN_ACCURACY,
        reports=("loss", "invariance", "sigreg", "spread"),
        recorded=("knn_accuracy",),
        uses_labels=False,
        recompute="vitcli.core.tasks.predictions:accuracy",
        condense="vitcli.core.tasks.predictions:condense",
        per_image="vitcli.core.tasks.predictions:correct",
    ),
    "clip": TaskRow(
        about="contrastive training of images with captions (Radford et al. 2021)",
        build="vitcli.core.tasks.clip:ContrastiveTask",
        spec=ClipSpec,
        headline=ZERO_SHOT_ACCURACY,
        reports=("loss", "floor", "scale"),
        recorded=(
            *("zero_shot_accuracy", "trained_prompts_accuracy"),
            *("image_to_text_r1", "text_to_image_r1"),
        ),
        recompute="vitcli.core.tasks.predictions:accuracy",
        condense="vitcli.core.tasks.predictions:condense",
        per_image="vitcli.core.tasks.predictions:correct",
    ),
    "fusion": TaskRow(
        about="classification of an image together with a sound",
        build="vitcli.core.tasks.fusion:Fusion",
        spec=FusionSpec,
        headline=ACCURACY,
        reports=("loss", "accuracy"),
        recorded=("loss", "accuracy", "image_accuracy", "sound_accuracy"),
        unprefixed=("calibration_error",),
        recompute="vitcli.core.tasks.predictions:accuracy",
        condense="vitcli.core.tasks.predictions:condense",
        per_image="vitcli.core.tasks.predictions:correct",
    ),
}

TASK = SpecOf(TASKS, "name", DEFAULT_TASK)
"""Annotation of the field that holds the task of an experiment."""
