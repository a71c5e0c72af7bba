"""Every file in experiments/ has a question and a header, parses and builds."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plugin_rows import of_file
from vitcli.core.inspect.cost import count_parameters, forward_flops
from vitcli.core.models.image_model import build_model
from vitcli.core.spec import DATA_SETS, GENERATED, ExperimentSpec, VitSpec
from vitcli.core.spec.slots import INITS
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.config import config_text, load_experiment
from vitcli.runner.experiment.diff import differences
from vitcli.runner.experiment.kinds import FILE_KINDS
from vitcli.runner.experiment.listing import describe_experiment, name_of_kind
from vitcli.runner.experiment.resolve import fit_to_data
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.plan import model_sizes
from vitcli.runner.train.flops import training_flops

FOLDER = Path(__file__).parents[1] / "experiments"
FILES = {path: name_of_kind(path) for path in sorted(FOLDER.glob("*.yaml"))}
EXPERIMENTS = [path for path, kind in FILES.items() if kind == "experiment"]
STUDIES = [path for path, kind in FILES.items() if kind == "study"]


def rows(paths: Iterable[Path]) -> list[Any]:
    return [of_file(path, path) for path in paths]


VERBS = {"experiment": "train"} | {kind.name: kind.command for kind in FILE_KINDS.values()}
PARAMETERS = {
    "cifar10-tiny": 140_618,
    "cifar10-small": 6_347_082,
    "cifar10-base-p2": 22_080_010,
    "cifar10-resnet18": 11_173_962,
    "cifar10-convnet": 1_971_352,
    "cifar10-vit": 6_030_442,
    "cifar10-cct": 5_963_019,
    "cifar10-swin": 5_931_712,
    "cifar10-coatnet": 6_266_186,
    "cifar10-pit": 6_125_962,
}


def resolved(spec: ExperimentSpec) -> ExperimentSpec:
    return fit_to_data(spec, describe_data(spec.data))


TUNED = r"^# Tuned:    (on (no|validation|test) images|not recorded on which images)\b"


@pytest.mark.parametrize(
    "path", [of_file(path, path) for path in FILES], ids=lambda path: path.stem
)
def test_a_file_has_a_question_a_command_a_cost_a_result_and_what_it_was_tuned_on(path):
    text = path.read_text()
    assert re.findall(r"^# (\w+): ", text, re.M)[:4] == ["Run", "Cost", "Result", "Tuned"]
    assert len(re.findall(TUNED, text, re.M)) == 1
    assert describe_experiment(str(path)).question.endswith("?")
    command = re.findall(r"^# Run: +(.*)$", text, re.M)[0].split()
    assert command[:2] == ["vitcli", VERBS[FILES[path]]]
    is_default = path.stem in ("quickstart", "ablation-quickstart")
    assert command[2:] == ([] if is_default else [path.stem])


@pytest.mark.parametrize(
    "path", [of_file(path, path) for path in EXPERIMENTS], ids=lambda path: path.stem
)
def test_an_experiment_resolves_and_builds(path, tmp_path):
    spec = resolved(load_experiment(str(path)).spec)
    with torch.device("meta"):
        model = build_model(spec.model)
    if path.stem in PARAMETERS:
        assert count_parameters(model) == PARAMETERS[path.stem]
    # What a run stores is itself an experiment file.
    (tmp_path / "stored.yaml").write_text(config_text(spec))
    assert load_experiment(str(tmp_path / "stored.yaml")).spec == spec


def test_data_sets_with_a_name_are_in_the_catalogue():
    assert set(DATA_SETS) - set(GENERATED) == CATALOGUE.keys()


@pytest.mark.parametrize(
    "path", [of_file(path, path) for path in STUDIES], ids=lambda path: path.stem
)
def test_every_row_builds_and_differs(path):
    study = load_study(str(path))
    sizes = model_sizes(study)
    assert list(sizes) == [variant.name for variant in study.variants]
    assert len({variant.spec for variant in study.variants}) == len(study.variants)
    assert len(study.seeds) >= (2 if study.parts or path.stem.startswith("study-") else 3)
    assert study.threads == 1


SEEDED = (
    *("ablation-quickstart", "ablation-heads", "ablation-norm", "study-attention"),
    *("study-architectures-tiny", "study-ingredients", "study-pretraining-100"),
)
"""Studies of each kind of variant; tests/core/nn/test_init.py has every kind of tensor."""


@pytest.mark.parametrize("name", SEEDED)
def test_variants_of_one_seed_start_with_the_baselines_weights(name):
    """Tensors of the same name and shape must be equal, or seeds would not pair.

    Variants that change the scheme of the initial weights differ in nothing else. A scheme that
    shapes each head's attention gives other matrices to another number of heads.
    """
    study = load_study(name)
    base = initial_tensors(study, study.baseline.name)
    family = study.baseline.spec.model.family
    for variant in study.variants[1:]:
        changed = differences(study.baseline.spec, variant.spec)
        if variant.spec.model.family != family or "model.init" in changed:
            continue
        ours = initial_tensors(study, variant.name)
        common = [n for n in base if n in ours and base[n].shape == ours[n].shape]
        unequal = {name for name in common if not base[name].equal(ours[name])}
        if "model.num_heads" in changed and INITS[variant.spec.model.init].factors_attention:
            of_heads = ("qkv.weight", "qkv.bias", "proj.weight")
            unequal = {name for name in unequal if not name.endswith(of_heads)}
        assert not unequal, variant.name
        if variant.spec.model.embed_dim == study.baseline.spec.model.embed_dim:
            drawn = [name for name in common if base[name].unique().numel() > 1]
            assert drawn, f"{variant.name}: nothing is in common, so nothing was compared"


def initial_tensors(study: Study, name: str) -> dict[str, torch.Tensor]:
    """Return an encoder's first tensors, of two blocks or as many as the task names."""
    (variant,) = [variant for variant in study.variants if variant.name == name]
    spec = resolved(variant.spec)
    if isinstance(spec.model, VitSpec):
        needed = max(2, *getattr(spec.task, "layers", ()), 0)
        spec = spec.replace(model=spec.model.replace(depth=min(needed, spec.model.depth)))
    return encoder_of(spec, new_module(spec)).state_dict()


PRETRAINING = ("study-pretraining-100", "study-pretraining", "study-pretraining-all")
TOLERANCE = 0.01


def test_every_variant_takes_the_same_compute():
    for study in map(load_study, PRETRAINING):
        totals = {}
        for variant in study.variants:
            first = variant.spec.pretraining
            specs = [variant.spec, first] if first else [variant.spec]
            totals[variant.name] = sum(map(training_flops, specs))
        scratch = totals.pop("scratch")
        assert totals == {name: pytest.approx(scratch, rel=TOLERANCE) for name in totals}


@pytest.mark.plugin("distil")
def test_a_taught_student_takes_the_compute_of_a_longer_training():
    alone, _, taught = (variant.spec for variant in load_study("study-distil").variants)
    teacher = load_experiment(taught.task.teacher.run.partition("/")[0]).spec
    with torch.device("meta"):
        model = build_model(resolved(teacher).model)
    assert taught.data.augment.copies
    labelled = describe_data(taught.data).num_train * taught.data.augment.copies
    total = training_flops(taught.replace(task=alone.task, data=alone.data))
    total += training_flops(teacher) + labelled * forward_flops(model, model.image_shape)
    assert total == pytest.approx(training_flops(alone), rel=TOLERANCE)
