"""Models and weights of timm in every command: train, import, attn-map; and the refusals.

The family timm is trained, resumed, measured, mapped and exported. ``import timm:NAME`` and
``attn-map FILE`` read weights of timm, and nothing in their place.
"""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors import safe_open

from tests.cli.commands import document, printed, said, save_picture, vitcli
from tests.cli.importing import publish, same_logits, save
from tests.core.models.test_timm_model import LARGE
from tests.same_run import assert_same_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights import timm_model, timm_weights

ALWAYS = ("test_vit",)
OFTEN = ("test_convnext", "test_vit3", "test_resnet")
NAMES = [
    *ALWAYS,
    *(pytest.param(name, marks=pytest.mark.ci) for name in OFTEN),
    *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE),
]


def family(name: str, *fields: str) -> list[str]:
    """The words that choose a model of timm."""
    chosen = ("model.family=timm", f"model.name={name}", "optim.name=adamw", *fields)
    return [word for field in chosen for word in ("-s", field)]


def run_of(*words: object) -> RunDir:
    """Type a command that trains into runs/NAME, and return the run."""
    said(0, *words)
    return RunDir(Path("runs") / str(words[words.index("--name") + 1]))


@pytest.fixture
def hub(here, monkeypatch) -> Path:
    """Return the folder of the Hub's cache, which is empty."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here / "hub"))
    return here / "hub"


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_timm_is_trained_resumed_mapped_and_exported(name, pictures, here):
    size, count = (224, 4) if name in LARGE else (32, 20)
    words = ["train", "quickstart", "--data", f"imagefolder:{pictures}", "--epochs", 2]
    words += family(
        name, f"data.resize={size}", f"train.batch_size={count}", "optim.layer_decay=0.8"
    )
    words += ["--limit-batches", 1, "--precision", "fp32"]
    calm = run_of(*words, "--name", "calm")
    run = run_of(*words, "--name", "run", "--stop-after", 1)
    assert run.status()["state"] == "interrupted"
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
    last = run_of(*words, "d", "--init", "c")
    assert load_model(last).state_dict()["net.head.weight"].equal(own.head.weight)
    for split in ("train", "test"):
        (pictures / split / "dark").rename(pictures / split / "night")
    other = run_of(*words, "e", "--init", "c")
    assert not load_model(other).state_dict()["net.head.weight"].equal(own.head.weight)


def test_weights_of_another_model_or_damaged_ones_are_refused(pictures, here):
    words = ["train", "quickstart", "--data", f"imagefolder:{pictures}"]
    words += ["--init", save(timm.create_model("test_vit", depth=3))]
    assert "add -s model.family=timm" in said(2, *words)
    words += family("test_vit", "data.resize=32")
    for more in ([], ["--dry-run"]):
        assert "is not timm:test_vit: " in said(4, *words, *more)
    model = timm.create_model("test_vit", num_classes=2)
    torch.nn.init.constant_(model.norm.bias, float("nan"))
    save(model)
    assert "values that are not finite" in said(4, *words)
    assert not [*Path().rglob("config.yaml")]


REFUSED = {
    ("hf-hub:timm/resnet18",): "has no model",
    ("test_vit", "model.depth=3"): "family 'timm' has no depth",
    ("test_vit", "model.num_classes=0"): "num_classes: ",
    ("test_resnet", "train.accumulate=2"): "batch norm",
    ("pit_ti_224", "train.grad_checkpointing=true"): "pit_ti_224",
    ("test_vit", "task.name=mae"): "family 'timm'",
}


@pytest.mark.parametrize("given", REFUSED)
def test_a_wrong_name_or_field_is_one_line_before_any_picture_is_read(given, here):
    talk = said(2, "train", "quickstart", *family(*given))
    assert (REFUSED[given] in talk, talk.count("error:")) == (True, 1), talk


def test_without_timm_a_line_says_what_to_install(here, monkeypatch):
    monkeypatch.setattr("vitcli.runner.experiment.family.find_spec", lambda name: None)
    talk = said(2, "train", "quickstart", *family("test_vit"))
    assert "pip install '.[timm]'" in talk


SMALL = ("-s", "model.patch_size=4")
AS_IN_TIMM = ("-s", "model.patch_size=16", "-s", "data.resize=160")
"""The size of timm's test_vit: 160x160 pixels in patches of 16x16."""


def theirs(**options) -> torch.nn.Module:
    """timm's model with random weights, also where timm starts with zeros."""
    model = timm.create_model("test_vit", **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.fixture
def variant(monkeypatch):
    """Return a function that gives timm's test_vit other arguments, as another name would have."""

    def change(**options) -> None:
        build = timm_model.build_timm
        changed = lambda name, **others: build(name, **options, **others)  # noqa: E731
        monkeypatch.setattr(timm_weights, "build_timm", changed)

    return change


def test_init_takes_model_size_and_normalisation_from_weights_of_timm(pictures, here, hub):
    """An experiment from scratch takes no other model; a dry run makes no run of the weights."""
    publish(theirs(num_classes=5), hub)
    words = ("train", "finetune", "--data", f"imagefolder:{pictures}", "--epochs", "0")
    words += ("--init", "timm:test_vit", "-s", "data.resize=80")
    init = document(*words, "--dry-run")["config"]["train"]["init"]
    assert not Path("runs").exists()
    said(0, *words, "--name", "run")
    run = RunDir(Path("runs/run"))
    spec, first = run.spec(), RunDir(Path("runs") / init)
    assert (spec.train.init, first.exists) == (init, True)
    assert (spec.model.depth, spec.model.patch_size) == (len(theirs().blocks), 16)
    assert spec.model.drop_path == load_experiment("finetune").spec.model.drop_path
    assert spec.data.resize == (80, 80), "typed, where the weights expect 160 pixels"
    assert list(spec.data.mean) == list(timm.create_model("test_vit").pretrained_cfg["mean"])
    own, other = (load_model(str(each.path)).state_dict() for each in (run, first))
    same = [name for name, tensor in own.items() if tensor.equal(other[name])]
    assert {*own} - {*same} == {"head.weight", "head.bias", "pos_embed.table"}
    assert own["head.weight"].shape[0] == 2
    data = {row["name"]: row["data"] for row in document("runs", "ls")}
    assert data == {init: None, "run": f"imagefolder:{pictures}"}
    said(2, "train", "quickstart", *words[2:6], "--init", "timm:test_vit")
    talk = said(2, *words[:6], "--init", save(theirs()))
    assert "vitcli import vit.safetensors EXPERIMENT" in talk


SWIGLU = timm.layers.SwiGLUPacked
VARIANTS = [
    {},
    {"pre_norm": True, "norm_layer": "rmsnorm"},
    {"no_embed_class": True, "reg_tokens": 4, "init_values": 0.1},
    {"global_pool": "avg", "class_token": False, "fc_norm": False, "qkv_bias": False},
    {"act_layer": "relu", "mlp_ratio": 2.0, "norm_layer": partial(torch.nn.LayerNorm, eps=1e-3)},
    {"mlp_layer": SWIGLU, "act_layer": "silu", "pos_embed": "none", "final_norm": False},
]


@pytest.mark.parametrize(
    "options",
    [*VARIANTS[:2], *(pytest.param(each, marks=pytest.mark.ci) for each in VARIANTS[2:])],
    ids=lambda options: " ".join(options) or "plain",
)
def test_a_model_of_timm_travels_there_and_back(tiny, here, variant, options):
    variant(**options)
    name, model = "test_vit", theirs(num_classes=2, **options)
    file = save(model)
    talk = said(0, "import", f"timm:{name}", "--weights", file, tiny, "-o", "mine", *AS_IN_TIMM)
    assert ("resized" in talk, "dropped" in talk) == (False, False), talk
    ours, images = load_model("mine"), torch.randn(1, 3, 160, 160)
    torch.testing.assert_close(ours(images), model(images), atol=1e-5, rtol=1e-5)
    config = model.pretrained_cfg
    data = json.loads((Path("mine") / "meta.json").read_text())
    assert (data["imported"], data["timm"]) == (file, name)
    assert tuple(RunDir(Path("mine")).spec().data.mean) == config["mean"]
    said(0, "export", "mine", "--format", "safetensors", "-o", "back.safetensors")
    if {"norm_layer", "mlp_layer"} & options.keys() and "pre_norm" not in options:
        return  # these have no plain name in timm
    back = timm.create_model(name, num_classes=2, **options).eval()
    back.load_state_dict(safetensors.torch.load_file("back.safetensors"), strict=True)
    torch.testing.assert_close(back(images), model(images), atol=1e-5, rtol=1e-5)


def test_timm_resizes_patches_and_positions_and_each_is_reported(tiny, here):
    file = save(theirs(num_classes=2))
    words = ("import", "timm:test_vit", "--weights", file, tiny, "-o", "mine")
    lines = said(0, *words).splitlines()
    assert "resized: pos_embed (1, 101, 64) -> (1, 5, 64)" in lines
    assert "resized: patch_embed.proj.weight (64, 3, 16, 16) -> (64, 3, 4, 4)" in lines
    sizes = {"img_size": 8, "patch_size": 4, "num_classes": 2}
    overlay = {"file": file, "num_classes": 2}
    wanted = timm.create_model("test_vit", True, pretrained_cfg_overlay=overlay, **sizes)
    same_logits("mine", wanted.eval())


@pytest.mark.parametrize("classes", [7, 0])
def test_a_head_for_other_classes_is_dropped_aloud_and_can_be_trained(tiny, here, classes):
    file = save(theirs(num_classes=classes))
    words = ("import", "timm:test_vit", "--weights", file, tiny, "-o", "mine", *SMALL)
    code, out, talk = vitcli(*words)
    assert (code, "the head for 2 classes is new" in talk) == (0, True), talk
    assert ("dropped: head.weight (7, 64), head.bias (7,)" in talk) == (classes == 7)
    following = out.splitlines()[-1].removeprefix("next           vitcli ")
    save_picture("x.png", (8, 8))
    for reader in ("eval", "predict", "attn-map"):
        talk = said(0, reader, "mine", *(["x.png"] if reader != "eval" else []))
        assert talk.count("its head was never trained") == 1
    talk = said(4, "export", "mine", "--format", "card", "-o", "card.md")
    assert talk.endswith(f": vitcli {following}\n")
    if classes:
        said(0, *shlex.split(following), "--epochs", 1, "--limit-batches", 1)
    kept = load_model("mine").state_dict()["blocks.3.ffn.inner.fc1.weight"]
    assert kept.equal(safetensors.torch.load_file(file)["blocks.3.mlp.fc1.weight"])


def test_a_refusal_names_the_part(tiny, here):
    file = save(theirs())
    for source, code, message in (
        ("timm:test_vit2", 4, "global_pool='avg'"),
        ("timm:vit_tiny_patch16_224", 4, "is not timm:vit_tiny_patch16_224: blocks.6.norm1.weight"),
        ("timm:vit_medium_patch16_gap_240", 4, "gap_240: timm says"),
        ("vit.safetensors", 2, "--weights vit.safetensors"),
        ("timm:test_vit -s model.depth=3", 2, "model.depth=3"),
    ):
        words = (*source.split(), "--weights", file, tiny, "-o", "mine", *SMALL)
        assert message in said(code, "import", *words)
        assert not Path("mine").exists()


def test_a_download_that_fails_is_one_line(tiny, monkeypatch, hub):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("VITCLI_OFFLINE", "0")
    talk = said(4, "import", "timm:test_vit", tiny, "-o", "mine", *SMALL)
    assert ("its weights cannot be downloaded" in talk, talk.count("\n")) == (True, 1), talk


def weights_of_first_block(model: Any, images: torch.Tensor) -> torch.Tensor:
    """The attention (B, h, N, N) that timm's first block drops nothing of."""
    attention, found = model.blocks[0].attn, []
    attention.fused_attn = False
    attention.attn_drop.register_forward_hook(lambda _, given, __: found.append(given[0]))
    model(images)
    return found[0].detach()


@pytest.mark.parametrize("options", [{}, {"num_classes": 7, "pre_norm": True}])
def test_maps_of_weights_are_timms_attention(here, variant, options):
    """Of a classifier, and of an encoder such as CLIP's."""
    model = theirs(**options)
    variant(**{key: value for key, value in options.items() if key == "pre_norm"})
    picture = save_picture("x.png", (160, 160))
    words = ("attn-map", "timm:test_vit", picture, "--weights", save(model))
    out = printed(*words, "--method", "raw", "--layer", 1, "-o", "x.npz")
    config = model.pretrained_cfg
    pixels = torch.from_numpy(np.array(Image.open(picture))).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(config[k])[None, :, None, None] for k in ("mean", "std"))
    wanted = weights_of_first_block(model, (pixels - mean) / std)
    with np.load("x.npz") as file:
        assert file["num_prefix_tokens"] == 1
        found = torch.from_numpy(file["maps"]).view_as(wanted)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert (" %  x.npz" in out) == (options == {}), "timm has no names for the classes"
    assert not Path("runs").exists(), "the import stays in memory"
