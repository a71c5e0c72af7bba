"""`vitcli import`: other programs' weights become a run that computes the same logits."""

import re
import shlex
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

from tests.cli.commands import printed, said
from tests.cli.importing import FIELDS, same_logits, save, theirs
from vitcli.runner.evaluate.probe import probe_run
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights.class_order import fit_stated_classes
from vitcli.runner.weights.convert import tuning_command
from vitcli.runner.weights.names import naming_of


def test_a_model_of_timm_keeps_its_logits(tiny, here):
    """The file is read in a process of its own."""
    model = theirs()
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, here / "vit.pt")
    said(0, "import", "vit.pt", tiny, "-o", "mine", *FIELDS)
    same_logits("mine", model)
    assert 0 <= evaluate_run("mine").scores.accuracy <= 1
    assert 0 <= probe_run("mine", "knn").trained.accuracy <= 1
    said(2, "import", "vit.pt", tiny, "-o", "mine", *FIELDS)  # nothing is overwritten
    said(0, "runs", "verify", "mine")
    assert "--init mine" in said(2, "train", "--resume", "mine")


def test_our_own_names_in_safetensors(tiny, here):
    said(0, "import", save(theirs()), tiny, "-o", "first", *FIELDS)
    weights = load_model("first").state_dict()
    safetensors.torch.save_file(weights, here / "own.safetensors")
    out = printed("import", "own.safetensors", tiny, *FIELDS)
    assert out.splitlines()[0] == "run            runs/own"
    assert RunDir(Path("runs/own")).read("meta.json")["imported"] == "own.safetensors"
    again = load_model("own").state_dict()
    assert all(again[name].equal(weights[name]) for name in weights)


def test_another_model_is_refused_by_its_differences(tiny, here):
    """The names are those of the file, prefix included; all other shapes are counted."""
    file = save(torch.nn.ModuleDict({"module": theirs()}))
    words = (4, "import", file, tiny, "-o", "mine", *FIELDS, "-s")
    talk = said(*words, "model.depth=3")
    assert (Path("mine").exists(), "module.blocks.2.norm1.weight" in talk) == (False, True)
    assert suggested(talk) == ["-s", "model.depth=2"]
    talk = said(*words, "model.mlp_dim=20")
    assert "module.blocks.0.mlp.fc1.weight is (32, 16), the model needs (20, 16)" in talk
    assert " and 3 more\n" in talk


def suggested(talk: str) -> list[str]:
    """The options that an error suggests."""
    found = re.search(r"add: ([^;\n]*)", talk)
    assert found is not None, talk
    return found[1].split()


def test_shapes_are_compared_before_images_are_read(tiny, here):
    """CIFAR-10 is not here, which only a file that fits finds out."""
    file = save(theirs(img_size=32, num_classes=10))
    words = (4, "import", file, tiny, "-o", "mine", "-s", "data.name=cifar10")
    talk = said(*words)
    assert ("pos_embed is (1, 65, 16)" in talk, "cifar10" in talk) == (True, False), talk
    talk = said(*words, *suggested(talk))
    assert ("pos_embed" in talk, "cifar10" in talk) == (False, True), talk


NO_EMBED = {"no_embed_class": True}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"reg_tokens": 4}, ["pool=cls", "pos_embed_prefix=true", "reg_tokens=4"]),
        ({"class_token": False, "global_pool": "avg", "fc_norm": False, "depth": 3}, ["depth=3"]),
        ({"img_size": 16} | NO_EMBED, ["pool=cls", "data.resize=16"]),
        ({"patch_size": 2, "qkv_bias": False}, ["patch_size=2", "qkv_bias=false"]),
        ({"embed_dim": 32, "init_values": 0.1}, ["embed_dim=32", "layer_scale_init=1.0"]),
        ({"mlp_ratio": 3.0, "final_norm": False}, ["mlp_dim=48", "final_norm=false"]),
        ({"pre_norm": True} | NO_EMBED, ["pool=cls", "pre_norm=true", "patch_bias=false"]),
    ],
    ids=str,
)
def test_an_error_suggests_the_settings_with_which_the_model_fits(tiny, here, fields, options):
    model = theirs(**fields)
    file = save(model)
    talk = said(4, "import", file, tiny, "-o", "mine")
    words = suggested(talk)
    assert {*options} <= {word.removeprefix("model.") for word in words[1::2]}
    assert ("num_heads" in talk) == ("embed_dim" in fields)
    talk = said(0, "import", file, tiny, "-o", "mine", *words)
    assert "values from the experiment are used: model.num_heads=2, model.norm_eps=1e-06" in talk
    same_logits("mine", model, fields.get("img_size", 8))


def test_another_number_of_classes_is_named_with_a_command_that_works(tiny, here):
    """Without timm's name no new head is made, so the error names the way that makes one."""
    model = timm.create_model("test_vit", num_classes=7).eval()
    talk = said(4, "import", save(model), tiny, "-o", "mine")
    advice = talk.partition("make a new head: vitcli ")[2].replace("EXPERIMENT", str(tiny))
    advice = advice.replace("timm:NAME", "timm:test_vit")
    assert "note: the head for 2 classes is new" in said(0, *shlex.split(advice))
    talk = said(4, "import", save(theirs(num_classes=7)), tiny, "-o", "mine")
    assert "-s model" not in talk, "no setting helps"
    model = theirs()
    model.head = torch.nn.Identity()
    talk = said(4, "import", save(model), tiny, "-o", "mine", *FIELDS)
    assert "timm:NAME --weights" in talk


@pytest.mark.parametrize(
    ("kind", "fields", "part"),
    [
        ("VisionTransformer", {"global_pool": "avg"}, "fc_norm"),
        ("VisionTransformer", {"qk_norm": True}, "blocks.0.attn.q_norm"),
        ("VisionTransformerDistilled", {}, "dist_token"),
    ],
)
def test_parts_that_vitcli_lacks_are_named(tiny, here, kind, fields, part):
    """They would change the logits, so no setting is suggested."""
    file = save(theirs(getattr(timm.models.deit, kind), **fields))
    talk = said(4, "import", file, tiny, "-o", "mine", *FIELDS)
    assert (f"lack: {part}" in talk, "-s " in talk) == (True, False), talk


def test_an_experiment_that_trains_more_than_an_image_model_is_refused(here):
    for name in ("pretrain-mae", "clip"):
        assert f"error: {name} " in said(2, "import", save(theirs()), name, "-o", "mine")
        assert not Path("mine").exists()


def test_an_export_of_vitcli_states_its_settings(tiny, here):
    """Its mean and std are used, unless the experiment has its own; nothing else is missing."""
    words = ("-s", "data.mean=[0.1, 0.2, 0.3]", "-s", "data.std=[1, 2, 3]", *FIELDS)
    said(0, "import", save(theirs()), tiny, "-o", "first", *words)
    said(0, "export", "first", "--format", "safetensors")
    again = ("import", "first.safetensors", tiny, *FIELDS, "-o")
    assert "note:" not in said(0, *again, "second")
    data = RunDir(Path("second")).spec().data
    assert (data.mean, data.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    other = ("-s", "data.mean=[0.5, 0.5, 0.5]", "-s", "model.norm_eps=0.1")
    talk = said(0, *again, "third", *other)
    assert "norm_eps=0.1 (file: 1e-06), data.mean=[0.5, 0.5, 0.5] (file: [0.1, 0.2, 0.3])" in talk


def test_the_classes_of_timm_are_brought_into_our_order(tiny, here, pictures):
    """timm sorts folders naturally and without case: class 2 comes before class 10."""
    for split in ("train", "test"):
        for old, new in {"bright": "10", "dark": "2"}.items():
            (pictures / split / old).rename(pictures / split / new)
    model = theirs()
    file, images = save(model), torch.randn(3, 3, 8, 8)
    wanted = {None: [0, 1], "natural": [1, 0], "2,10": [1, 0], "10,2": [0, 1]}
    for i, (order, rows) in enumerate(wanted.items()):
        words = ["--class-order", order] if order else []
        talk = said(0, "import", file, tiny, "-o", f"mine{i}", *FIELDS, *words)
        assert ("--class-order natural" in talk) == (order is None), talk
        ours = load_model(f"mine{i}")(images)
        torch.testing.assert_close(ours, model(images)[:, rows], atol=1e-5, rtol=1e-5)
    talk = said(2, "import", file, tiny, "-o", "no", *FIELDS, "--class-order", "2,2")
    assert talk.endswith(": 10,2\n")


def test_an_export_whose_classes_have_other_names_is_told_and_may_be_ordered(tiny, here, pictures):
    said(0, "import", save(theirs()), tiny, "-o", "first", *FIELDS)
    said(0, "export", "first", "--format", "safetensors")
    for split in ("train", "test"):
        (pictures / split / "bright").rename(pictures / split / "light")
    words = ("import", "first.safetensors", tiny, *FIELDS, "-o")
    talk = said(0, *words, "second")
    assert "the head has the classes bright, dark, the data set has dark, light" in talk
    talk = said(0, *words, "third", "--class-order", "light,dark")
    assert "the head has" not in talk
    wanted, images = load_model("first"), torch.randn(3, 3, 8, 8)
    assert load_model("third")(images).equal(wanted(images)[:, [1, 0]])
    weights = {"head.weight": torch.eye(2)}
    fit_stated_classes(weights, ("dark", "light"), ("light", "dark"), print)
    assert weights["head.weight"].tolist() == [[0, 1], [1, 0]]


def test_names_of_decoders_and_the_command_that_trains_weights():
    names = ["patch_embed.proj.weight", "decoder_blocks.0.norm1.weight", "blocks.0.norm1.weight"]
    assert (naming_of(names).prefix, naming_of(names).is_timm) == ("", True)
    words = shlex.split(tuning_command(RunDir(Path("my weights/mine")), Path("my data")))
    assert {"my weights/mine/config.yaml", "my weights/mine", "my data"} <= {*words}
