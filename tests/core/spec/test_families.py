"""Each family has its own fields, and drops or refuses the fields of other families."""

import json
import re
import subprocess
import sys
from typing import Literal

import pytest
from pydantic import ValidationError

from tests.core.specs import REQUIRED
from vitcli.core.models.build import build_model
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import FAMILIES, ExperimentSpec, VitSpec, model_spec
from vitcli.core.spec.families import DEFAULTS, FamilyRow

COMPLETE = [pytest.param(family, id=family) for family in FAMILIES]


def some(family: str, **fields):
    return model_spec(family=family, **{**REQUIRED[family], **fields})


@pytest.mark.parametrize("family", COMPLETE)
def test_a_family_has_only_the_fields_of_its_class(family):
    spec = some(family)
    assert type(spec) is FAMILIES[family].spec
    experiment = ExperimentSpec(model=spec)
    assert experiment.model is spec
    stored = experiment.model_dump(mode="json")["model"]
    assert stored.keys() == FAMILIES[family].spec.model_fields.keys()
    assert ExperimentSpec.model_validate({"model": stored}) == experiment
    assert experiment.replace(seed=1).model == spec


@pytest.mark.parametrize("family", COMPLETE)
def test_fields_of_other_families_are_dropped_at_their_old_defaults(family):
    own = FAMILIES[family].spec.model_fields
    foreign = {name: value for name, value in DEFAULTS.items() if name not in own}
    assert foreign, "every family lacks some field"
    assert some(family, **foreign) == some(family)


@pytest.mark.parametrize("family", COMPLETE)
def test_a_field_of_another_family_with_another_value_is_refused(family):
    own = FAMILIES[family].spec.model_fields
    for name in sorted(DEFAULTS.keys() - own.keys()):
        hint = "" if DEFAULTS[name] is None else f" or set it to {DEFAULTS[name]}"
        message = f"family '{family}' has no {name}; leave it out{hint}"
        with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
            some(family, **{name: "another"})
        with pytest.raises(ValidationError, match=re.escape(message)) as caught:
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
        ({"depth": "six"}, ("model", "depth")),
        ({"dept": 6}, ("model", "dept")),
        ({"family": "resnet18", "in_chans": 0}, ("model", "in_chans")),
        (3, ("model",)),
        ([], ("model",)),
    ],
)
def test_an_error_names_the_field(model, loc):
    with pytest.raises(ValidationError) as caught:
        ExperimentSpec.model_validate({"model": model})
    assert caught.value.errors()[0]["loc"] == loc


class OtherSpec(VitSpec):
    """A family of another package."""

    family: Literal["other"] = "other"  # type: ignore[assignment]
    twist: int = 1


def test_a_family_can_be_added_at_run_time(monkeypatch):
    row = FamilyRow(about="another", build=VisionTransformer, spec=OtherSpec)
    with pytest.raises(ValidationError, match="'coatnet' or 'pit'"):
        ExperimentSpec.model_validate({"model": {"family": "other"}})
    monkeypatch.setitem(FAMILIES, "other", row)
    sizes = {"img_size": 16, "in_chans": 3, "num_classes": 2, "depth": 1}
    spec = ExperimentSpec.model_validate({"model": {"family": "other", "twist": 2, **sizes}})
    assert isinstance(spec.model, OtherSpec)
    assert ExperimentSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert isinstance(build_model(spec.model), VisionTransformer)
    with pytest.raises(ValueError, match=r"family 'vit' has no twist; leave it out$"):
        model_spec(twist=1)


def test_the_specs_need_neither_torch_nor_yaml():
    code = (
        "import json, sys, vitcli.core.spec as s; s.ExperimentSpec.model_json_schema();"
        "print(json.dumps([m for m in ('torch', 'yaml', 'numpy') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
