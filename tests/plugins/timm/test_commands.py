"""Models of timm are trained, resumed, measured, mapped and exported; and the refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from safetensors import safe_open
from timm.data import ImageNetInfo

from tests.cli.commands import document, printed, said, save_picture
from tests.core.specs import noisy
from tests.plugins.conftest import few_pictures as pictures
from tests.plugins.timm.test_model import LARGE
from tests.plugins.weights.importing import publish, save
from tests.same_run import assert_same_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record

__all__ = ["pictures"]
ALWAYS = ("test_vit",)
OFTEN = ("test_convnext", "test_vit3", "test_resnet")
NAMES = [
    *ALWAYS,
    *(pytest.param(name, marks=pytest.mark.ci) for name in OFTEN),
    *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE),
]


def family(name: str, *fields: str) -> list[str]:
    chosen = ("model.family=timm", f"model.name={name}", "optim.name=adamw", *fields)
    return [word for field in chosen for word in ("-s", field)]


def run_of(*words: object) -> RunDir:
    said(0, *words)
    return RunDir(Path("runs") / str(words[words.index("--name") + 1]))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_timm_is_trained_resumed_mapped_and_exported(name, pictures, here):
    size, count = (224, 4) if name in LARGE else (32, 20)
    words = ["train", "quickstart", "--data", f"imagefolder:{pictures}", "--epochs", 2]
    words += family(name, f"data.resize={size}", f"train.batch_size={count}")
    words += ["--limit-batches", 1, "--precision", "fp32", "-s", "optim.layer_decay=0.8"]
    calm = run_of(*words, "--name", "calm")
    run = run_of(*words, "--name", "run", "--stop-after", 1)
    assert read_record(run).status == "interrupted"
    said(0, "train", "--resume", "run")
    assert_same_run(calm, run)
    said(0, "eval", "run")
    assert f"family=timm model.name={name}" in printed("runs", "ls")
    picture = pictures / "test" / "dark" / "0.png"
    has_attention, has_gradcam = LARGE.get(name, ("vit" in name, True))
    for method, works in {"raw": has_attention, "rollout": has_attention, "": has_gradcam}.items():
        chosen = ["--method", method] if method else []
        said(0 if works else 2, "attn-map", "run", picture, *chosen, "-o", "x.png")
    for form in ("safetensors", "onnx") if name not in ALWAYS else ("safetensors",):
        said(0, "export", "run", "--format", form)
    with safe_open("run.safetensors", "pt") as file:
        arguments = json.loads(file.metadata()["timm"])
    theirs = timm.create_model(**arguments).eval()
    theirs.load_state_dict(safetensors.torch.load_file("run.safetensors"))
    images = torch.randn(2, 3, size, size)
    assert theirs(images).equal(load_model("run")(images))


def test_pretrained_weights_bring_size_and_normalisation_and_need_no_network(pictures, hub):
    """From the cache of the Hub, or from a file; offline, their absence is one line."""
    words = ["train", "finetune", "--data", f"imagefolder:{pictures}", "--epochs", 0]
    words += family("test_vit", "model.pretrained=true")
    said(4, *words, "--name", "a")
    model = timm.create_model("test_vit")
    publish(model, hub)
    run = run_of(*words, "--name", "a")
    spec = run.spec()
    assert spec.data.resize == spec.model.img_size == (160, 160)
    assert (spec.data.mean, spec.data.std, spec.train.init) == ((0.5,) * 3, (0.5,) * 3, None)
    kept = load_model(run).state_dict()
    assert kept["net.blocks.3.mlp.fc1.weight"].equal(model.blocks[3].mlp.fc1.weight)
    assert kept["net.head.weight"].shape == (2, 64)
    tuned = run_of(*words, "--name", "b", "-s", "data.resize=80", "-s", "data.mean=[0,0,0]")
    assert tuned.spec().data.mean == (0, 0, 0)
    assert load_model(tuned).state_dict()["net.pos_embed"].shape == (1, 26, 64)
    own = timm.create_model("test_vit", num_classes=2)
    words += ["-s", "train.init_head=random", "--name"]
    found = load_model(run_of(*words, "c", "--init", save(own))).state_dict()
    assert all(found[f"net.{key}"].equal(value) for key, value in own.state_dict().items())


def test_the_head_of_a_file_is_brought_into_our_order_of_the_classes(pictures, here):
    """timm sorts folders naturally: class 2 comes before class 10."""
    for split in ("train", "test"):
        (pictures / split / "bright").rename(pictures / split / "10")
        (pictures / split / "dark").rename(pictures / split / "2")
    own = noisy(timm.create_model("test_vit", num_classes=2))
    words = ["train", "quickstart", "--data", f"imagefolder:{pictures}", "--epochs", 0]
    words += [*family("test_vit", "data.resize=32"), "--init", "own.safetensors", "--name"]
    rows_of = {None: [0, 1], ("10", "2"): [0, 1], ("2", "10"): [1, 0], ("a", "b"): None}
    for number, (stated, rows) in enumerate(rows_of.items()):
        metadata = {"vitcli": "1", "model": "{}", "mean": "null", "std": "null"}
        metadata |= {"class_names": json.dumps(stated)}
        safetensors.torch.save_file(own.state_dict(), "own.safetensors", metadata)
        talk = said(0, *words, f"run{number}")
        assert ("may have 2, 10" in talk, "is new" in talk) == (stated is None, rows is None)
        head = load_model(f"run{number}").state_dict()["net.head.weight"]
        assert (rows is not None and head.equal(own.head.weight[rows])) is (rows is not None)


def test_init_takes_a_model_of_timm_with_size_and_normalisation(pictures, hub):
    model = timm.create_model("test_vit")
    publish(model, hub)
    words = ["train", "quickstart", "--data", f"imagefolder:{pictures}", "--epochs", 0]
    words += ["--init", "timm:test_vit", "--name", "run"]
    spec = document(*words, "--dry-run")["config"]
    assert (spec["model"]["family"], spec["data"]["mean"]) == ("timm", [0.5] * 3)
    assert not Path("runs").exists()
    run = run_of(*words)
    assert run.spec().model.img_size == (160, 160)
    kept = load_model(run).state_dict()
    assert kept["net.blocks.3.mlp.fc1.weight"].equal(model.blocks[3].mlp.fc1.weight)


def test_published_weights_are_mapped_without_a_run(hub):
    model = noisy(timm.create_model("test_vit")).eval()
    publish(model, hub)
    picture = save_picture("x.png", (160, 160))
    (row,) = document("attn-map", "timm:test_vit", picture, "--method", "raw")["pictures"]
    pixels = torch.from_numpy(np.array(Image.open(picture))).permute(2, 0, 1)[None] / 255
    shares = model((pixels - 0.5) / 0.5).softmax(1)[0]
    names = ImageNetInfo("imagenet-1k").label_descriptions()
    assert row["class"] == names[shares.argmax()]
    assert row["probability"] == pytest.approx(shares.max().item(), rel=1e-4)
    assert not Path("runs").exists()


def test_a_model_that_timm_does_not_have_is_one_line(here):
    for name, told in {"null": "needs name", "test_vat": "no model 'test_vat'"}.items():
        assert told in said(2, "train", "quickstart", *family(name), "--dry-run")
