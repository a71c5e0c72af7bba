"""The weights that a training starts from, and what is said if they do not fit."""

import re

import torch

from tests.core.objectives.views.viewing import view_task
from tests.core.trainings import data_set
from vitcli.runner.experiment.build import abstract_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import BUNDLED, RunDir
from vitcli.runner.train import initial
from vitcli.runner.train.initial import describe_fitting


def test_the_experiments_that_bundled_weights_fit_are_named(here):
    run = RunDir(BUNDLED / "cifar10-pocket")
    names = re.split(", | and ", describe_fitting(run).removeprefix("they fit the experiment"))
    assert names[0].split()[-1] == "cifar10-pocket"
    wanted = abstract_module(run.spec()).state_dict()
    for name in names:
        model = load_experiment(name.split()[-1]).spec.model
        sizes = {"img_size": (32, 32), "in_chans": 3, "num_classes": 10}
        own = abstract_module(run.spec().replace(model=model.replace(**sizes))).state_dict()
        assert {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in wanted.items()}


def test_the_student_of_dino_starts_like_its_teacher(monkeypatch):
    task, run = view_task("dino"), RunDir(BUNDLED / "cifar10-pocket")
    given = {name: each + 1 for name, each in task.module.teacher.encoder.state_dict().items()}
    monkeypatch.setattr(initial, "encoder_weights", lambda source: dict(given))
    module = initial.initial_module(task.spec, data_set(), run, print)
    for part in (module.student.encoder, module.teacher.encoder):
        found = part.state_dict()
        assert all(torch.equal(found[name], each) for name, each in given.items())
