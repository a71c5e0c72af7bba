"""`vitcli eval`: scores in every format."""

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.cli import commands
from tests.cli.commands import said
from vitcli.core.data.source import Images
from vitcli.core.metrics.classification import logits_and_labels
from vitcli.runner.run.folder import RunDir

document = partial(commands.document, "eval")


@pytest.mark.usefixtures("half_are_flipped")
def test_min_accuracy_is_exit_6(run):
    for content, code in (("mine", 2), ("", 0), (None, 0)):
        if content is not None:
            Path("p.npz").write_text(content)
        said(code, "eval", run, "--min-accuracy", 0.0, "--predictions", "p.npz")
    assert Path("p.npz").is_file()
    own = Path(run, "predictions.npz")
    assert str(own) in said(2, "eval", run, "--split", "train", "--predictions", own)
    assert document(run)["test_accuracy"] < 1
    said(6, "eval", run, "--min-accuracy", 1.0)


def test_a_model_that_is_no_better_than_the_largest_class_is_told_so(tiny, pictures):
    """The names of the test folders are exchanged, and one class is three times the other."""
    for path in [*(pictures / "test" / "dark").glob("?.png")][:8]:
        path.unlink()
    for old, new in (("dark", "x"), ("bright", "dark"), ("x", "bright")):
        (pictures / "test" / old).rename(pictures / "test" / new)
    assert "no better than always answering dark" in said(0, "train", tiny, "-o", "run")
    found = document("run")
    assert "no better than always answering dark" in found["notes"][0]
    assert found["balanced_accuracy"] == sum(row["accuracy"] for row in found["classes"]) / 2
    assert (found["largest_class"], found["largest_class_share"]) == ("dark", 0.75)


def test_a_limited_evaluation_sees_every_class(run):
    spec = RunDir(Path(run)).spec()
    spec = spec.replace(train=spec.train.replace(limit_batches=1))
    labels = torch.arange(10).repeat_interleave(200)
    images = Images(torch.zeros(2000, 3, 8, 8, dtype=torch.uint8), labels)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    assert logits_and_labels(model, images, spec)[1].bincount().tolist() == [50] * 10
