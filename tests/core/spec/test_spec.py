"""Specs: fields of a family, rows of tables, and what is refused."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from tests.core.specs import REQUIRED
from tests.plugin_rows import of_task
from vitcli.core.spec import (
    FAMILIES,
    OPTIMIZERS,
    SCHEDULES,
    TASKS,
    ExperimentSpec,
    VitSpec,
    model_spec,
)
from vitcli.core.spec.families import DEFAULTS
from vitcli.core.spec.rows import table_of
from vitcli.core.spec.slots import ATTENTIONS, SLOTS
from vitcli.plugin import load_target

pytestmark = pytest.mark.seam


@pytest.mark.parametrize(
    ("task", "is_refused"),
    [
        of_task({"task": task}, task, is_refused)
        for task, is_refused in (
            ({"name": "clip"}, True),
            ({"name": "fusion", "fusion": "late", "contrast": 0.1}, True),
            ({"name": "fusion", "fusion": "late"}, False),
            ({"name": "lejepa"}, True),
            ({"name": "classify"}, False),
        )
    ],
)
def test_parts_of_a_batch_are_refused_where_a_loss_compares_its_images(task, is_refused):
    """Each part would be compared with itself only, which is another loss."""
    for parts in (1, 2):
        sections = {"task": task, "train": {"accumulate": parts}}
        wanted = "train.accumulate: task" if is_refused and parts > 1 else ""
        for place, fields in (("", sections), ("pretrain.", {"pretrain": sections})):
            refusal = ExperimentSpec.model_validate(fields).refusal
            assert bool(refusal) == bool(wanted)
            assert not wanted or refusal.startswith(f"{place}{wanted}")
    spec = ExperimentSpec.model_validate({"task": task, "train": {"batch_size": 1}})
    assert bool(spec.refusal) == is_refused


@pytest.mark.parametrize("name", TASKS)
def test_smooth_labels_are_refused_where_no_loss_reads_them(name):
    fields = {"task": {"name": name}, "train": {"label_smoothing": 0.1}}
    spec = ExperimentSpec.model_validate(fields)
    refused = (spec.refusal or "").startswith("train.label_smoothing: ")
    assert refused == (name not in ("classify", "ssat", "distil", "fusion"))


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
def test_fields_of_other_families_are_dropped_at_their_old_defaults_and_else_refused(family):
    own = FAMILIES[family].spec.model_fields
    foreign = {name: value for name, value in DEFAULTS.items() if name not in own}
    assert foreign, "every family lacks some field"
    assert some(family, **foreign) == some(family)
    for name in foreign:
        with pytest.raises(ValidationError, match=f"family '{family}' has no {name}; ") as caught:
            ExperimentSpec.model_validate({"model": {"family": family, name: "another"}})
        assert caught.value.errors()[0]["loc"] == ("model",)


def test_all_families_have_the_same_default_of_a_field():
    """Otherwise a complete configuration of 0.7.0 would describe another model."""
    for row in FAMILIES.built_in.values():
        for name, field in row.spec.model_fields.items():
            assert name == "family" or field.default == DEFAULTS[name], (row.spec, name)


@pytest.mark.parametrize(
    ("model", "loc"),
    [
        ({"family": "swim"}, ("model", "family")),
        ({"family": None}, ("model", "family")),
        ({"dept": 6}, ("model", "dept")),
        *(({"attention": name}, ("model", "attention")) for name in ("plum", None, ["softmax"])),
        ({"family": "resnet18", "in_chans": 0}, ("model", "in_chans")),
        (3, ("model",)),
    ],
)
def test_an_error_names_the_field(model, loc):
    with pytest.raises(ValidationError) as caught:
        ExperimentSpec.model_validate({"model": model})
    assert caught.value.errors()[0]["loc"] == loc


@pytest.mark.parametrize(("slot", "takes_own_parts"), [("attention", True), ("residual", False)])
def test_the_schema_takes_a_name_with_options_where_own_parts_are_possible(slot, takes_own_parts):
    described = VitSpec.model_json_schema()["properties"][slot]["oneOf"]
    mappings = [each for each in described if each.get("type") == "object"]
    assert [each["required"] for each in mappings] == [["name"]] * takes_own_parts


def test_the_target_of_a_row_exists_below_the_runner():
    """A row must not look upward."""
    for table in (*SLOTS.values(), FAMILIES, OPTIMIZERS, SCHEDULES, TASKS):
        for row in table.values():
            for target in filter(None, (row.build, getattr(row, "heads", None))):
                assert callable(load_target(target))
                assert target.startswith(("vitcli.core.", "vitcli.plugins.", "torch"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_slot_of_a_family_has_the_rows_of_its_table(family):
    fields = FAMILIES[family].spec.model_fields
    found = {name: table_of(field) for name, field in fields.items()}
    for name, table in found.items():
        assert table is SLOTS.get(name), name
        assert table is None or fields[name].default in table


NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR: dict[str, Any] = {"name": "cifar10", "class_names": NAMES}
MIXED: dict[str, Any] = {"augment": {"mixup": 0.5}}
SIZES: dict[str, Any] = {"img_size": 16, "in_chans": 3, "num_classes": 5, "patch_size": 4}
SMALL: dict[str, Any] = SIZES | {"pool": "mean"}
SWIN: dict[str, Any] = {"family": "swin", "depths": [1]}
PIT: dict[str, Any] = {"family": "pit", "depths": [1]}
COATNET: dict[str, Any] = REQUIRED["coatnet"] | {"family": "coatnet", "depths": [1, 2, 2]}
HALF = {"layer_decay": 0.5}
LAYERS: dict[str, Any] = {"kind": "features", "layers": [1]}


def task(name: str, **fields: Any) -> dict[str, Any]:
    return {"task": {"name": name, **fields}}


def model(**fields: Any) -> dict[str, Any]:
    return {"model": fields}


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("no attn_mask_diagonal", model(**SWIN, attn_mask_diagonal=True)),
    *(
        (f"'{name}' has no attn_mask_diagonal", model(attention=name, attn_mask_diagonal=True))
        for name in ATTENTIONS
        if name != "softmax"
    ),
    ("no matrix of scores", model(attention="linformer", pos_embed="relative")),
    ("no attn_drop", model(attention="performer", attn_drop=0.1)),
    ("no attn_clamp", model(attention="strided", attn_clamp=True)),
    ("no attn_scale", model(attention="linear", attn_scale="learned")),
    ("must be odd", model(attention="local", attn_window=4)),
    ("'shifted' needs a patch_size", model(patch_embed="shifted", patch_size=1)),
    ("'shifted' has no patch_pre_norm", model(patch_embed="shifted", patch_pre_norm=True)),
    ("'linear' has no stem_width", model(stem_width=8)),
    ("stem_width needs", model(stem_width=8, patch_embed="conv_stem", patch_size=2)),
    ("impulse.*pos_embed", model(init="impulse", pos_embed="rope2d")),
    ("'impulse' needs attn_proj", model(init="impulse", attn_proj=False)),
    ("attention 'linformer'", model(init="impulse", attention="linformer")),
    ("only for family 'vit'", model(**PIT, init="mimetic")),
    ("needs depths", model(family="swin", pool="mean")),
    ("family 'vit' has no depths", model(depths=[1])),
    ("no CLS token", model(**SWIN)),
    ("needs pos_embed 'relative'", model(**SWIN, pool="mean")),
    ("has no attention", model(**SWIN, attention="linear")),
    ("has no window_size", model(**PIT, window_size=2)),
    ("must name 3 stages", model(**COATNET | {"layout": "CT"})),
    ("must be Cs", model(**COATNET | {"layout": "CCC"})),
    ("patch_size 1, 2 or 4", model(**COATNET | {"layout": "CCT", "patch_size": 8})),
    ("3 widths need", model(family="convnet", widths=[4, 4, 4], img_size=[8, 20])),
    ("class_balance", {"train": {"class_balance": "weights"}} | task("mae")),
    ("layer_decay: only", {"optim": HALF} | task("mae")),
    ("layer_decay: family", {"optim": HALF} | model(family="resnet18")),
    ("freeze: only", {"train": {"freeze": "backbone"}} | task("mae")),
    ("freeze", {"train": {"freeze": "("}}),
    ("early_stopping", {"train": {"early_stopping": 2}}),
    ("init_head", {"train": {"init_head": "probe"}}),
    ("copies: .* remove copies", {"data": {"augment": {"mixup": 0.2, "copies": 2}}}),
    ("model: task 'mae' .* 'linformer'", model(attention="linformer") | task("mae")),
    ("model: task 'ssat' .* 'relative'", model(pos_embed="relative") | task("ssat")),
    *(
        (f"model.patch_embed: '{name}'", model(patch_embed=name) | task("mae"))
        for name in ("conv_stem", "conv_tokenizer", "whitened_stages", "shifted")
    ),
    ("model.family: .* 'swin'", model(family="swin", **REQUIRED["swin"]) | task("mae")),
    ("task.mask_ratio: .* 16 patches", model(**SIZES) | task("mae", mask_ratio=0.01)),
    ("task.mask_ratio: .* 16 patches", model(**SIZES) | task("mae", mask_ratio=0.99)),
    ("task.norm_pix", model(patch_size=1, in_chans=1) | task("mae", norm_pix=True)),
    *(
        case
        for name in ("dino", "lejepa")
        for case in (
            ("task.local_size", model(**SMALL) | task(name, local_size=6)),
            ("task.local_size", model(**SMALL, pos_embed="rope2d") | task(name, local_size=8)),
            ("global_scale", model(**SMALL) | task(name, global_scale=[0.5, 0.4])),
        )
    ),
    ("train.ema_decay: .* dino", {"train": {"ema_decay": 0.9}} | model(**SMALL) | task("dino")),
    ("model.reg_tokens", task("distil", kind="token")),
    ("needs layers", task("distil", kind="features")),
    ("teacher_layers 0", task("distil", **LAYERS, teacher_layers=[])),
    ("task.layers", task("distil", kind="features", layers=[9], teacher_layers=["a"])),
    ("does not read temperature", task("distil", kind="token", temperature=2.0)),
    ("does not read", task("distil", layers=[1], teacher_layers=["a"])),
    ("needs family 'vit'", model(family="resnet18") | task("distil", kind="token")),
    ("task.fusion: pos_embed", model(pos_embed="rope2d") | task("fusion")),
    ("task.contrast: 'early'", task("fusion", contrast=0.1)),
    ("task.unimodal: 'early'", task("fusion", unimodal=1.0)),
    ("task.sound: shapes", task("fusion", sound="folder")),
    (
        "task.modality_dropout: 0.01",
        {"train": {"batch_size": 64}} | task("fusion", modality_dropout=0.01),
    ),
    ("task.contrast: needs", task("fusion", fusion="late", contrast=0.1, modalities="image")),
    ("task.modality_dropout: needs", task("fusion", modality_dropout=0.5, modalities="sound")),
    (
        "model.family: .* 'vit'",
        model(**SWIN, pool="mean", pos_embed="relative") | task("fusion", fusion="late"),
    ),
    ("held_out_classes needs", {"data": CIFAR} | task("clip", held_out_classes=["cat"])),
    *(
        (words, {"data": CIFAR} | task("clip", captions="superclasses", held_out_classes=held))
        for words, held in (("'cow'", ["cow"]), ("no class is left", NAMES))
    ),
    ("text_heads 3", task("clip", text_dim=16, text_heads=3)),
    ("data.augment.mixup", {"data": CIFAR | MIXED} | task("clip")),
    ("task.captions: 'folder'", {"data": CIFAR} | task("clip", captions="folder")),
]


@pytest.mark.parametrize(
    ("words", "sections"),
    [of_task(sections, words, sections) for words, sections in REFUSED],
    ids=[words for words, _ in REFUSED],
)
def test_what_does_not_fit_is_refused_by_name(words, sections):
    with pytest.raises(ValidationError) as caught:
        ExperimentSpec.model_validate(sections)
    messages = "\n".join(error["msg"] for error in caught.value.errors())
    assert re.search(words, messages), "in what is said, not in the values"
