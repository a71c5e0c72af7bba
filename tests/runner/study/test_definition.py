"""Study files: what they mean, and which mistakes are refused before training."""

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_pictures
from tests.fabricated import make_run
from tests.own_code import forget
from tests.runner.study.trials import write_study
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash, load_experiment
from vitcli.runner.experiment.diff import differences
from vitcli.runner.study.collect import command, read_results
from vitcli.runner.study.definition import default_root, is_same_setting, load_study, parse_seeds
from vitcli.runner.study.plan import Options, model_sizes, plan_study
from vitcli.runner.study.run import write_plan
from vitcli.runner.train.flops import training_flops, whole_training_flops

__all__ = ["forget"]

STUDY = """
base: quickstart
train: {epochs: 2}
seeds: [0, 3]
variants:
  full: {}
  no-norm: {model.norm: none}
  other: {experiment: cifar10-tiny-native, data.name: scenes}
"""


def test_a_variant_is_the_base_with_its_changes_only(here):
    loaded = write_study(STUDY)
    full, no_norm, other = loaded.variants
    assert full.spec.train.epochs == 2, "the study's own field lies over its base"
    assert full.spec.model.embed_dim == 64, "the rest is the base's"
    assert differences(full.spec, no_norm.spec) == {"model.norm": ("layer_norm", "none")}
    assert other.spec.train.epochs == 50, "another experiment brings its own length"


def test_what_a_row_changes_is_its_difference_from_the_baseline(here):
    first = "long: {train.epochs: 9, optim.lr: 0.5}, short: {}"
    last = "wide: {train.epochs: 9, optim.lr: 0.25, model.embed_dim: 32}"
    text = f"base: quickstart\ntrain: {{epochs: 2}}\nseeds: [0]\nvariants: {{{first}, {last}}}"
    doc = read_results(write_study(text), here / "runs")
    lr = load_experiment("quickstart").spec.optim.lr
    assert [row.changes for row in doc.rows] == [
        {},
        {"train.epochs": 2, "optim.lr": lr},
        {"optim.lr": 0.25, "model.embed_dim": 32},
    ]


def test_a_typed_data_set_replaces_that_of_every_variant_and_has_its_own_folder(here):
    write_study(STUDY)
    loaded = load_study("mine.yaml", typed={"data.name": "imagefolder:some/pets"})
    assert {variant.spec.data.name for variant in loaded.variants} == {"imagefolder:some/pets"}
    assert loaded.variants[1].changes == {"model.norm": "none"}
    assert default_root(loaded) == Path("runs/mine-pets")
    assert command(loaded) == "vitcli ablate mine.yaml --data imagefolder:some/pets"


def test_two_data_sets_of_one_name_do_not_share_a_folder(here):
    write_study(STUDY)
    one, other = (
        load_study("mine.yaml", typed={"data.name": f"imagefolder:{draw_pictures(here / each)}"})
        for each in "ab"
    )
    root, only = default_root(one), ("full",)
    assert default_root(other) == root
    root.mkdir(parents=True)
    write_plan(plan_study(one, root, only), Options())
    assert plan_study(other, root, only).trials, "nothing is trained yet"
    make_run(0, folder=root / "full/seed0")
    with pytest.raises(ConfigError, match="-o"):
        plan_study(other, root, only)
    for study, rerun in ((one, ()), (other, only)):
        assert plan_study(study, root, only, rerun=rerun).trials


def test_typed_fields_change_the_base_of_every_variant_and_lead_to_a_folder_of_their_own(here):
    typed = {"model.depth": 2, "model.norm": "rms_norm", "train.epochs": 1}
    write_study(STUDY)
    loaded = load_study("mine.yaml", typed=typed)
    full, no_norm, other = loaded.variants
    assert {each.spec.model.depth for each in loaded.variants} == {2}
    assert [each.spec.model.norm for each in (full, no_norm)] == ["rms_norm", "none"]
    assert other.spec.train.epochs == 1, "another experiment is changed, too"
    assert default_root(loaded) == Path(f"runs/mine-{config_hash(full.spec)[:8]}")
    write_study(STUDY.replace("full: {}", "full: {model.depth: 1}"), "deep")
    hidden = [load_study("deep.yaml", typed={"model.depth": depth}) for depth in (2, 3)]
    assert default_root(hidden[0]) != default_root(hidden[1]), "the baseline sets the field itself"
    options = "-s model.depth=2 -s model.norm=rms_norm -s train.epochs=1"
    assert command(loaded) == f"vitcli ablate mine.yaml {options}"
    with pytest.raises(ConfigError, match=r"^--epochs: should be"):
        load_study("mine.yaml", None, {"train.epochs": -1}, {"train.epochs": "--epochs"})


def test_each_tuned_setting_has_its_own_folder(here):
    text = STUDY.replace("seeds:", "data: {val_split: 100}\ntune: {optim.lr: [1.0e-3, 2.0e-3],"
                         " optim.weight_decay: [0.0, 0.1]}\nseeds:")  # fmt: skip
    text = text.replace("data.name: scenes", "data.name: scenes, data.val_split: 100")
    loaded = write_study(text)
    assert len(loaded.variants[1].settings) == 4
    folders = [trial.folder for trial in loaded.trials(["no-norm"])]
    assert folders[0] == "no-norm/lr=0.001,weight_decay=0.0/seed0"
    assert len(set(folders)) == 8
    with pytest.raises(ConfigError, match=r"^--set: 'tune' of .* chooses optim\.lr; leave"):
        load_study("mine.yaml", typed={"optim.lr": 0.5})


EQUAL = """
base: quickstart
train: {epochs: 4, limit_batches: 2}
seeds: [0, 3]
equal_compute: true
variants:
  full: {}
  twice: {model.depth: 8}
  first: {pretrain: {train: {epochs: 1, limit_batches: 2}}}
  large: {model.embed_dim: 256}
"""


def test_equal_compute_gives_each_variant_the_epochs_that_the_baseline_pays_for(here):
    loaded = write_study(EQUAL)
    specs = {variant.name: variant.spec for variant in loaded.variants}
    epochs = {name: spec.train.epochs for name, spec in specs.items()}
    assert (epochs["full"], epochs["twice"], epochs["large"]) == (4, 2, 1)
    most = whole_training_flops(specs["full"])
    assert whole_training_flops(specs["large"]) > most, "at least one epoch"
    for name in ("twice", "first"):
        train = specs[name].train
        longer = specs[name].replace(train=train.replace(epochs=train.epochs + 1))
        assert whole_training_flops(specs[name]) <= most < whole_training_flops(longer), name
    before = specs["first"].pretraining
    assert before
    paid = training_flops(before) + training_flops(specs["first"])
    assert paid == whole_training_flops(specs["first"]) > training_flops(before) > 0
    doc = read_results(loaded, here / "runs")
    assert [row.changes.get("train.epochs", 4) for row in doc.rows] == [*epochs.values()]
    longer = load_study("mine.yaml", typed={"train.epochs": 8})
    assert [each.spec.train.epochs for each in longer.variants][:2] == [8, 4]
    tuned = "data: {val_split: 1000}\ntune: {train.batch_size: [64, 32]}"
    variant = write_study(f"{EQUAL}{tuned}").variants[1]
    assert [spec.train.epochs for _, spec in variant.settings] == [2, 4], "each has its own"


@pytest.mark.parametrize(
    ("text", "wrong", "message"),
    [
        ("model.depth: 8}", "model.depth: 8, train.epochs: 3}", "variant 'twice'"),
        pytest.param(
            *("model.depth: 8}", "task: {name: distil, teacher: nobody}}", "'nobody'"),
            marks=pytest.mark.plugin("distil"),
        ),
        ("seeds:", "data: {val_split: 9}\ntune: {train.epochs: [1, 2]}\nseeds:", "remove one"),
    ],
)
def test_what_equal_compute_cannot_set_is_refused(here, text, wrong, message):
    with pytest.raises(ConfigError, match=message):
        write_study(EQUAL.replace(text, wrong))


REFERENCE = "reference: {source: x, rows: {%s}}"
TWO = "variants: {a: {}, %s}"
MISTAKES = [
    ("variants: {}", "needs variants"),
    (TWO % "b: {model.depth: 4}", "'b' is the same as 'a'"),
    (TWO % "b: {data.name: cifar10}", "cannot be compared"),
    (TWO % "b: {data.folds: 5}", "data.folds differs"),
    (TWO % "b: {experiment: quickstrat}", "'quickstart'"),
    (TWO % "b: {experiment: ablation-quickstart}", "is a study"),
    (TWO % "b: {seed: 3}", "a variant cannot change 'seed'"),
    (TWO % "table.TEX: {model.depth: 1}", "becomes a folder"),
    (f"data: {{name: npz:x}}\n{TWO % 'b: {data.corrections: c.csv}'}", "differs"),
    (f"data: {{name: npz:x}}\n{TWO % 'b: {data.levels: 4095}'}", "data.levels differs"),
    ("tune: {optim.lr: [0.1]}", "validation split"),
    ("data: {val_split: 9}\ntune: {optim.lr: [0.1, 0.1]}", "appears twice"),
    ("data: {val_split: 9}\ntune: {train.freeze: [a b, a/b]}", "its folder's name appears"),
    ("data: {val_split: 9}\ntune: {data.val_split: [9, 99]}", "leave data.val_split out"),
    (
        "data: {val_split: 9}\ntrain: {early_stopping: 2}\ntune: {train.epochs: [1, 2]}",
        "more evaluations have a better best one",
    ),
    (f"data: {{val_split: 9}}\ntune: {{train.epochs: {[*range(1, 200)]}}}", "too many"),
    (REFERENCE % "basline: {accuracy: 9.0}", "did you mean 'baseline'"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=lambda value: value[:40])
def test_a_mistake_is_reported_with_file_and_line(here, text, message):
    lines = ["base: quickstart", text]
    lines += [] if "variants:" in text else ["variants: {baseline: {}}"]
    lines += [] if "seeds:" in text else ["seeds: [0]"]
    with pytest.raises(ConfigError) as caught:
        write_study("\n".join(lines))
    told = str(caught.value)
    assert message in told
    assert told.startswith("mine.yaml:")
    assert "\n" not in told


def test_a_model_that_cannot_be_built_is_found_before_training(here):
    with pytest.raises(ConfigError, match=r"variant 'no-norm': .*patch_size 5"):
        model_sizes(write_study(STUDY.replace("model.norm: none", "model.patch_size: 5")))


def test_the_same_setting_needs_the_same_model_data_and_length():
    assert is_same_setting(load_study("ablation-cifar10"))
    for other in ("cifar10-short", "cifar10-tiny", "positions"):  # the last has no reference
        assert not is_same_setting(load_study(f"ablation-{other}"))


NET = """
from torch import nn
from vitcli.parts import model
@model
class Net(nn.Module):
    def __init__(self, *, img_size, in_chans, num_classes, depth: int = 9, width: int = 8): ...
"""
OTHERS = [
    ({"model.family": "Net", "model.width": 4, "optim.name": "adamw"}, {"depth": 9, "width": 4}),
    ({"model.family": "Net", "model.depth": 4, "optim.name": "adamw"}, {"depth": 4, "width": 8}),
    ({"model.family": "swin", "model.depths": [1, 1]}, {"depths": (1, 1), "embed_dim": 48}),
]
"""Changes of quickstart, whose model has a depth -> fields of the model."""


@pytest.mark.parametrize(("changes", "fields"), OTHERS, ids=str)
def test_another_family_replaces_the_model_wherever_it_is_named(here, changes, fields):
    (here / "net.py").write_text(NET)
    own_code.load([here / "net.py"])
    typed = load_experiment("quickstart", changes).spec
    assert {name: getattr(typed.model, name) for name in fields} == fields
    nested: dict[str, Any] = {}
    for field, value in changes.items():
        part, _, name = field.partition(".")
        nested.setdefault(part, {})[name] = value
    for variant in (changes, nested):
        text = json.dumps({"base": "quickstart", "seeds": [0], "variants": {"a": {}, "b": variant}})
        assert write_study(text).variants[1].spec == typed
    Path("other.yaml").write_text(json.dumps({"base": "quickstart", **nested}))
    assert load_experiment("other.yaml").spec == typed
    back = {"base": "other.yaml", "model": {"family": "vit", "embed_dim": 48}}
    Path("back.yaml").write_text(json.dumps(back))
    typed = load_experiment("other.yaml", {"model.family": "vit", "model.embed_dim": 48}).spec
    assert load_experiment("back.yaml").spec == typed


ONE = {"name": "One", "start": 2, "sizes": {"a": 1}}
OWN = """
@%s
def One(progress, extra=None, *, start: int = 1, sizes: dict[str, int] = {}): ...
@%s
def Two(progress, extra=None, *, start: int = 5): ...
"""


@pytest.mark.parametrize(
    ("below", "above", "options"),
    [
        (ONE, {"name": "Two"}, {}),
        (ONE, {"name": "Two", "start": 3}, {"start": 3}),
        (ONE, {"name": "One", "start": 3}, {"start": 3, "sizes": {"a": 1}}),
        (ONE, {"sizes": {"b": 1}}, {"start": 2, "sizes": {"b": 1}}),
        ("One", {"start": 3}, {"start": 3}),
        (ONE, "One", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "field"), [("schedule", "optim.schedule"), ("augmentation", "data.augment.policy")]
)
def test_another_part_starts_from_its_own_defaults(here, kind, field, below, above, options):
    (here / "own.py").write_text(f"from vitcli.parts import {kind}\n" + OWN % (kind, kind))
    own_code.load([here / "own.py"])
    for key in reversed(field.split(".")):
        below, above = {key: below}, {key: above}
    Path("below.yaml").write_text(json.dumps({"base": "quickstart"} | below))
    Path("child.yaml").write_text(json.dumps({"base": "below.yaml"} | above))
    child = load_experiment("child.yaml").spec
    text = json.dumps({"base": "below.yaml", "seeds": [0], "variants": {"a": {}, "b": above}})
    for spec in (child, write_study(text).variants[1].spec):
        assert attrgetter(field)(spec).options == options


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds(" 5 ,0-1") == [5, 0, 1]
    for text in ("a", "0-", "3-1", "0-99999999", "0,,1"):
        with pytest.raises(ConfigError):
            parse_seeds(text)
