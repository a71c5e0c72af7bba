"""`vitcli import` of files: hostile ones run nothing, and each refusal says what the file is."""

import argparse
import errno
import io
import os
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.cli.commands import said, save_picture, vitcli
from tests.cli.importing import FIELDS, State, same_logits, save, theirs
from vitcli.runner.evaluate import predict
from vitcli.runner.files import commit_json
from vitcli.runner.weights.unpickle import REFUSED, check_archive, find_state


class Canary:
    """Would make a file, were it unpickled."""

    def __reduce__(self):
        return os.system, ("touch canary",)


def saved(value: object, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def zipped(parts: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


def with_pickle(content: bytes) -> bytes:
    """An archive whose data.pkl is this."""
    return zipped({"archive/data.pkl": content, "archive/version": b"3\n"})


def deflated(content: bytes) -> bytes:
    """The same archive with compressed parts."""
    old = zipfile.ZipFile(io.BytesIO(content))
    return zipped({name: old.read(name) for name in old.namelist()}, zipfile.ZIP_DEFLATED)


def saved_before_torch_1_6(protocol: int = 2) -> bytes:
    how = {"_use_new_zipfile_serialization": False, "pickle_protocol": protocol}
    return saved({"weight": torch.zeros(2)}, **how)


def flipped() -> bytes:
    """An archive with one bit of a tensor changed."""
    content = saved({"weight": torch.full((8,), 1.5)})
    place = content.index(torch.full((8,), 1.5).numpy().tobytes())
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


HOSTILE = {
    "canary": saved({"weight": Canary()}),
    "marks": with_pickle(b"\x80\x02" + b"(" * (3 << 20) + b"."),
    "nested": with_pickle(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
}
NO_ARCHIVES = {
    "bare pickle": pickle.dumps({"weight": Canary()}),
    "deflated": deflated(saved({"weight": torch.zeros(64 << 18)})),
    "large pickle": with_pickle(b"\x80\x02" + b"N0" * (9 << 20) + b"N."),
}
WITH_OPTIONS = {"weight": torch.zeros(2), "args": argparse.Namespace(lr=1)}
FORGED = "\x1b[1mstem\nerror: forged"
STARTS = {
    "empty": (b"", "is empty"),
    "cut": (saved({"weight": torch.zeros(100)})[:-40], "cut short"),
    "text": (b"name: tiny\n", "not a weights file"),
    "safetensors": (safetensors.torch.save({}), "end with .safetensors"),
    "old": (saved_before_torch_1_6(), "torch.save(torch.load(OLD, "),
    "old, framed": (saved_before_torch_1_6(4), "torch.save(torch.load("),
    "flipped": (flipped(), "fails its checksum"),
    "options": (saved(WITH_OPTIONS), "'args' is no tensor (Namespace)"),
    "a list": (saved([torch.zeros(2)]), "a list"),
    "sparse": (saved({"weight": torch.eye(2).to_sparse()}), "weight is sparse"),
    "pickle": (pickle.dumps({"weight": 1}), "a pickle, but not one of torch.save"),
    "model": (saved(theirs()), "a model object"),
    "short.safetensors": (safetensors.torch.save({"x": torch.ones(9)})[:-4], "cut short"),
    "none.safetensors": (safetensors.torch.save({}), "holds no tensors"),
    "forged.safetensors": (safetensors.torch.save({FORGED: torch.zeros(2)}), "[1mstem?error:"),
}
"""Content of a file, and what the refusal says; a name without a suffix ends with .pt."""


def refused(file: str, tiny: Path, *words: str) -> str:
    """Return the line in which an import is refused, which leaves no run."""
    talk = said(REFUSED, "import", file, tiny, "-o", "mine", *words)
    assert (talk.count("\n"), "\x1b" in talk, Path("mine").exists()) == (1, False, False), talk
    return talk


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_and_run_nothing(tiny, here, name):
    (here / "vit.pt").write_bytes(HOSTILE[name])
    assert refused("vit.pt", tiny).startswith("error: vit.pt: refused: ")
    assert not Path("canary").exists()


@pytest.mark.parametrize("name", NO_ARCHIVES)
def test_what_torch_save_never_writes_is_refused_before_it_is_read(here, name):
    (here / "vit.pt").write_bytes(NO_ARCHIVES[name])
    refused = pytest.raises(ValueError, match=r"torch\.save|larger|data\.pkl")
    with open(here / "vit.pt", "rb") as file, refused:
        check_archive(file)


@pytest.mark.parametrize("name", STARTS)
def test_a_file_without_whole_weights_is_refused_with_what_it_is(tiny, here, reads_here, name):
    content, message = STARTS[name]
    file = f"vit{Path(name).suffix or '.pt'}"
    (here / file).write_bytes(content)
    assert message in refused(file, tiny)


def test_what_holds_no_weights():
    deep = {"model": {"model": {"model": {"model": {"model": {"x": 1}}}}}}
    for each in ({}, {"epoch": 3}, {3: torch.zeros(2)}, deep):
        with pytest.raises(ValueError, match=r"keys|not text|no dict of tensors"):
            find_state(each)


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


OTHERS = {"head.mlp.0.weight": torch.ones(3, 3), "centre.ema": torch.tensor(0)}
OPTIONS = argparse.Namespace(lr=1e-3, model="vit_x", crops=[1, 2])


def dino(raw: State, ema: State) -> dict[str, Any]:
    both = {"student": prefixed("module.backbone.", raw), "teacher": prefixed("backbone.", ema)}
    return both | {"teacher": both["teacher"] | OTHERS, "args": OPTIONS}


CHECKPOINTS: dict[str, tuple[Callable[[State, State], Any], str]] = {
    "deit": (lambda raw, ema: {"model": raw, "model_ema": ema, "args": OPTIONS}, "'model_ema'"),
    "ema": (lambda raw, ema: {"model": raw, "ema": {"decay": 0.9, "model": ema}}, "'ema'"),
    "dino": (dino, "'teacher'"),
    "one dict": (
        lambda raw, ema: {"state_dict": prefixed("student.", raw) | prefixed("teacher.", ema)},
        "student.",
    ),
    "no average": (lambda raw, ema: {"model": ema, "ema": {"decay": 0.9}, "args": OPTIONS}, ""),
    "metrics": (
        lambda raw, ema: {"state_dict": OTHERS | prefixed("model.", ema), "loops": {}},
        "left out",
    ),
    "params": (lambda raw, ema: {"params": ema}, ""),
    "a wrapper": (lambda raw, ema: prefixed("vit.", ema), ""),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_averaged_weights_are_read_and_what_is_not_read_is_named(tiny, here, reads_here, name):
    make, told = CHECKPOINTS[name]
    model = theirs()
    raw = {key: torch.full_like(tensor, 0.5) for key, tensor in model.state_dict().items()}
    torch.save(make(raw, dict(model.state_dict())), here / "vit.pth")
    talk = said(0, "import", "vit.pth", tiny, "-o", "mine", *FIELDS)
    notes = [line for line in talk.splitlines() if line.startswith("note: vit.pth")]
    count = {"": 0, "'teacher'": 2}.get(told, 1)  # the teacher, and the tensors beside it
    assert (len(notes), told in "".join(notes)) == (count, True), talk
    same_logits("mine", model)


BIAS = "head.bias has "


@pytest.mark.parametrize(
    ("told", "change"),
    [
        (f"{BIAS}numbers of the type int8", {"head.bias": torch.ones(2, dtype=torch.int8)}),
        (f"{BIAS}values that are not finite", {"head.bias": torch.tensor([1e300, 0]).double()}),
        (f"{BIAS}values that are not finite", {"head.bias": torch.full((2,), torch.nan)}),
        *(("''", {"": torch.ones(2)}), ("left., right.", {})),
    ],
)
def test_tensors_that_the_model_cannot_have_are_refused(tiny, here, told, change):
    """Also two models of which none is an average."""
    state = theirs().state_dict()
    state = state | change if change else prefixed("left.", state) | prefixed("right.", state)
    state = {name: tensor.clone() for name, tensor in state.items()}
    safetensors.torch.save_file(state, "vit.safetensors")
    assert told in refused("vit.safetensors", tiny, *FIELDS)


@pytest.mark.parametrize(
    ("mean", "model"),
    [
        *((mean, "{}") for mean in ("[1, 2", '"abc"', "[1e999, 0, 0]")),
        *(("[0, 0, 0]", model) for model in ('{"num_heads": ["x"]}', '{"norm_eps": {}}')),
    ],
)
def test_damaged_metadata_of_an_export_is_refused(tiny, here, mean, model):
    """Also if the experiment has a mean of its own."""
    metadata = {"vitcli": "1", "model": model, "mean": mean, "std": "[1, 1, 1]"}
    safetensors.torch.save_file(theirs().state_dict(), "vit.safetensors", metadata)
    own = ("-s", "data.mean=[0.5, 0.5, 0.5]", "-s", "data.std=[1, 1, 1]")
    assert "metadata" in refused("vit.safetensors", tiny, *FIELDS, *own)


def test_logits_that_are_not_finite_are_an_error_in_one_line(tiny, here, monkeypatch):
    """The weights of the run are finite."""
    model = theirs()
    torch.nn.init.constant_(model.get_parameter("head.weight"), 3e38)
    said(0, "import", save(model), tiny, "-o", "mine", *FIELDS)
    for name in ("x.png", "y.png"):
        save_picture(name, (8, 8))
    for words in (
        ["eval", "mine"],
        ["predict", "mine", "x.png", "--json"],
        ["attn-map", "mine", "x.png", "-o", "map.png"],
        ["attn-map", "mine", "x.png", "-o", "map.html", "--live"],
    ):
        code, out, talk = vitcli(*words)
        assert (code, out, talk.endswith(": a logit is infinite or NaN\n")) == (4, "", True), talk
    assert not [*Path().glob("map.*")]
    found = torch.tensor([[0.0, 1], [torch.inf, 0]])
    monkeypatch.setattr(predict, "logits_and_labels", lambda *_: (found, None))
    said(3, "predict", "mine", "x.png", "y.png")


def test_features_that_are_not_finite_are_not_explained(tiny, here):
    model = theirs()
    torch.nn.init.constant_(model.blocks[1].mlp.fc2.weight, 3e38)
    said(0, "import", save(model), tiny, "-o", "mine", *FIELDS)
    assert "mine: a feature of the model is infinite" in said(4, "explain", "scale", "mine")


def test_a_disk_that_is_full_at_any_moment_leaves_nothing_of_an_import(tiny, here, monkeypatch):
    file, real, done, room = save(theirs()), os.replace, [], [0]

    def replace(source, target):
        if len(done) == room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(target)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for limit in range(20):
        done.clear()
        room[0] = limit
        code, _, talk = vitcli("import", file, tiny, "-o", "mine", *FIELDS)
        if code == 0:
            break
        assert (code, "No space left" in talk, talk.count("error:")) == (5, True, 1), talk
        assert not Path("mine").exists()
    assert Path(done[-1]).name == "config.yaml", "before, the folder is not a run"
    assert limit > 4
    said(0, "runs", "verify", "mine")


def test_an_import_that_was_killed_is_not_a_run_and_does_not_block_the_next(
    tiny, here, monkeypatch
):
    def refuse(*_, dir: Path, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    words = ("import", save(theirs()), tiny, "-o", "mine", *FIELDS)
    Path("mine/checkpoints/0").mkdir(parents=True)
    commit_json(Path("mine/meta.json"), {"imported": "vit.safetensors"})
    assert "not a run folder" in said(4, "eval", "mine")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", refuse)
        assert said(5, *words).endswith("choose another place with -o\n")
    said(0, *words)
    said(0, "runs", "verify", "mine")
    shutil.rmtree("mine/checkpoints")
    assert "import them again" in said(4, "eval", "mine")
