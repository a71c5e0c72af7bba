"""Pilots: what a queue logs and skips, and what is not left to its convolutions."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from experiments.pilots import pilot
from vitcli.core.inspect.cost import forward_flops
from vitcli.core.models.image_model import build_model
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import DivergedError
from vitcli.runner.experiment.sizes import fit_to_data


def test_the_speedrun_spends_a_quarter_on_its_convolutions_at_most():
    (each,) = pilot.read_pilots(["speedrun-94"])
    spec = pilot.experiment_of(each).spec
    fields: Any = fit_to_data(spec, describe_data(spec.data)).model
    assert (fields.attention, fields.ffn) == ("softmax", "gelu")
    with torch.device("meta"):
        model = build_model(fields)
    stem = model.get_submodule("patch_embed")
    assert sum(isinstance(part, torch.nn.Conv2d) for part in stem.modules()) <= 3
    assert 4 * forward_flops(stem, (3, 32, 32)) <= forward_flops(model, (3, 32, 32))


def test_a_queue_continues_after_a_pilot_that_diverged_and_skips_what_is_logged(
    tmp_path, monkeypatch
):
    trained = []

    def train(experiment, request, **_):
        trained.append((experiment.name, request.output.parts[:3]))
        assert request.without_test
        assert request.data_dir == Path("cifar")
        raise DivergedError("the loss is not finite")

    monkeypatch.setattr(pilot, "start", train)
    queue, log = tmp_path / "queue.txt", tmp_path / "log.jsonl"
    queue.write_text(
        f"# two\nquickstart --log {log} -s optim.lr=1  # why\n\ncifar10-tiny --log {log}\n"
    )
    words = ["pilot", "--queue", str(queue), "--data-dir", "cifar"]
    monkeypatch.setattr(sys, "argv", words)
    pilot.main()
    first = [json.loads(line) for line in log.read_text().splitlines()]
    found = [(each["changes"], each["val_accuracy"]) for each in first]
    assert found == [(["optim.lr=1"], None), ([], None)]
    assert first[0]["reason"] == "the loss is not finite"
    pilot.main()
    assert trained == [
        ("quickstart", ("runs", "pilots", "quickstart")),
        ("cifar10-tiny", ("runs", "cifar10-tiny", "train")),
    ]


def test_a_logged_teacher_that_is_not_here_is_trained_again_for_a_later_pilot(here, monkeypatch):
    queue, trained = Path("queue.txt"), []
    queue.write_text("cifar10-convnet\ncifar10-tiny\nspeedrun-94\n")
    monkeypatch.setattr(pilot, "HERE", here)
    monkeypatch.setattr(pilot, "train", lambda each: trained.append(each.experiment) or {})
    for name in ("cifar10-convnet", "cifar10-tiny"):
        (here / f"{name}.jsonl").write_text('{"seed": 100, "changes": []}\n')
    monkeypatch.setattr(sys, "argv", ["pilot", "--queue", str(queue)])
    pilot.main()
    assert trained == ["cifar10-convnet", "speedrun-94"]
    assert len((here / "cifar10-convnet.jsonl").read_text().splitlines()) == 1
    (here / "speedrun-94.jsonl").unlink()
    run = here / "runs/cifar10-convnet/train/seed100"
    run.mkdir(parents=True)
    pilot.main()
    assert trained.pop() == "speedrun-94"
    assert trained == ["cifar10-convnet", "speedrun-94"], "the teacher is here"
    run.rmdir()
    (here / "speedrun-94.jsonl").write_text('{"seed": 100, "changes": []}\n')
    pilot.main()
    assert trained == ["cifar10-convnet", "speedrun-94"], "nothing waits for the teacher now"
