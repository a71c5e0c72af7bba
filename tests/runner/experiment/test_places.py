"""An error names the file and line, or the option, where the mistake was typed."""

from pathlib import Path

import pytest

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.study.definition import load_study

pytestmark = pytest.mark.usefixtures("here")


RESNET = "model: {family: resnet18}"


def told(load, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("load", "mine", "message"),
    [
        (load_experiment, "base: ./below.yaml\noptim: {eps: 0.1}", "below.yaml:4: optim.lr"),
        (load_experiment, "seed: 1\nbase: quikstart", "mine.yaml:2: base: no experiment is called"),
        (load_experiment, f"{RESNET}\ntrain:\n  batch_size: 1", "mine.yaml:3: train."),
        (load_experiment, "threads: 2", "mine.yaml:1: unknown field 'threads'; only a study has"),
        (load_experiment, "search: {space: {model.depth: [1, 2]}}", "mine.yaml: this is a search"),
        (load_experiment, "varients: {a: {}}", "mine.yaml:1: unknown field 'varients'; did you"),
        (load_experiment, "seed: 1\noptim.lr: 1e-3", "mine.yaml:2: unknown field 'optim.lr'"),
        (load_study, "seeds: [0]\nvariants: {a: {experiment: ./below.yaml}}", "below.yaml:4: "),
        (load_study, "base: ./study.yaml\nquestion: why?", "study.yaml:1: seed 0 appears twice"),
    ],
)
def test_a_mistake_in_a_file_names_its_line(load, mine, message):
    Path("below.yaml").write_text("train:\n  epochs: 1\noptim:\n  lr: -1\n")
    Path("study.yaml").write_text("seeds: [0, 0]\nvariants: {a: {}, b: {model.ffn: none}}\n")
    Path("mine.yaml").write_text(mine)
    assert told(load, "./mine.yaml").startswith(message)


STUDY = "base: quickstart\n{}\nseeds: [0]\nvariants:\n  first: {{}}\n  second:\n    {{{}}}"
FFN = "model.ffn: none"


@pytest.mark.parametrize(
    ("top", "change", "message"),
    [
        ("qestion: why?", FFN, "2: unknown field 'qestion'; did you mean 'question'"),
        ("train: {epoch: 1}", FFN, "2: unknown field 'train.epoch'; did you mean"),
        ("seed: 1", FFN, "2: a study has 'seeds'"),
        ("threads: none", FFN, "2: threads: should be a valid integer, got 'none'"),
        ("tune: {optim.lr: [-1.0]}", FFN, "2: optim.lr: should be greater than 0"),
        ("", "model.fn: none", "7: variant 'second': unknown field 'model.fn'"),
        ("", "question: why", "7: variant 'second': unknown field 'question'; only"),
        ("", "model: {num_heads: 5}", "7: variant 'second': model: num_heads 5"),
    ],
)
def test_a_mistake_in_a_study_names_its_own_line(top, change, message):
    Path("mine.yaml").write_text(STUDY.format(top, change))
    assert told(load_study, "./mine.yaml").startswith(f"mine.yaml:{message}")
