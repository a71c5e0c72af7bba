"""`vitcli import`: other programs' weights become a run; hostile files run nothing."""

import io
import os
import pickle
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
from vitcli.runner.weights.unpickle import REFUSED, check_archive, find_state

FIELDS = ("-s", "model.pos_embed_prefix=true", "-s", "model.pool=cls")


def vitcli(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["import", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def theirs() -> torch.nn.Module:
    """timm's model of the tiny experiment."""
    model = timm.models.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2.0, num_classes=2
    )
    scramble(model)
    return model.eval()


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
    torch.save(theirs().state_dict(), here / "vit.pt")
    code, _, talk = vitcli("vit.pt", "-e", tiny, "-o", "mine", *FIELDS, "-s", "model.depth=3")
    assert code == 4
    assert "blocks.2.attn.norm.weight is missing" in talk
    assert "and 7 more" in talk
    assert not Path("mine").exists()
    code, _, talk = vitcli("vit.pt", "-e", tiny, "-o", "mine", *FIELDS, "-s", "model.mlp_dim=20")
    assert "is (32, 16), not (20, 16)" in talk


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


HOSTILE = {
    **{how: saved({"weight": Canary(how)}) for how in ("system", "getattr")},
    "marks": with_pickle(b"\x80\x02" + b"(" * (3 << 20) + b"."),
    "nested": with_pickle(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
    "a list": saved([torch.zeros(2)]),
}
NO_ARCHIVES = {
    "bare pickle": pickle.dumps({"weight": Canary("system")}),
    "deflated": deflated(saved({"weight": torch.zeros(64 << 18)})),
    "large pickle": with_pickle(b"\x80\x02" + b"N0" * (9 << 20) + b"N."),
    "empty": b"",
    "text": b"hello",
    "cut": saved({"weight": torch.zeros(100)})[:-40],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_and_run_nothing(tiny, here, name):
    (here / "vit.pt").write_bytes(HOSTILE[name])
    code, _, talk = vitcli("vit.pt", "-e", tiny, "-o", "mine")
    assert code == REFUSED
    assert talk.startswith("error: vit.pt: refused: ")
    assert talk.count("\n") == 1
    assert not Path("mine").exists()
    assert not Path("canary").exists()


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
        ({"weight": torch.zeros(2), "name": "x"}, "its keys: name, weight"),
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
    assert vitcli("dcp", "-e", tiny, "-o", "mine")[0] == 4


def test_weights_that_are_not_finite_are_refused(tiny, here):
    state = theirs().state_dict()
    state["head.bias"][0] = float("nan")
    torch.save(state, here / "vit.pt")
    code, _, talk = vitcli("vit.pt", "-e", tiny, "-o", "mine", *FIELDS)
    assert (code, "head.bias has values that are not finite" in talk) == (4, True)
