"""`vitcli export`: files of other programs compute what the trained model computes."""

import json
import re
import socket
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import safetensors
import safetensors.torch
import timm
import torch
from huggingface_hub import ModelCard

from tests.cli.commands import document, said
from tests.core.models.staged_models import FAMILIES
from tests.core.specs import changed
from tests.runner.train.conftest import often
from vitcli.core.spec import ExperimentSpec, ModelSpec, model_spec
from vitcli.core.spec.slots import ATTENTIONS, FFNS, NORMS, PATCH_EMBEDS, POS_EMBEDS
from vitcli.plugins.exports import export
from vitcli.plugins.weights.tensors import not_plain
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import model_hash
from vitcli.runner.run.checkpoint import Checkpoint, save_checkpoint
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.record import read_record

SIZES: dict[str, Any] = {"img_size": (16, 16), "in_chans": 3, "num_classes": 5}
MODELS: dict[str, ModelSpec] = {
    "vit": changed(),
    "resnet18": model_spec(family="resnet18", **SIZES),
    "convnet": model_spec(family="convnet", **SIZES),
    **FAMILIES,
}
ROWS = {f"attention {row}": changed(attention=row) for row in ATTENTIONS}


DATA = {
    "name": "shapes",
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.25, 0.3),
    "class_names": ("ant", "bee", "cat", "dog", "eel"),
}


def untrained_run(folder: Path, model: ModelSpec, noise: float = 0.02, **fields: Any) -> RunDir:
    """Return a finished run of a model for five classes, with random weights and statistics.

    ``noise`` is the standard deviation of what is added to the initial weights.
    """
    spec = ExperimentSpec.model_validate({"model": model, "data": DATA} | fields)
    module = new_module(spec)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 0.2 if parameter.ndim < 2 else noise  # biases and norms are 0 or 1 otherwise
            parameter.add_(scale * torch.randn_like(parameter))
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    run = RunDir(folder)
    run.create(spec)
    tensors = {f"model.{name}": tensor for name, tensor in module.state_dict().items()}
    state = {"weights": "model", "model": model_hash(spec.model)}
    save_checkpoint(run.checkpoints, Checkpoint(0, tensors, state))
    run.set_meta({"experiment": "untrained"})
    run.set_status("finished", 0)
    run.set_result({"test_accuracy": 0.8125, "num_test": 96})
    return run


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16)


@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize("name", often([*MODELS, *ROWS], "vit"))
def test_another_runtime_computes_the_logits_of_any_number_of_images(here, name, form):
    run = untrained_run(here / "run", (MODELS | ROWS)[name])
    file = f"deep/model.{form}"
    said(0, "export", "run", "--format", form, "-o", file)
    if form == "onnx":
        session = onnxruntime.InferenceSession(file)
        about = session.get_modelmeta().custom_metadata_map
        program = lambda images: torch.from_numpy(  # noqa: E731
            session.run(["logits"], {"images": images.numpy()})[0]
        )
        parts = [Path(file).read_bytes()]
    else:
        kept = {"vitcli.json": ""}
        program = torch.export.load(file, extra_files=kept).module()
        about = json.loads(kept["vitcli.json"])
        with zipfile.ZipFile(file) as archive:
            parts = [archive.read(part) for part in archive.namelist()]
    for count in (1, 5):
        pictures = images(count)
        wanted = load_model(run)(pictures)
        torch.testing.assert_close(program(pictures), wanted, atol=1e-4, rtol=0)
    assert json.loads(about["class_names"]) == list(DATA["class_names"])
    assert json.loads(about["mean"]) == list(DATA["mean"])
    folders = [str(Path(str(module.__file__)).parent).encode() for module in (torch, export)]
    assert not [folder for folder in folders for part in parts if folder in part]


def test_the_metadata_name_fields_that_change_how_values_become_pixels(here):
    data = DATA | {"name": "imagefolder:x", "channels": "pages", "levels": (0, 4095)}
    untrained_run(here / "run", MODELS["vit"], data=data)
    said(0, "export", "run", "--format", "safetensors", "-o", "model.safetensors")
    with safetensors.safe_open("model.safetensors", "pt") as content:
        how = json.loads(content.metadata()["preprocessing"])
    assert (how["channels"], how["levels"]) == ("pages", [0, 4095])
    assert "page" not in how


@pytest.mark.parametrize("name", often([*MODELS, *ROWS], "resnet18", "attention performer"))
def test_weights_are_read_back(here, name):
    """A plain ViT has the names of timm, all other models have their own."""
    run = untrained_run(here / "run", (MODELS | ROWS)[name])
    said(0, "export", "run", "--format", "safetensors", "-o", "model.safetensors")
    names = safetensors.torch.load_file("model.safetensors").keys()
    is_plain = name in ("vit", "attention softmax")
    assert ("blocks.0.norm1.weight" in names) == is_plain
    assert (names == load_model(run).state_dict().keys()) != is_plain


PLAIN = [
    {"patch_embed": "conv", "pos_embed_prefix": True, "qkv_bias": False, "layer_scale_init": 0.3},
    {"pos_embed": "sincos1d", "pos_embed_prefix": True, "reg_tokens": 2, "final_norm": False},
    {"pos_embed": "none", "norm": "rms_norm", "ffn": "relu", "pre_norm": True, "patch_bias": False},
    {"mlp_dim": 49, "embed_dim": 11, "num_heads": 1, "img_size": (16, 32), "patch_size": 8},
]
"""An MLP of 49 is special: int(11 * (49 / 11)) is 48. tests/plugins/timm has weights of timm."""


@pytest.mark.parametrize("fields", PLAIN, ids=str)
def test_timm_loads_a_plain_vit_and_computes_its_logits(here, fields):
    run = untrained_run(here / "run", changed(**fields))
    said(0, "export", "run")
    theirs = theirs_of("run.safetensors")
    ours = load_model(run)
    pictures = torch.randn(3, *ours.image_shape)
    assert ours(pictures).abs().max() > 1e-2
    torch.testing.assert_close(theirs(pictures), ours(pictures), atol=1e-5, rtol=1e-5)


def theirs_of(file: str) -> torch.nn.Module:
    with safetensors.safe_open(file, "pt") as content:
        arguments = json.loads(content.metadata()["timm"])
    theirs = timm.models.VisionTransformer(**arguments).eval()
    theirs.load_state_dict(safetensors.torch.load_file(file), strict=True)
    return theirs


def test_every_value_of_a_slot_is_plain_or_named(here):
    """The tables of slots may grow; a new row must not be taken for timm's."""
    plain = {"patch_embed": 2, "pos_embed": 4, "ffn": 2, "norm": 2}
    tables = {"patch_embed": PATCH_EMBEDS, "pos_embed": POS_EMBEDS, "ffn": FFNS, "norm": NORMS}
    for field, table in tables.items():
        reasons = [not_plain(changed(**{field: row})) for row in table]
        assert sum(reason is None for reason in reasons) == plain[field]
        assert all(reason is None or reason.startswith(f"model.{field}=") for reason in reasons)
    assert not_plain(changed(attn_mask_diagonal=True)) == "model.attn_mask_diagonal=True"


@pytest.mark.parametrize("to", ["safetensors", pytest.param("onnx", marks=pytest.mark.ci)])
def test_a_model_without_classes_is_exported_without_its_head(here, to):
    task = {"name": "mae", "decoder_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
    run = untrained_run(here / "run", changed(), task=task)
    assert document("export", "run", "--format", to)["output"] == "features"
    pictures, ours = images(), load_model(run)
    if to == "onnx":
        session = onnxruntime.InferenceSession("run.onnx")
        found = torch.from_numpy(session.run(["features"], {"images": pictures.numpy()})[0])
    else:
        found = theirs_of("run.safetensors")(pictures)
    torch.testing.assert_close(found, ours.features(pictures), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("factor", [2.0, float("nan")])
def test_a_file_that_differs_from_the_model_is_not_written(here, monkeypatch, factor):
    run = untrained_run(here / "run", changed())
    kind = export.FORMATS["safetensors"]
    loaded = load_model(run)
    wrong = replace(kind, read=lambda path, model: lambda images: factor * loaded(images))
    monkeypatch.setitem(export.FORMATS, "safetensors", wrong)
    said(6, "export", "run", "--format", "safetensors")
    assert not Path("run.safetensors").exists()
    said(0, "export", "run", "--format", "safetensors", "--no-check")


def test_the_bundled_model_is_exported_and_its_card_states_its_accuracy(here, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("no network"))
    found = document("export", "cifar10-pocket", "--format", "safetensors")
    assert found["difference"] == 0.0
    said(0, "export", "cifar10-pocket", "--format", "card", "-o", "model/README.md")
    card = ModelCard.load("model/README.md")
    (result,) = card.data.eval_results
    stated = read_record(find_run("cifar10-pocket")).result
    assert (result.metric_type, result.metric_value) == ("accuracy", stated["test_accuracy"])
    assert (result.dataset_name, result.dataset_split) == ("cifar10", "test")
    low, high = stated["accuracy_interval_95"]
    assert f"{100 * low:.2f} % to {100 * high:.2f} %" in card.text


@pytest.mark.parametrize(("headline", "has_interval"), [("accuracy", True), ("macro_f1", False)])
def test_a_card_has_an_interval_only_of_a_share_of_the_images(here, headline, has_interval):
    run = untrained_run(here / "run", changed(), task={"headline": headline})
    run.set_result({f"test_{headline}": 0.75, "num_test": 96})
    said(0, "export", "run", "--format", "card")
    assert ("95 % interval" in Path("run.md").read_text()) is has_interval


def test_a_card_has_no_folder_and_no_markup_of_names(here):
    names = ("<b>a</b>", "[b](http://c)", "`d`", "e|f", "g")
    run = untrained_run(here / "run", changed(), data=DATA | {"class_names": names})
    run.set_meta({"command": "vitcli train ../acme/x.yaml '`<b>' -o /acme/r"})
    said(0, "export", "run", "--format", "card")
    text = Path("run.md").read_text()
    assert r'"\<b\>a\</b\>", "[b\](http://c)", "\`d\`", "e\|f", "g"' in text
    assert not re.search(r"<[bi]>|b\]\(|[^\\]`d", text)
    assert ("vitcli train x.yaml" in text, "acme" in text) == (True, False)
