"""Commands that are asked for bf16 on a CPU that emulates it: one warning, the same results."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.runner.machine.processors import AVX2, ZEN4
from vitcli.cli.main import app
from vitcli.runner.machine import products

STUDY = """
base: tiny.yaml
train: {epochs: 2, precision: %s}
seeds: [0, 1]
variants: {full: {}, no-norm: {model.norm: none}}
"""


@pytest.fixture(autouse=True)
def _emulating(monkeypatch) -> None:
    """A CPU that takes 60 times as long in bf16."""
    speeds = {"fp32": 60e9, "bf16": 1e9}
    monkeypatch.setattr(products, "this_processor", lambda: AVX2)
    monkeypatch.setattr(products, "product_rate", lambda size, precision: speeds[precision])


def talk_of(command: str) -> str:
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.stderr
    return result.stderr


def test_a_training_warns_once_and_gives_the_same_result(tiny, monkeypatch):
    command = f"train {tiny} --device cpu --precision bf16 --epochs 2"
    talk = talk_of(f"{command} -o warned")
    assert talk.count("emulates bf16") == 1
    assert "a product takes 60 times as long as in fp32; type --precision fp32\n" in talk
    assert "emulates" not in talk_of(f"train {tiny} --device cpu --epochs 2 -o auto")
    monkeypatch.setattr(products, "this_processor", lambda: ZEN4)
    assert "emulates" not in talk_of(f"{command} -o silent")
    lines = [
        Path(name, "metrics.jsonl").read_text().splitlines()[-1] for name in ("warned", "silent")
    ]
    losses = [json.loads(line)["test_loss"] for line in lines]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "command",
    [
        "train tiny.yaml --dry-run",
        "bench train tiny.yaml --rounds 1 --seconds 0",
        "bench attention --lengths 16 --embed-dim 16 --num-heads 2 --rounds 1 --seconds 0",
    ],
)
def test_every_command_with_this_option_warns_once(tiny, command):
    talk = talk_of(f"{command} --device cpu --precision bf16")
    assert talk.count("emulates bf16") == 1


def test_a_study_warns_once_for_all_its_workers(tiny):
    Path("mine.yaml").write_text(STUDY % "bf16")
    talk = talk_of("ablate mine.yaml --dry-run --device cpu")
    assert talk.count("emulates bf16") == 1
    assert "60 times as long as in fp32; set train.precision to fp32 in the study\n" in talk
    Path("mine.yaml").write_text(STUDY % "fp32")
    assert "emulates" not in talk_of("ablate mine.yaml --dry-run --device cpu")
