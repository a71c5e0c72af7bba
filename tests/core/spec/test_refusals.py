"""Fields that do not fit together are refused, and the error names what does not fit."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from tests.core.specs import REQUIRED
from vitcli.core.objectives.clip.captions import CIFAR10
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.slots import ATTENTIONS

NAMES = [word for group in CIFAR10.values() for word in group.split()]
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
        (f"'{name}' has no full matrix", model(attention=name, attn_mask_diagonal=True))
        for name in ATTENTIONS
        if name != "softmax"
    ),
    ("no matrix of scores", model(attention="linformer", pos_embed="relative")),
    ("no weights that attn_drop", model(attention="performer", attn_drop=0.1)),
    ("no attn_clamp", model(attention="strided", attn_clamp=True)),
    ("no temperature", model(attention="linear", attn_scale="learned")),
    ("must be odd", model(attention="local", attn_window=4)),
    ("'shifted' needs a patch_size", model(patch_embed="shifted", patch_size=1)),
    ("patch_pre_norm needs", model(patch_embed="shifted", patch_pre_norm=True)),
    ("stem_width needs", model(stem_width=8)),
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
    ("needs name", model(family="timm")),
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
        for name in ("conv_stem", "conv_tokenizer", "shifted")
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


@pytest.mark.parametrize(("words", "sections"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_does_not_fit_is_refused_by_name(words, sections):
    with pytest.raises(ValidationError) as caught:
        ExperimentSpec.model_validate(sections)
    messages = "\n".join(error["msg"] for error in caught.value.errors())
    assert re.search(words, messages), "in what is said, not in the values"
