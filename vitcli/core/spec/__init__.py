"""Frozen, validated specs of an experiment. They import neither torch nor yaml."""

from vitcli.core.spec.data import DATA_READERS, DATA_SETS, GENERATED, AugmentSpec, DataSpec
from vitcli.core.spec.experiment import ExperimentSpec, PretrainSpec
from vitcli.core.spec.families import (
    FAMILIES,
    CoatnetSpec,
    ConvnetSpec,
    SwinSpec,
    VitSpec,
    model_spec,
)
from vitcli.core.spec.model import AttentionSpec, ModelSpec, PatchSpec, StagedSpec, TokenSpec
from vitcli.core.spec.optim import OPTIMIZERS, SCHEDULES, OptimSpec
from vitcli.core.spec.rows import Spec
from vitcli.core.spec.task import TASKS, TaskSpec
from vitcli.core.spec.train import TrainSpec
