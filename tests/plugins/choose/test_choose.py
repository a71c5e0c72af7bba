"""`vitcli choose`: models side by side on one's own pictures, and what more pictures would add."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from experiments.statistics import more_pictures
from tests.cli import commands
from tests.cli.commands import printed, said
from tests.plugins.conftest import few_pictures as pictures
from tests.plugins.weights.importing import publish
from tests.runner.data.conftest import shoot
from vitcli.core.spec import DataSpec
from vitcli.plugins.choose.choose import divide_pictures, error_of
from vitcli.plugins.choose.curve import LearningCurve, extrapolate, fold_probes, learning_curve
from vitcli.plugins.choose.models import load_candidates
from vitcli.runner.data.folds import spread
from vitcli.runner.data.load import load_data
from vitcli.runner.text import ignore_message

__all__ = ["pictures"]
document = partial(commands.document, "choose", "imagefolder:pictures")
POCKET = "cifar10-pocket"


def test_every_model_on_this_machine_is_probed_and_the_best_can_be_tuned(
    pictures, hub, copy_of_run
):
    """A run that learned these labels is left out; the second model reads them at another size."""
    copy_of_run(Path("runs/known"))
    publish(timm.create_model("test_vit"), hub)
    found = document("--json")
    names = {row["model"] for row in found["models"]}
    assert names == {POCKET, "timm:test_vit.r160_in1k"}
    assert any("known: it, or a run before it, learned" in note for note in found["notes"])
    best, other = found["models"]
    assert found["best"] == best["model"]
    assert best["accuracy"] >= other["accuracy"]
    assert best["accuracy_interval_95"][0] < best["accuracy"] <= best["accuracy_interval_95"][1]
    assert (best["difference"], best["judgement"]) == (None, None)
    low, high = other["interval"]
    assert low < other["difference"] == other["accuracy"] - best["accuracy"] < high
    assert (other["judgement"] == "worse") == (other["p_holm"] <= 0.05)
    assert {row["num_features"] for row in found["models"]} == {64, 128}
    assert (found["num_images"], found["folds"], found["num_classes"]) == (20, 5, 2)
    assert [row["images"] for row in found["learning_curve"]] == [2, 4, 8, 16]
    low, high = found["gain_interval_95"]
    assert low <= found["gain_of_twice"] <= high
    (following,) = found["next"]
    assert found["best"] in shlex.split(following)
    said(0, *shlex.split(following)[1:], "--dry-run")


def test_a_run_of_some_of_these_pictures_takes_no_part(pictures, tiny, copy_of_run):
    """They are known by their content, wherever they were, and through all runs before a run."""
    known = copy_of_run(Path("runs/known"))
    others = Path(shutil.copytree(pictures, "others"))
    for path in others.rglob("*.png"):
        Image.open(path).rotate(180).save(path)
    new = pictures / "train" / "dark" / "new.png"
    Image.open(new.with_name("0.png")).rotate(90).save(new)
    for name, data in (("others", "imagefolder:others/"), ("drawn", "gratings")):
        words = ["train", "tiny.yaml", "--data", data, "--epochs", 1, "--limit-batches", 1]
        said(0, *words, "--name", name)
        said(0, *words, "--name", f"{name}-after", "--init", "known")
    data = load_data(DataSpec(name="imagefolder:pictures"))

    def learned(*names: str) -> list[bool | None]:
        models = load_candidates(names, {}, True, ignore_message)
        return [model.has_learned(data) for model in models]

    names = "known", "others", "others-after", "drawn", "drawn-after"
    assert learned(*names) == [True, False, True, False, True]
    (known / "split.json").unlink()
    assert learned(*names) == [None, False, True, False, None]
    shutil.rmtree(known)
    assert learned(*names[1:]) == [False, True, False, None]
    notes = document("--models", "drawn-after", "--json")["notes"]
    assert any("drawn-after does not say which" in note for note in notes)


def test_a_run_that_cannot_be_read_is_left_out_unless_it_is_named(pictures, tiny, copy_of_run):
    run = copy_of_run(Path("runs/broken"), {"train.epochs": 1})
    shutil.rmtree(run / "checkpoints")
    pages = Path(shutil.copytree(pictures, "pages"))
    for path in pages.rglob("*.png"):
        with Image.open(path) as image:
            image.save(path.with_suffix(".tif"), save_all=True, append_images=[image])
        path.unlink()
    words = ["--data", "imagefolder:pages", "-s", "data.page=1", "--epochs", 1]
    said(0, "train", tiny, *words, "--limit-batches", 1, "--name", "deep")
    found = document("--json")
    assert [row["model"] for row in found["models"]] == [POCKET]
    for name, reason in (("broken", "checkpoint"), ("deep", "no page 1")):
        assert any(f"{name}: " in note for note in found["notes"])
        assert reason in said(4, "choose", "imagefolder:pictures", "--models", name)


def test_the_command_that_tunes_keeps_the_fields_of_the_data(pictures):
    group = ["-s", "data.group=(.*)"]
    (following,) = document("--models", POCKET, *group, "--json")["next"]
    assert following == "vitcli data check imagefolder:pictures", "a training would refuse them"
    shutil.move("pictures", "my pictures")
    words = ["choose", "imagefolder:my pictures", "--models", POCKET, "--fit", "pad", "--json"]
    words += ["-s", "data.folds=4", "-s", "data.channels=grey", "--limit-batches", 1]
    (following,) = json.loads(printed(*words))["next"]
    config = json.loads(printed(*shlex.split(following)[1:], "--dry-run", "--json"))["config"]
    fields = [config["data"][name] for name in ("fit", "channels", "folds")]
    assert fields == ["pad", "grey", None]
    assert config["train"]["init"] == POCKET


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["imagefolder:pictures", "--models", ""], 2, "--models"),
        (["imagefolder:pictures", "--models", f"{POCKET},,x"], 2, "--models"),
        (["imagefolder:pictures", "--models", "nothing"], 4, "no run is called 'nothing'"),
        (["imagefolder:pictures", "--models", "timm:test_vitt"], 2, "did you mean 'test_vit'"),
        (["imagefolder:pictures", "--models", "timm:test_vit"], 4, "download has about 1.5 MB"),
        (["imagefolder:pictures", "-s", "model.depth=3"], 2, "model.depth"),
        (["imagefolder:pictures", "-s", "data.resize=64"], 2, "data.resize"),
        (["imagefolder:pictures", "-s", "data.fold=3"], 2, "data.fold"),
        (["imagefolder:pictures", "-s", "data.folds=2"], 2, "data.folds"),
        (["imagefolder:pictures", "-s", "data.folds=11"], 4, "has only 10 different images"),
        (["imagefolder:nowhere"], 4, "nowhere"),
        (["pictures"], 2, "imagefolder:pictures"),
        (["cifar10"], 4, "cifar10 is not in"),
    ],
)
def test_bad_input_is_one_line(words, code, part, pictures, hub):
    talk = said(code, "choose", *words)
    assert part in talk
    assert sum("error" in line for line in talk.splitlines()) == 1


def test_a_damaged_picture_is_refused_or_left_out(pictures):
    (pictures / "train" / "dark" / "0.png").write_bytes(b"")
    words = ["choose", "imagefolder:pictures", "--models", POCKET]
    assert "train/dark/0.png" in said(4, *words)
    found = json.loads(printed(*words, "--skip-bad", "--json"))
    assert found["num_images"] == 19
    assert "skip_bad" in found["next"][0]


def test_with_few_pictures_of_a_class_the_answer_says_how_many_a_curve_needs(pictures):
    for row in (8, 9):
        (pictures / "train" / "dark" / f"{row}.png").unlink()
    out = " ".join(printed("choose", "imagefolder:pictures", "--models", POCKET).split())
    assert "class 'dark' has 8 different images or groups" in out
    assert "add 2 to it, or move its folder away" in out


def test_each_size_shows_the_same_pictures_in_the_same_order(pictures):
    specs = [DataSpec(name=f"imagefolder:{pictures}", resize=side) for side in (8, 16)]
    small, large = map(load_data, specs)
    divided = divide_pictures(small, small.spec, 5, None, None)
    again = divided.seen_by(large)
    assert again.names == divided.images.names != large.train.names
    assert again.labels.equal(divided.images.labels)
    assert again.pixels.shape[-1] == 16


def test_a_group_is_in_one_fold(pictures):
    data = load_data(DataSpec(name=f"imagefolder:{pictures}", group=r"(.*/\d)"))
    divided = divide_pictures(data, data.spec, 4, None, None)
    parts: dict[str, set[int]] = {}
    for name, part in zip(divided.images.names, divided.parts.tolist(), strict=True):
        group = re.search(r"(\w+/\d)", name.partition("/")[2])
        assert group
        parts.setdefault(group[0], set()).add(part)
    assert len(parts) == 20
    assert all(len(folds) == 1 for folds in parts.values())


def test_copies_are_in_one_fold_although_another_class_looks_alike(pictures):
    shoot(pictures / "train", {"fox": (2,) * 10, "empty": (20,)}, "noise")
    shoot(pictures / "test", {"fox": (1,), "empty": (1,)}, "copy")
    notes = document("--models", POCKET, "--json")["notes"]
    assert "Copies are in one fold, except some in 'empty'" in str(notes)
    data = load_data(DataSpec(name=f"imagefolder:{pictures}"))
    divided = divide_pictures(data, data.spec, 4, None, None)
    assert divided.unlinked == ["empty"]
    parts = dict(zip(divided.images.names, divided.parts.tolist(), strict=True))
    for scene in range(10):
        assert parts[f"train/fox/{scene}-0.png"] == parts[f"train/fox/{scene}-1.png"]


def drawn(count: int, known: float, width: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Features that name each image, and say its label if they are ``known``."""
    random = torch.Generator().manual_seed(0)
    features, labels = torch.randn(count, width, generator=random), torch.arange(count) % 2
    return features + known * labels[:, None], labels


@pytest.mark.parametrize(("known", "low", "high"), [(0.0, 0.35, 0.65), (3.0, 0.0, 0.02)])
def test_no_probe_has_seen_the_images_that_it_is_asked_about(known, low, high):
    """With more features than images, a probe knows each image by heart that it has seen."""
    features, labels = drawn(160, known)
    groups = np.arange(160)
    draws = [bytes([row]) for row in range(160)]
    parts = spread(groups, labels.tolist(), draws, 5)
    probes = fold_probes(features, labels, parts, 2)
    curve = learning_curve(features, labels, groups, parts, probes)
    np.testing.assert_allclose(curve.sizes, [16, 32, 64, 128])
    assert (curve.errors.mean(0) >= low).all()
    assert (curve.errors.mean(0) <= high).all()
    assert np.isnan(curve.repeats).sum(1).tolist() == [0, 0, 2, 3]
    np.testing.assert_allclose(np.nanmean(curve.repeats, 1), curve.errors.mean(0))


def test_the_next_fold_chooses_the_penalty(monkeypatch):
    seen = []

    def spy(features, labels, num_classes, *, held_out):
        seen.append((features[:, 0].tolist(), held_out.tolist()))

    monkeypatch.setattr("vitcli.plugins.choose.curve.linear_probe", spy)
    features, parts = torch.arange(6.0)[:, None], torch.tensor([0, 1, 2, 0, 1, 2])
    fold_probes(features, torch.zeros(6, dtype=torch.long), parts, 1)
    assert seen == [
        ([1, 2, 4, 5], [True, False, True, False]),
        ([0, 2, 3, 5], [False, True, False, True]),
        ([0, 1, 3, 4], [True, False, True, False]),
    ]


def test_the_error_of_a_difference_is_that_of_bonett_and_price_and_groups_widen_it():
    values = np.array([1.0] * 12 + [-1.0] * 3 + [0.0] * 85)
    error = error_of(values, np.arange(100), [1, -1], 5)
    b, c, n = 13, 4, 102
    variance = ((b + c) / n - ((b - c) / n) ** 2) / n
    assert error.mean == pytest.approx((b - c) / n)
    assert error.variance == pytest.approx(1.25 * variance * n / (n - 1))
    low, high = error.interval(0.05)
    pairs = error_of(values.repeat(2), np.arange(100).repeat(2), [1, -1], 5)
    alone = error_of(values.repeat(2), np.arange(200), [1, -1], 5)
    assert high - low < 1.1 * np.diff(pairs.interval(0.05))[0]
    assert np.diff(alone.interval(0.05))[0] < 0.75 * (high - low)
    same = error_of(np.zeros(20), np.arange(20), [1, -1], 5).interval(0.05)
    assert same[0] < 0 < same[1], "no difference at all is no proof that there is none"


def curve_of(law, count: int = 4000, spread_of_repeats: float = 0.0) -> LearningCurve:
    sizes = np.array([100.0, 200.0, 400.0, 800.0])
    shares = np.array([law(size) for size in sizes])
    errors = (np.arange(count)[:, None] + 0.5) / count < shares
    signs = np.array([1, -1, 1, -1]) * spread_of_repeats
    repeats = shares[:, None] + signs
    repeats[2, 2:] = repeats[3, 1:] = np.nan
    rest = {"repeats": repeats, "choices": np.full(5, shares[-1])}
    return LearningCurve(sizes=sizes, errors=errors.astype(float), **rest)


@pytest.mark.parametrize("power", [0.3, 0.5, 1.0])
def test_a_power_law_is_continued(power):
    def law(size: float) -> float:
        return 0.05 + 0.3 * (size / 100) ** -power

    gain, (low, high) = extrapolate(curve_of(law), np.arange(4000), 1000)
    truth = law(1000) - law(2000)
    assert gain == pytest.approx(truth, rel=0.3)
    assert low < truth < high
    wide = extrapolate(curve_of(law, spread_of_repeats=0.02), np.arange(4000), 1000)[1]
    assert wide[1] - wide[0] > high - low, "training images that differ much tell less"


def test_images_of_one_group_count_once_and_an_unsure_penalty_widens():
    once = curve_of(lambda size: 0.4)
    errors = np.random.default_rng(0).random((200, 4)) < 0.4
    once = replace(once, errors=errors.astype(float))
    twice = replace(once, errors=once.errors.repeat(2, 0))
    unsure = replace(once, choices=np.array([0.3, 0.5, 0.4, 0.4, 0.4]))
    alone, paired = np.arange(200), np.arange(200).repeat(2)
    cases = (once, alone), (twice, paired), (twice, np.arange(400)), (unsure, alone)
    widths = [np.diff(extrapolate(curve, groups, 1000)[1])[0] for curve, groups in cases]
    assert widths[1] == pytest.approx(widths[0], rel=0.05)
    assert widths[2] < 0.8 * widths[0]
    assert widths[3] > 1.5 * widths[0]


@pytest.mark.parametrize("error", [0.0, 0.4])
def test_a_flat_curve_promises_nothing(error):
    gain, (low, high) = extrapolate(curve_of(lambda size: error), np.arange(4000), 1000)
    assert gain == pytest.approx(0, abs=0.003)
    assert low <= 0 <= high


def test_the_committed_draws_hold_and_short_ones_agree():
    stored = json.loads(more_pictures.RESULT.read_text())
    every = stored["results"]["all"]
    assert every["draws"] >= 40
    assert every["interval holds"] >= 0.9
    assert abs(every["predicted gain"] - every["real gain"]) < 0.01
    assert max(stored["false differences"].values()) <= 0.06
    case = drawn(400, 0.15, width=20)
    row = more_pictures.measure(case, 60, seed=0)
    assert row
    assert row["low"] < row["truth"] < row["high"]
    assert more_pictures.measure(case, 16, seed=0) is None
    assert more_pictures.false_differences("ridge regression", 12, 60) <= 0.15
