"""An error names the file and line, or the option, where the mistake was typed."""

from pathlib import Path

import pytest

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.problems import describe
from vitcli.runner.study.definition import load_study

pytestmark = pytest.mark.usefixtures("here")
OPTIONS = {"train.precision": "--precision", "data.name": "--data", "train.epochs": "--epochs"}


def told(load, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(name: str, *lines: str) -> str:
    Path(name).write_text("\n".join(lines) + "\n")
    return f"./{name}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.precision": "half"}, "--precision: should be 'auto', 'fp32', 'tf32', 'bf16' or "),
        ({"train.epochs": 3, "model.dept": 4}, "--set: unknown field 'model.dept'; did you mean "),
        ({"train.epochs": 3, "data.mean": [2.0, "x"]}, "--set: data.mean.1: should be a valid "),
        ({"train.epochs": -1}, "--epochs: should be greater than or equal to 0, got -1"),
    ],
)
def test_an_option_is_named_as_it_was_typed(changes, message):
    assert told(load_experiment, "quickstart", changes, OPTIONS).startswith(message)


def test_a_mistake_in_a_base_names_the_bases_line():
    write("below.yaml", "train:", "  epochs: 1", "optim:", "  lr: -1")
    assert told(load_experiment, write("above.yaml", "base: ./below.yaml", "optim:", "  eps: 0.1"))
    text = told(load_experiment, "./above.yaml")
    assert text == "below.yaml:4: optim.lr: should be greater than 0, got -1"


def test_a_base_that_does_not_exist_names_the_line_of_base():
    text = told(load_experiment, write("mine.yaml", "seed: 1", "base: quikstart"))
    assert text.startswith("mine.yaml:2: base: no experiment is called 'quikstart'; did you mean")


def test_a_problem_of_the_whole_experiment_names_the_field_to_change():
    mine = write("mine.yaml", "model: {family: resnet18}", "train:", "  batch_size: 1")
    assert told(load_experiment, mine).startswith("mine.yaml:3: train.batch_size: batch norm needs")


STUDY = ("base: quickstart", "{}", "seeds: [0]", "variants:", "  first: {}", "  second:", "    {}")


@pytest.mark.parametrize(
    ("top", "changes", "message"),
    [
        ("qestion: why?", "model.ffn: none", "2: unknown field 'qestion'; did you mean 'question'"),
        ("train: {epoch: 1}", "model.ffn: none", "2: unknown field 'train.epoch'; did you mean"),
        ("seed: 1", "model.ffn: none", "2: a study has 'seeds'"),
        ("threads: none", "model.ffn: none", "2: threads: should be a valid integer, got 'none'"),
        ("question: ok", "model.fn: none", "7: variant 'second': unknown field 'model.fn'"),
        ("question: ok", "model: {num_heads: 5}", "7: variant 'second': model: num_heads 5 does"),
        ("tune: {optim.lr: [-1.0]}", "model.ffn: none", "2: optim.lr: should be greater than 0"),
    ],
)
def test_a_mistake_in_a_study_names_its_own_line(top, changes, message):
    text = "\n".join(STUDY).format(top, "{}", changes)
    assert told(load_study, write("mine.yaml", text)).startswith(f"mine.yaml:{message}")


def test_a_mistake_in_the_experiment_of_a_variant_names_that_file():
    write("other.yaml", "train:", "  epochs: many")
    mine = write("mine.yaml", "seeds: [0]", "variants:", "  a: {experiment: ./other.yaml}")
    assert told(load_study, mine).startswith("other.yaml:2: train.epochs: should be")


def test_a_mistake_in_the_seeds_of_a_base_names_the_base():
    write("below.yaml", "seeds: [0, 0]", "variants: {a: {}, b: {model.ffn: none}}")
    text = told(load_study, write("above.yaml", "base: ./below.yaml", "question: why?"))
    assert text == "below.yaml:1: seed 0 appears twice"


@pytest.mark.parametrize(
    "kind", ["", "seeds: [0]\nvariants: {a: {}, b: {}}"], ids=["experiment", "study"]
)
def test_a_dotted_key_in_a_file_is_told_to_be_nested(kind):
    mine = write("mine.yaml", "base: quickstart", "optim.lr: 1e-3", kind)
    load = load_study if kind else load_experiment
    assert told(load, mine) == "mine.yaml:2: unknown field 'optim.lr'; write optim: {lr: ...}"
    mine = write("mine.yaml", "base: quickstart", "task.mask_ratio: 0.5", kind)
    assert told(load, mine).endswith("'task.mask_ratio'; task.name=classify does not have it")
    mine = write("mine.yaml", "base: quickstart", "pretrain.task.sigreg_weight: 0.5", kind)
    assert told(load, mine).endswith("; pretrain.task.name=classify does not have it")


def test_a_field_of_files_or_studies_is_not_suggested_for_itself():
    assert told(load_experiment, "quickstart", {"hypothesis": "x"}).endswith("at its top level")
    text = told(load_experiment, write("mine.yaml", "threads: 2"))
    assert text.startswith("mine.yaml:1: unknown field 'threads'; only a study has it")
    text = told(load_experiment, "quickstart", {"search.trials": 3})
    assert text.endswith(
        "unknown field 'search'; only a file can have it, which 'vitcli search' runs"
    )
    text = told(load_experiment, write("space.yaml", "search: {space: {model.depth: [1, 2]}}"))
    assert text == "space.yaml: this is a search; run it with 'vitcli search space.yaml'"
    varients = write("mine.yaml", "varients: {a: {}}")
    assert "did you mean 'variants'?" in told(load_experiment, varients)
    assert describe(("qqq",), "extra_forbidden", {}) == "unknown field 'qqq'"
