"""`vitcli import`: other programs' weights become a run; hostile files run nothing."""

import argparse
import errno
import io
import os
import pickle
import re
import tempfile
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from typer.testing import CliRunner

from tests.core.models.test_parity import scramble
from vitcli.cli.main import app
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights.unpickle import REFUSED, check_archive, find_state

FIELDS = ("-s", "model.pos_embed_prefix=true", "-s", "model.pool=cls")


def vitcli(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["import", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def theirs(kind=timm.models.VisionTransformer, **fields) -> torch.nn.Module:
    """timm's model of the tiny experiment, with some fields changed."""
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = kind(**(sizes | {"mlp_ratio": 2.0, "num_classes": 2} | fields))
    scramble(model)
    return model.eval()


def save(model: torch.nn.Module) -> str:
    """Save the weights of a model in a file that no child process reads."""
    safetensors.torch.save_file(model.state_dict(), "vit.safetensors")
    return "vit.safetensors"


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_model_of_timm_keeps_its_logits(tiny, here, wrap, prefix):
    model = theirs()
    torch.save(wrap({prefix + k: v for k, v in model.state_dict().items()}), here / "vit.pt")
    code, out, talk = vitcli("vit.pt", "-e", tiny, "-o", "mine", *FIELDS)
    assert code == 0, talk
    assert out.endswith("next           vitcli eval mine\n")
    images = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(load_model("mine")(images), model(images), atol=1e-5, rtol=1e-5)
    assert 0 <= evaluate_run("mine").scores.accuracy <= 1
    assert vitcli("vit.pt", "-e", tiny, "-o", "mine", *FIELDS)[0] == 2, "nothing is overwritten"
    assert CliRunner().invoke(app, ["runs", "verify", "mine"]).exit_code == 0
    resumed = CliRunner().invoke(app, ["train", "--resume", "mine"])
    assert (resumed.exit_code, "--init mine" in resumed.stderr) == (2, True), resumed.stderr


def test_our_own_names_in_safetensors(tiny, here):
    code, _, talk = vitcli("absent.safetensors", "-e", tiny, "-o", "mine")
    assert (code, "not a file" in talk) == (4, True)
    torch.save(theirs().state_dict(), here / "vit.pt")
    assert vitcli("vit.pt", "-e", tiny, "-o", "first", *FIELDS)[0] == 0
    weights = load_model("first").state_dict()
    safetensors.torch.save_file(weights, here / "vit.safetensors")
    assert vitcli("vit.safetensors", "-e", tiny, "-o", "second", *FIELDS)[0] == 0
    again = load_model("second").state_dict()
    assert all(again[name].equal(weights[name]) for name in weights)


def test_another_model_is_refused_by_its_differences(tiny, here):
    """The names are those of the file, prefix included; all other shapes are counted."""
    file = save(torch.nn.ModuleDict({"module": theirs()}))
    code, _, talk = vitcli(file, "-e", tiny, "-o", "mine", *FIELDS, "-s", "model.depth=3")
    assert code == 4
    assert "fit the model: module.blocks.2.norm1.weight is missing; " in talk
    assert " and 9 more\n" in talk
    assert talk.endswith("add: -s model.depth=2\n")
    assert not Path("mine").exists()
    code, _, talk = vitcli(file, "-e", tiny, "-o", "mine", *FIELDS, "-s", "model.mlp_dim=20")
    assert "module.blocks.0.mlp.fc1.weight is (32, 16), the model needs (20, 16); " in talk
    assert " and 3 more\n" in talk


def test_shapes_are_compared_before_images_are_read(tiny, here):
    """CIFAR-10 is not here, which only a file that fits finds out."""
    file = save(theirs(img_size=32, num_classes=10))
    words = [file, "-e", tiny, "-o", "mine", "-s", "data.name=cifar10"]
    code, _, talk = vitcli(*words)
    assert (code, "pos_embed is (1, 65, 16)" in talk, "cifar10" in talk) == (4, True, False), talk
    code, _, talk = vitcli(*words, *suggested(talk))
    assert (code, "pos_embed" in talk, "cifar10" in talk) == (4, False, True), talk


def suggested(talk: str) -> list[str]:
    """The options that an error suggests."""
    found = re.search(r"add: ([^;\n]*)", talk)
    assert found is not None, talk
    return found[1].split()


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, ["pool=cls", "pos_embed_prefix=true"]),
        ({"reg_tokens": 4}, ["pool=cls", "pos_embed_prefix=true", "reg_tokens=4"]),
        ({"reg_tokens": 4, "no_embed_class": True}, ["pool=cls", "reg_tokens=4"]),
        ({"class_token": False, "global_pool": "avg", "fc_norm": False, "depth": 3}, ["depth=3"]),
        ({"img_size": 16, "no_embed_class": True}, ["pool=cls", "data.resize=16"]),
        ({"patch_size": 2, "no_embed_class": True}, ["pool=cls", "patch_size=2"]),
        ({"embed_dim": 32, "no_embed_class": True}, ["pool=cls", "embed_dim=32"]),
        ({"mlp_ratio": 3.0, "no_embed_class": True}, ["pool=cls", "mlp_dim=48"]),
        ({"qkv_bias": False, "no_embed_class": True}, ["pool=cls", "qkv_bias=false"]),
        ({"init_values": 0.1, "no_embed_class": True}, ["pool=cls", "layer_scale_init=1.0"]),
        ({"final_norm": False, "no_embed_class": True}, ["pool=cls", "final_norm=false"]),
        (
            {"pre_norm": True, "no_embed_class": True},
            ["pool=cls", "pre_norm=true", "patch_bias=false"],
        ),
    ],
    ids=str,
)
def test_an_error_suggests_the_settings_with_which_the_model_fits(tiny, here, fields, options):
    model = theirs(**fields)
    file = save(model)
    code, _, talk = vitcli(file, "-e", tiny, "-o", "mine")
    words = suggested(talk)
    assert (code, {word.removeprefix("model.") for word in words[1::2]}) == (4, {*options})
    assert ("num_heads" in talk) == ("embed_dim" in fields)
    code, _, talk = vitcli(file, "-e", tiny, "-o", "mine", *words)
    assert code == 0, talk
    assert "does not state these settings; values from the experiment are used: model.num_" in talk
    assert "model.num_heads=2, model.norm_eps=1e-06, data.mean=[" in talk
    images = torch.randn(3, 3, fields.get("img_size", 8), fields.get("img_size", 8))
    torch.testing.assert_close(load_model("mine")(images), model(images), atol=1e-5, rtol=1e-5)


def test_another_number_of_classes_is_named(tiny, here):
    file = save(theirs(num_classes=7))
    code, _, talk = vitcli(file, "-e", tiny, "-o", "mine")
    assert (code, "\nthe file has 7 classes, the data set has 2; if timm has" in talk) == (4, True)
    assert "-s model" not in talk, "no setting helps"


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("VisionTransformer", {"global_pool": "avg"}, "fc_norm.weight, a norm after the pooling"),
        ("VisionTransformer", {"global_pool": "map"}, "attn_pool.latent, pooling by attention"),
        ("VisionTransformer", {"qk_norm": True}, "blocks.0.attn.q_norm.weight, norms of queries"),
        ("VisionTransformerDistilled", {}, "dist_token, a distillation token"),
    ],
)
def test_parts_that_vitcli_lacks_are_named(tiny, here, kind, fields, message):
    """They would change the logits, so no setting is suggested."""
    file = save(theirs(getattr(timm.models.deit, kind), **fields))
    code, _, talk = vitcli(file, "-e", tiny, "-o", "mine", *FIELDS)
    name = message.partition(",")[0].rpartition(".")[0]
    assert (code, f"vitcli's models lack: {name}" in talk) == (4, True), talk
    assert message.partition(",")[2] in talk
    assert "-s " not in talk


def test_names_of_another_program_are_shown_on_one_line(tiny, here):
    state = {"\x1b[1mstem\nerror: forged": torch.zeros(2), "x" * 500: torch.zeros(2)}
    safetensors.torch.save_file(state, here / "cnn.safetensors")
    code, _, talk = vitcli("cnn.safetensors", "-e", tiny, "-o", "mine")
    assert (code, talk.count("\n"), "\x1b" in talk) == (4, 1, False), talk
    assert "?[1mstem?error: forged" in talk
    assert "neither those of timm's VisionTransformer" in talk
    assert len(talk) < 300


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: {"model": m, "epoch": 3}])
def test_a_pickled_model_is_refused_with_what_to_save(tiny, here, wrap):
    torch.save(wrap(theirs()), here / "whole.pt")
    code, _, talk = vitcli("whole.pt", "-e", tiny, "-o", "mine")
    assert code == REFUSED
    assert talk == (
        "error: whole.pt: refused: it holds a model object; save model.state_dict():"
        " torch.save(model.state_dict(), 'weights.pt')\n"
    )


class Canary:
    """Would make a file, were it unpickled."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self):
        code = "import pathlib; pathlib.Path('canary').touch()"
        ways = {
            "system": (os.system, ("touch canary",)),
            "eval": (eval, (f"exec({code!r})",)),
            "exec": (exec, (code,)),
            "getattr": (getattr, (Path, "cwd")),
        }
        return ways[self.how]


def deflated(content: bytes) -> bytes:
    """The same archive with compressed parts."""
    out = io.BytesIO()
    old = zipfile.ZipFile(io.BytesIO(content))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def saved(value: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def with_pickle(content: bytes) -> bytes:
    """An archive whose data.pkl is this."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


def saved_before_torch_1_6(protocol: int = 2) -> bytes:
    out, how = io.BytesIO(), {"_use_new_zipfile_serialization": False}
    torch.save({"weight": torch.zeros(2)}, out, pickle_protocol=protocol, **how)
    return out.getvalue()


def flipped() -> bytes:
    """An archive with one bit of a tensor changed."""
    content = saved({"weight": torch.full((8,), 1.5)})
    place = content.index(torch.full((8,), 1.5).numpy().tobytes())
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def exported_program() -> bytes:
    out = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(2),)), out)
    return out.getvalue()


HOSTILE = {
    **{how: saved({"weight": Canary(how)}) for how in ("system", "getattr")},
    "options": saved({"weight": torch.zeros(2), "args": argparse.Namespace(lr=1)}),
    "marks": with_pickle(b"\x80\x02" + b"(" * (3 << 20) + b"."),
    "nested": with_pickle(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
    "a list": saved([torch.zeros(2)]),
}
NO_ARCHIVES = {
    "bare pickle": pickle.dumps({"weight": Canary("system")}),
    "deflated": deflated(saved({"weight": torch.zeros(64 << 18)})),
    "large pickle": with_pickle(b"\x80\x02" + b"N0" * (9 << 20) + b"N."),
}
STARTS = {
    "empty": (b"", "the file is empty"),
    "cut": (saved({"weight": torch.zeros(100)})[:-40], "the file is cut short; copy it again"),
    "text": (b"hello", "not a weights file (.pt or .safetensors)"),
    "yaml": (b"name: tiny\n", "not a weights file (.pt or .safetensors)"),
    "jpeg": (b"\xff\xd8\xff\xe0\x00\x10JFIF", "not a weights file (.pt or .safetensors)"),
    "onnx": (b"\x08\x0a\x12\x07pytorch", "not a weights file (.pt or .safetensors)"),
    "safetensors": (safetensors.torch.save({}), "let its name end with .safetensors"),
    "old": (saved_before_torch_1_6(), "convert this older one: torch.save(torch.load(OLD, "),
    "old, framed": (saved_before_torch_1_6(4), "convert this older one: torch.save(torch.load("),
    "flipped": (flipped(), "fails its checksum; copy the file again, or save it again after to"),
    "step": (saved({"weight": torch.ones(2), "step": 5}), "'step' is no tensor (int); leave it"),
    "sparse": (saved({"weight": torch.eye(2).to_sparse()}), "weight is sparse; save it dense"),
    "pickle": (pickle.dumps({"weight": 1}), "a pickle, but not one of torch.save; save the"),
    "pt2": (exported_program(), "a program of torch.export (pt2), which has no state dict"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_and_run_nothing(tiny, here, name):
    (here / "vit.pt").write_bytes(HOSTILE[name])
    code, _, talk = vitcli("vit.pt", "-e", tiny, "-o", "mine")
    assert code == REFUSED
    assert talk.startswith("error: vit.pt: refused: ")
    assert (talk.count("\n"), "x1b" in talk) == (1, False)
    assert ("'args' is no tensor (Namespace); leave it out" in talk) == (name == "options")
    assert not Path("mine").exists()
    assert not Path("canary").exists()


@pytest.mark.parametrize("name", STARTS)
def test_a_file_without_whole_weights_is_refused_with_what_it_is(tiny, here, name):
    content, message = STARTS[name]
    (here / "vit.pt").write_bytes(content)
    code, _, talk = vitcli("vit.pt", "-e", tiny, "-o", "mine")
    assert (code, message in talk, talk.count("\n")) == (4, True, 1), talk


@pytest.mark.parametrize("name", [*NO_ARCHIVES, *HOSTILE])
def test_what_torch_save_never_writes_is_refused_before_it_is_read(here, name):
    (here / "vit.pt").write_bytes((NO_ARCHIVES | HOSTILE)[name])
    with open(here / "vit.pt", "rb") as file:
        if name in HOSTILE:
            check_archive(file)  # only its pickle is hostile
        else:
            with pytest.raises(ValueError, match=r"torch\.save|larger|data\.pkl"):
                check_archive(file)


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        ([torch.zeros(2)], "holds a list"),
        ({}, "its keys: none"),
        ({"epoch": 3}, "its keys: epoch"),
        ({"weight": torch.zeros(2), "name": "x"}, "'name' is no tensor"),
        ({3: torch.zeros(2)}, "not text"),
        ({"model": {"model": {"model": {"model": {"model": {"x": 1}}}}}}, "no dict of tensors"),
    ],
)
def test_what_holds_no_weights(saved, reason):
    with pytest.raises(ValueError, match=reason):
        find_state(saved)


def test_the_canary_sings(here):
    """A control: read by pickle itself, the file does what it is meant to do."""
    pickle.loads(pickle.dumps({"weight": Canary("system")}))
    assert Path("canary").exists()
    Path("canary").unlink()


def test_a_folder_is_refused(tiny, here):
    (here / "dcp").mkdir()
    code, _, talk = vitcli("dcp", "-e", tiny, "-o", "mine")
    assert (code, talk) == (4, "error: dcp: a folder, not a weights file\n")
    code, _, talk = vitcli("", "-e", tiny, "-o", "mine")
    assert (code, talk) == (2, "error: FILE is empty; is a shell variable unset?\n")


def test_weights_that_are_not_finite_are_refused(tiny, here):
    model = theirs()
    torch.nn.init.constant_(model.head.bias, float("nan"))
    code, _, talk = vitcli(save(model), "-e", tiny, "-o", "mine", *FIELDS)
    assert (code, "head.bias has values that are not finite" in talk) == (4, True)


def test_an_export_of_vitcli_states_its_settings(tiny, here):
    """Its mean and std are used, unless the experiment has its own; nothing else is missing."""
    words = ("-s", "data.mean=[0.1, 0.2, 0.3]", "-s", "data.std=[1, 2, 3]", *FIELDS)
    assert vitcli(save(theirs()), "-e", tiny, "-o", "first", *words)[0] == 0
    exported = CliRunner().invoke(app, ["export", "first", "--to", "safetensors"])
    assert exported.exit_code == 0, exported.stderr
    code, _, talk = vitcli("first.safetensors", "-e", tiny, "-o", "second", *FIELDS)
    assert (code, "note:" in talk) == (0, False), talk
    data = RunDir(Path("second")).spec().data
    assert (data.mean, data.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    other = ("-s", "data.mean=[0.5, 0.5, 0.5]", "-s", "model.norm_eps=0.1")
    code, _, talk = vitcli("first.safetensors", "-e", tiny, "-o", "third", *FIELDS, *other)
    assert code == 0, talk
    assert "note: the weights file states other values; values from the experiment" in talk
    assert "norm_eps=0.1 (file: 1e-06), data.mean=[0.5, 0.5, 0.5] (file: [0.1, 0.2, 0.3])" in talk


@pytest.mark.parametrize(
    ("mean", "model"),
    [
        *((mean, "{}") for mean in ("[1, 2", "[]x", '{"a": 1}', '"abc"', "[1e999, 0, 0]")),
        ("[0, 0, 0]", '{"num_heads": ["x"]}'),
        ("[0, 0, 0]", '{"norm_eps": {}}'),
    ],
)
def test_damaged_metadata_of_an_export_is_refused(tiny, here, mean, model):
    metadata = {"vitcli": "1", "model": model, "mean": mean, "std": "[1, 1, 1]"}
    safetensors.torch.save_file(theirs().state_dict(), "vit.safetensors", metadata)
    code, _, talk = vitcli("vit.safetensors", "-e", tiny, "-o", "mine", *FIELDS)
    assert (code, "metadata" in talk, talk.count("\n")) == (4, True, 1), talk


def test_a_folder_that_cannot_be_written_to_is_named(tiny, here, monkeypatch):
    def refuse(*_, dir: Path, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    code, _, talk = vitcli(save(theirs()), "-e", tiny, "-o", "mine", *FIELDS)
    reason = "cannot write to mine (Read-only file system); choose another place with -o\n"
    assert (code, talk.endswith(reason)) == (5, True), talk
