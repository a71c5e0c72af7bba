"""Results that are read once: what is kept, and what is read again."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.runner.study.test_states import ROOT, STUDY, fabricate
from vitcli.runner.run.folder import FILES, RunDir
from vitcli.runner.study import states
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import KNOWN, Study, load_study
from vitcli.runner.study.states import trial_states


@pytest.fixture
def study(here) -> Study:
    """Two variants with two seeds, trained an hour ago."""
    (here / "mine.yaml").write_text(STUDY)
    for variant in ("full", "no-norm"):
        for seed in (0, 1):
            settle(fabricate(variant, seed, 0.5 + 0.1 * seed))
    return load_study("mine.yaml")


def settle(run: RunDir, seconds: float = 3600) -> None:
    """Let the files of a run be some time old."""
    for name in FILES:
        if (run.path / name).exists():
            then = time.time() - seconds
            os.utime(run.path / name, (then, then))


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The trials whose files are read."""
    found: list[str] = []
    original = states.trial_state

    def note(trial, *args):
        found.append(trial.folder)
        return original(trial, *args)

    monkeypatch.setattr(states, "trial_state", note)
    return found


def test_unchanged_trials_are_read_once(study, read):
    first, doc = trial_states(study, ROOT), read_results(study, ROOT)
    assert sorted(read) == sorted(first)
    again = trial_states(load_study("mine.yaml"), ROOT)
    assert again == first
    assert read_results(load_study("mine.yaml"), ROOT) == doc
    assert doc.rows[1].contrast
    assert len(read) == len(first)
    for name, state in first.items():
        pair = state.read_images(), again[name].read_images()
        assert np.array_equal(pair[0].scores, pair[1].scores)
        assert np.array_equal(pair[0].labels, pair[1].labels)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_of_the_same_size_is_read_again(study, read, name):
    trial_states(study, ROOT)
    path = ROOT / "full/seed0" / name
    path.write_bytes(path.read_bytes())
    del read[:]
    trial_states(study, ROOT)
    assert read == ["full/seed0"]


def test_a_file_that_may_just_be_changing_is_not_known(study, read):
    settle(RunDir(ROOT / "full/seed0"), seconds=-60)
    trial_states(study, ROOT)
    del read[:]
    trial_states(study, ROOT)
    assert read == ["full/seed0"]


def test_a_removed_trial_is_missing(study):
    trial_states(study, ROOT)
    (ROOT / "full/seed0/config.yaml").unlink()
    assert trial_states(study, ROOT)["full/seed0"].state == "missing"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content.replace(b'"test_accuracy":0.5', b'"test_accuracy":0.9', 1),
        lambda content: b"x\n" + content,
    ],
)
def test_a_damaged_file_of_known_results_is_made_again(study, read, damage):
    first = trial_states(study, ROOT)
    path = ROOT / KNOWN
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    del read[:]
    assert trial_states(study, ROOT) == first
    assert len(read) == len(first)
    assert path.read_bytes() == whole


def test_a_study_with_other_threads_or_another_setting_knows_nothing(study, read):
    trial_states(study, ROOT)
    del read[:]
    Path("mine.yaml").write_text(f"{STUDY}threads: 2\n")
    assert trial_states(load_study("mine.yaml"), ROOT)["full/seed0"].state == "stale"
    Path("mine.yaml").write_text(f"{STUDY}optim: {{lr: 0.5}}\n")
    assert trial_states(load_study("mine.yaml"), ROOT)["full/seed0"].state == "stale"
    assert len(read) == 8
