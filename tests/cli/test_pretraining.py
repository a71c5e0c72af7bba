"""A short try of an experiment that trains another one first."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.runner.run.folder import RunDir, list_runs


@pytest.fixture
def second(tiny) -> Path:
    tiny.write_text(f"{tiny.read_text()}pretrain: {{train: {{epochs: 3, batch_size: 16}}}}\n")
    return tiny


def train(second: Path, *words: str) -> str:
    result = CliRunner().invoke(app, ["train", str(second), "-o", "run", "--rerun", *words])
    assert result.exit_code == 0, result.output
    return result.stderr


def lengths(run: RunDir) -> tuple[int, int | None]:
    train = run.spec().train
    return train.epochs, train.limit_batches


@pytest.mark.parametrize(
    ("words", "expected", "said"),
    [
        (["--epochs", "1", "--limit-batches", "2"], (1, 2), "--epochs and --limit-batches shorten"),
        (["--epochs", "1"], (3, None), ""),
        (["--epochs", "4", "--limit-batches", "1"], (3, 1), "--limit-batches shortens"),
        (["--epochs", "1", "-s", "pretrain.train.epochs=2"], (2, None), ""),
        (["-s", "train.epochs=1"], (3, None), ""),
    ],
)
def test_a_short_try_is_short_in_all_its_parts(second, words, expected, said):
    talk = train(second, *words)
    (first,) = list_runs(Path("runs/pretrained"))
    assert lengths(first) == expected
    notes = [line for line in talk.splitlines() if line.startswith("note: --")]
    assert len(notes) == bool(said)
    assert said in "".join(notes)


def test_a_full_training_does_not_use_a_short_pre_training(second):
    train(second, "--epochs", "1", "--limit-batches", "1")
    train(second, "-s", "train.epochs=1")
    found = {lengths(run) for run in list_runs(Path("runs/pretrained"))}
    assert found == {(1, 1), (3, None)}


def test_a_dry_run_refuses_weights_that_do_not_fit(here):
    words = ["train", "quickstart", "--init", "cifar10-pocket", "--dry-run"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout, "do not fit" in result.stderr) == (2, "", True)
