"""Every attention and family, and pixels in a memory map: continued to the same bits, and used."""

from pathlib import Path

import pytest
import torch

from tests.core.specs import REQUIRED
from tests.runner.train.conftest import often, stops_after
from tests.same_run import assert_same_run
from tests.task_table import NAMES, TinyTask, row_of
from vitcli.core.data.stored import StoredPixels, joined
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.spec import TASKS, DataSpec
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.attn_map.explain import Explainer
from vitcli.runner.data import arrays
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.predict import Predictor, classifier_of_run
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.record import read_record
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train

TEXT = """
data: {name: "imagefolder:%s", augment: {crop_padding: 1, flip: random}}
train: {epochs: 2, batch_size: 8, limit_batches: 3, ema_decay: 0.5}
"""
VIT = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "proj_drop": 0.1}
STAGED = {"patch_size": 2, "embed_dim": 12, "num_heads": 3, "mlp_ratio": 1.0, "drop_path": 0.2}
PARTS = {"train.accumulate": 2, "train.grad_checkpointing": True}
KINDS = {
    **{
        name: PARTS | {f"model.{k}": v for k, v in VIT.items()} | {"model.attention": name}
        for name in ATTENTIONS
        if name != "softmax"
    },
    **{
        name: {f"model.{k}": v for k, v in ({"family": name} | STAGED | REQUIRED[name]).items()}
        for name in ("swin", "coatnet", "pit")
    },
    "resnet18": {"model.family": "resnet18", "optim.name": "sgd", "train.limit_batches": 2},
    "convnet": {"model.family": "convnet", "model.widths": [8, 8], "optim.name": "sgd"},
}
KINDS["performer"] |= {"model.performer_redraw": 3, "optim.name": "muon"}
KINDS["swin"] |= PARTS  # batch norm wants whole batches


@pytest.mark.parametrize("kind", often(KINDS, "performer", "swin", "convnet"))
def test_a_run_stopped_inside_an_epoch_ends_with_the_same_bits(kind, pictures):
    """Optimiser, features, running statistics and batches of the chosen kinds differ."""
    Path("small.yaml").write_text(TEXT % pictures)
    changes = {k: list(v) if isinstance(v, tuple) else v for k, v in KINDS[kind].items()}
    experiment = load_experiment("./small.yaml", changes)
    calm = train(experiment, Request(output=Path("calm"))).folder
    with stops_after(2):
        train(experiment, Request(output=Path("stopped")))
    again = train(experiment, Request(output=Path("stopped"), resume=True)).folder
    assert_same_run(calm, again)
    measured, result = evaluate_run("calm"), read_record(calm).result
    assert measured.scores.accuracy == result["test_accuracy"]
    assert count_parameters(measured.trained.module) == result["parameters"]
    prediction = classifier_of_run(calm)(next((pictures / "test" / "dark").iterdir()))
    assert sum(prediction.probabilities.values()) == pytest.approx(1)
    if kind not in ATTENTIONS:
        with pytest.raises(ConfigError, match="Vision Transformer"):
            Explainer(Predictor(calm))


@pytest.mark.parametrize("name", often(NAMES, "classify"))
def test_each_task_trains_on_a_memory_map(name, here, monkeypatch):
    monkeypatch.setitem(TASKS, NAMES[-1], row_of(NAMES[-1]))
    tiny = TinyTask(name, here)
    runs = [tiny.train("memory", {"train.epochs": 1})]
    monkeypatch.setenv(arrays.MAP_VARIABLE, "1")
    runs.append(tiny.train("map", {"train.epochs": 1}))
    assert_same_run(*runs, measures=())


@pytest.mark.parametrize(
    "fields", [{"val_split": 4}, {"folds": 4}, {"labels": 8}, {"resize": (8, 8)}]
)
def test_splits_are_the_same_in_a_memory_map(fields, pictures, monkeypatch):
    monkeypatch.setenv(arrays.MAP_VARIABLE, "1")
    spec = DataSpec(name=f"imagefolder:{pictures}", **fields)
    mapped = load_data(spec, seed=1)
    monkeypatch.setenv(arrays.MAP_VARIABLE, "0")
    plain = load_data(spec, seed=1)
    assert mapped.data_hash == plain.data_hash
    for split in ("train", "test", "val"):
        one, two = getattr(mapped, split), getattr(plain, split)
        if one is not None:
            assert isinstance(one.pixels, StoredPixels)
            assert one.pixels[:].equal(two.pixels)
            assert one.names == two.names


def test_batches_are_gathered_ahead_in_their_order(monkeypatch):
    base = torch.arange(60, dtype=torch.uint8).view(20, 1, 1, 3)
    pixels = StoredPixels(base).select(torch.arange(19, 1, -1))
    batches = [torch.tensor(rows) for rows in ([0, 5], [7, 7], [1, 17], [3, 2])]
    gathered, gather = [], StoredPixels.gather
    monkeypatch.setattr(
        StoredPixels, "gather", lambda self, rows: gathered.append(rows) or gather(self, rows)
    )
    pixels.expect(iter(batches))
    for count, batch in enumerate(batches):
        assert pixels[batch].equal(base[19 - batch])
        assert len(gathered) >= min(len(batches), count + 1)
    assert len(gathered) == len(batches)
    pixels.expect(iter(batches))
    for rows in (torch.tensor([4]), batches[0]):  # the first is not the expected one
        assert pixels[rows].equal(base[19 - rows])
    assert joined(pixels, pixels)[18:].equal(pixels[:])
