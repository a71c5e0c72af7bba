"""A task that finds something wrong with an epoch's numbers says so, each sentence once."""

from pathlib import Path

from tests import denoising
from vitcli.core.spec import TASKS
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train.start import Request, start


def test_each_different_sentence_is_told_once(tiny, here, monkeypatch):
    seen, told = [], []
    sentences = ["", "the outputs are all equal", "the outputs are all equal", "they are zero"]

    def diagnose(self, numbers):
        seen.append(numbers)
        return sentences[len(seen) - 1]

    monkeypatch.setitem(TASKS, "denoise", denoising.ROW)
    monkeypatch.setattr(denoising.Denoise, "diagnose", diagnose)
    experiment = load_experiment(str(tiny), {"task.name": "denoise"})
    run = start(experiment, Request(output=Path("run")), on_message=told.append).run
    warnings = [text for text in told if text.startswith("warning: ")]
    assert warnings == ["warning: the outputs are all equal", "warning: they are zero"]
    assert [numbers["loss"] for numbers in seen] == [r["train_loss"] for r in run.metrics()]
