"""Specs: fields of a family, rows of tables, and what is refused."""

import json
import subprocess
import sys
from typing import Annotated

import pytest
from pydantic import ValidationError

from tests.core.specs import REQUIRED
from vitcli.core.spec import (
    FAMILIES,
    OPTIMIZERS,
    SCHEDULES,
    TASKS,
    ExperimentSpec,
    Spec,
    VitSpec,
    model_spec,
)
from vitcli.core.spec.families import DEFAULTS
from vitcli.core.spec.rows import Row, RowOf, load_target, table_of
from vitcli.core.spec.slots import SLOTS


@pytest.mark.parametrize(
    ("task", "is_refused"),
    [
        ({"name": "clip"}, True),
        ({"name": "fusion", "fusion": "late", "contrast": 0.1}, True),
        ({"name": "fusion", "fusion": "late"}, False),
        ({"name": "lejepa"}, True),
        ({"name": "classify"}, False),
    ],
)
def test_parts_of_a_batch_are_refused_where_a_loss_compares_its_images(task, is_refused):
    """Each part would be compared with itself only, which is another loss."""
    for parts in (1, 2):
        spec = ExperimentSpec.model_validate({"task": task, "train": {"accumulate": parts}})
        wanted = "train.accumulate: task" if is_refused and parts > 1 else ""
        assert (spec.refusal or "").startswith(wanted)
        assert bool(spec.refusal) == bool(wanted)
    spec = ExperimentSpec.model_validate({"task": task, "train": {"batch_size": 1}})
    assert bool(spec.refusal) == is_refused


@pytest.mark.parametrize("name", TASKS)
def test_smooth_labels_are_refused_where_no_loss_reads_them(name):
    fields = {"task": {"name": name}, "train": {"label_smoothing": 0.1}}
    spec = ExperimentSpec.model_validate(fields)
    refused = (spec.refusal or "").startswith("train.label_smoothing: ")
    assert refused == (name in ("mae", "dino", "lejepa", "clip"))


def test_a_pretraining_is_refused_as_a_training_is():
    before = {"task": {"name": "clip"}, "train": {"accumulate": 2}}
    spec = ExperimentSpec.model_validate({"pretrain": before})
    assert (spec.refusal or "").startswith("pretrain.train.accumulate: task 'clip'")


def some(family: str, **fields):
    return model_spec(family=family, **{**REQUIRED[family], **fields})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_only_the_fields_of_its_class(family):
    spec = some(family)
    assert type(spec) is FAMILIES[family].spec
    experiment = ExperimentSpec(model=spec)
    assert experiment.model is spec
    stored = experiment.model_dump(mode="json")["model"]
    assert stored.keys() == FAMILIES[family].spec.model_fields.keys()
    assert ExperimentSpec.model_validate({"model": stored}) == experiment
    assert experiment.replace(seed=1).model == spec


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_of_other_families_are_dropped_at_their_old_defaults(family):
    own = FAMILIES[family].spec.model_fields
    foreign = {name: value for name, value in DEFAULTS.items() if name not in own}
    assert foreign, "every family lacks some field"
    assert some(family, **foreign) == some(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_field_of_another_family_with_another_value_is_refused(family):
    own = FAMILIES[family].spec.model_fields
    for name in sorted(DEFAULTS.keys() - own.keys()):
        with pytest.raises(ValidationError, match=f"family '{family}' has no {name}; ") as caught:
            ExperimentSpec.model_validate({"model": {"family": family, name: "another"}})
        assert caught.value.errors()[0]["loc"] == ("model",)


def test_all_families_have_the_same_default_of_a_field():
    """Otherwise a complete configuration of 0.7.0 would describe another model."""
    for row in FAMILIES.values():
        for name, field in row.spec.model_fields.items():
            assert name == "family" or field.default == DEFAULTS[name], (row.spec, name)


@pytest.mark.parametrize(
    ("model", "loc"),
    [
        ({"family": "swim"}, ("model", "family")),
        ({"family": None}, ("model", "family")),
        ({"dept": 6}, ("model", "dept")),
        ({"family": "resnet18", "in_chans": 0}, ("model", "in_chans")),
        (3, ("model",)),
    ],
)
def test_an_error_names_the_field(model, loc):
    with pytest.raises(ValidationError) as caught:
        ExperimentSpec.model_validate({"model": model})
    assert caught.value.errors()[0]["loc"] == loc


def test_the_specs_need_neither_torch_nor_yaml():
    code = (
        "import json, sys, vitcli.core.spec as s; s.ExperimentSpec.model_json_schema();"
        "print(json.dumps([m for m in ('torch', 'yaml', 'numpy') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


FRUIT: dict[str, Row] = {"apple": Row(about="a fruit"), "pear": Row(about="another")}


class Basket(Spec):
    fruit: Annotated[str, RowOf(FRUIT)] = "apple"


@pytest.mark.parametrize("name", ["plum", None, ["apple"]])
def test_a_name_without_a_row_is_refused_like_a_wrong_literal(name):
    with pytest.raises(ValidationError) as caught:
        Basket(fruit=name)
    (error,) = caught.value.errors()
    assert error["type"] == "literal_error"
    assert error["loc"] == ("fruit",)
    assert error["input"] == name


@pytest.mark.parametrize(("slot", "takes_own_parts"), [("attention", True), ("residual", False)])
def test_the_schema_takes_a_name_with_options_where_own_parts_are_possible(slot, takes_own_parts):
    described = VitSpec.model_json_schema()["properties"][slot]["oneOf"]
    mappings = [each for each in described if each.get("type") == "object"]
    assert [each["required"] for each in mappings] == [["name"]] * takes_own_parts


def test_the_target_of_a_row_exists_in_the_core():
    """A row must not look upward."""
    for table in (*SLOTS.values(), FAMILIES, OPTIMIZERS, SCHEDULES, TASKS):
        for row in table.values():
            for target in filter(None, (row.build, getattr(row, "heads", None))):
                assert callable(load_target(target))
                assert target.startswith(("vitcli.core.", "torch"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_slot_of_a_family_has_the_rows_of_its_table(family):
    fields = FAMILIES[family].spec.model_fields
    found = {name: table_of(field) for name, field in fields.items()}
    for name, table in found.items():
        assert table is SLOTS.get(name), name
        assert table is None or fields[name].default in table
