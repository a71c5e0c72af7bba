"""Frozen, validated specs of an experiment. They import neither torch nor yaml."""

from vitcli.core.spec.base import Size, Spec
from vitcli.core.spec.captions import ClipSpec
from vitcli.core.spec.data import DATA_SETS, GENERATED, AugmentSpec, DataSpec
from vitcli.core.spec.experiment import ExperimentSpec
from vitcli.core.spec.families import (
    FAMILIES,
    CoatnetSpec,
    PitSpec,
    ResNet18Spec,
    SwinSpec,
    VitSpec,
    model_spec,
)
from vitcli.core.spec.model import AttentionSpec, ModelSpec, PatchSpec, StagedSpec, TokenSpec
from vitcli.core.spec.optim import OPTIMIZERS, SCHEDULES, OptimSpec
from vitcli.core.spec.pretrain import PretrainSpec
from vitcli.core.spec.sound import FUSIONS, FusionSpec
from vitcli.core.spec.task import TASKS, TaskSpec
from vitcli.core.spec.tasks import ClassifySpec
from vitcli.core.spec.train import TrainSpec
from vitcli.core.spec.views import DinoSpec, LejepaSpec, ViewsSpec

__all__ = [
    "DATA_SETS",
    "FAMILIES",
    "FUSIONS",
    "GENERATED",
    "OPTIMIZERS",
    "SCHEDULES",
    "TASKS",
    "AttentionSpec",
    "AugmentSpec",
    "ClassifySpec",
    "ClipSpec",
    "CoatnetSpec",
    "DataSpec",
    "DinoSpec",
    "ExperimentSpec",
    "FusionSpec",
    "LejepaSpec",
    "ModelSpec",
    "OptimSpec",
    "PatchSpec",
    "PitSpec",
    "PretrainSpec",
    "ResNet18Spec",
    "Size",
    "Spec",
    "StagedSpec",
    "SwinSpec",
    "TaskSpec",
    "TokenSpec",
    "TrainSpec",
    "ViewsSpec",
    "VitSpec",
    "model_spec",
]
