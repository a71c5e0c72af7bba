"""One door: text in, checked specs out, and errors that say what, where and what was meant."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitcli.core.spec import FAMILIES, ExperimentSpec
from vitcli.runner.errors import ConfigError, OwnCodeError
from vitcli.runner.experiment import yaml_text
from vitcli.runner.experiment.config import (
    config_hash,
    experiment_files,
    find_experiment,
    load_experiment,
    parse_experiment,
    parse_set,
    parse_sets,
    typed_changes,
    typed_command,
)
from vitcli.runner.experiment.problems import _suggest_field
from vitcli.runner.experiment.yaml_text import (
    LOADERS,
    MAX_DEPTH,
    Document,
    document_of,
    dump,
    format_value,
    read_mapping,
    without_results,
)
from vitcli.runner.study.definition import load_study


def read(text: str):
    return Document(text, "x.yaml").data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 0.001), ("-.5", -0.5), ("12", 12), ("true", True), ("null", None)),
        *(("off", "off"), ("010", "010"), ("12:30", "12:30"), (".inf", ".inf"), ("'12'", "12")),
        ("[1, 2]", [1, 2]),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text, value):
    got = read(f"a: {text}")["a"]
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\na: 2", "x.yaml:2: 'a' appears twice"),
        ("a: &x 1\nb: *x", "x.yaml:1: anchors and tags"),
        ("a: !!int ''", "x.yaml:1: anchors and tags"),
        ("a: [1", "not YAML"),
        ("question: why: how", "x.yaml:1: not YAML: .*; put text with ': ' in quotes"),
        ("a: " + "[" * 900, "not YAML|too deeply"),
        ("a:\n" + "".join(f"{'  ' * i}- a:\n" for i in range(MAX_DEPTH - 2)), "nested too deeply"),
        ("? [1]\n: 2", "plain text"),
        ("a: \x00", "not YAML"),
        ("x" * 2_000_000, "larger than"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text, reason):
    with pytest.raises(ConfigError, match=reason):
        read(text)


@settings(max_examples=40)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**20), 10**20)
        | st.text(max_size=8)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(st.characters(codec="ascii"), max_size=6), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
def test_what_is_written_is_read_back(value):
    text = dump({"a": value})
    for loader in LOADERS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yaml_text, "LOADERS", (loader, loader))
            assert read(text) == {"a": value}


RESNET = {"model.family": "resnet18", "optim.name": "sgd"}


def told(load, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.1}, "--set: unknown field 'lr'; did you mean 'optim.lr'?"),
        ({"data.val_split": "x"}, "data.val_split: should be an integer or a number, got 'x'"),
        ({"train.freeze": [1]}, "--set: train.freeze: should be an integer or text, got a list"),
        ({"data.mean": [127.5]}, "--set: data.mean: a value is above 1"),
        ({"data.resize": "48x32"}, "data.resize: should be a list, such as [1, 2], got '48x32'"),
        ({"data.name": "imagefolder:caf\udce9"}, "not UTF-8"),
        ({"data.resize": "None"}, "got 'None'; write null"),
        ({"train.deterministic": "True"}, "should be true or false, got 'True'"),
        ({"model.family": "convnet", "model.widths": []}, "model.widths: needs at least"),
        pytest.param(
            {"task.mask_ratio": 0.5},
            "task.name=classify does not have it",
            marks=pytest.mark.plugin("mae"),
        ),
        ({"model.norm": "off"}, "'layer_norm', 'batch_norm', 'rms_norm' or 'none', got 'off'"),
        (RESNET | {"model.embed_dim": 96}, "has no embed_dim"),
        ({"model.family": "resnet18"}, "--set: optim.name: muon takes"),
        (RESNET | {"train.grad_checkpointing": True}, "no blocks to recompute"),
    ],
    ids=str,
)
def test_a_wrong_field_is_one_line(changes, message):
    assert message in told(load_experiment, "quickstart", changes)


def test_a_base_is_laid_under_and_a_circle_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("model: {depth: 2, embed_dim: 48}\nseed: 5")
    (tmp_path / "b.yaml").write_text("base: a\nmodel: {depth: 3}")
    spec = load_experiment(str(tmp_path / "b.yaml")).spec
    assert (spec.model.depth, spec.model.embed_dim, spec.seed) == (3, 48, 5)
    for name, base in zip("cdefgh", "defghb", strict=True):
        (tmp_path / f"{name}.yaml").write_text(f"base: {base}")
    assert load_experiment(str(tmp_path / "c.yaml")).spec == spec, "a base may have many bases"
    (tmp_path / "h.yaml").write_text("base: c")
    with pytest.raises(ConfigError, match=r"h\.yaml:1: base: .* circle"):
        load_experiment(str(tmp_path / "c.yaml"))
    (tmp_path / "i.yaml").write_text("seed: 5\nbase: [a, b]")
    with pytest.raises(ConfigError, match=r"i\.yaml:2: 'base' must name one experiment"):
        load_experiment(str(tmp_path / "i.yaml"))


@pytest.mark.plugin("distil")
@pytest.mark.parametrize(
    ("text", "name", "share"),
    [("{name: classify}", "classify", None), ("{}", "distil", 0.9), ("{share: 0}", "distil", 0.0)],
)
def test_another_task_takes_no_fields_of_the_task_below(tmp_path, text, name, share):
    (tmp_path / "taught.yaml").write_text("task: {name: distil, teacher: quickstart, share: 0.9}")
    (tmp_path / "own.yaml").write_text(f"base: taught\ntask: {text}")
    task = load_experiment(str(tmp_path / "own.yaml")).spec.task
    assert (task.name, getattr(task, "share", None)) == (name, share)
    changed = load_experiment(str(tmp_path / "taught.yaml"), {"task.name": "classify"})
    assert changed.spec.task.name == "classify"
    back = load_experiment("quickstart", {"task.teacher": "quickstart", "task.name": "distil"})
    assert back.spec.task.teacher.run == "quickstart"


def test_the_hash_sees_fields_but_not_seeds_or_folders():
    base = ExperimentSpec()
    assert config_hash(base) == config_hash(base.replace(seed=9))
    assert config_hash(base) != config_hash(base.replace(train=base.train.replace(epochs=3)))

    def of_data(folder: str, corrections: str | None = None) -> str:
        data = base.data.replace(name=f"imagefolder:{folder}", corrections=corrections)
        return config_hash(base.replace(data=data))

    one, other = of_data("/a/pets"), of_data("/a/pets", "/a/fix.csv")
    assert of_data("/b/cars") != one == of_data("/b/pets") != other
    assert of_data("/a/pets", "/a/no.csv") != other == of_data("/a/pets", "/b/fix.csv")


@pytest.mark.parametrize("text", ["depth", "=3", " = ", "a=1\nb: 2"])
def test_set_wants_field_and_value(text):
    with pytest.raises(ConfigError, match="FIELD=VALUE"):
        parse_set(text)
    assert parse_sets(["a=1", "a.b=2", "a=x=y"]) == {"a": "x=y", "a.b": 2}
    assert parse_sets(None) == {}


def test_changes_are_typed_as_they_are_read():
    texts = ("cls", "true", "3", "1e3", "null", "", "a b", "a: b", "my #1", "[a-z]+_", "\U0001f600")
    values = (3, 1e-5, 0.1, 1e16, None, True, [1, 2], *texts)
    changes = {f"field{number}": value for number, value in enumerate(values)}
    words = typed_changes(changes)
    assert words[::2] == ["-s"] * len(values)
    found = parse_sets(words[1::2])
    assert found == changes
    assert [*map(type, found.values())] == [*map(type, values)]
    assert parse_set(f"field={format_value((1, 2))}") == {"field": [1, 2]}


def test_what_cannot_be_found_or_run_is_said(here):
    Path("part.py").touch()
    for name, told in ((f"{here}", "a folder"), ("scenes", "--data"), ("part.py", "--code")):
        with pytest.raises(ConfigError, match=told):
            find_experiment(name)
    Path("experiments/folder.yaml").mkdir(parents=True)
    assert "folder" not in experiment_files()
    Path("list.yaml").write_text("- 1\n")
    Path("binary.yaml").write_bytes(b"\xff\xfe")
    for name in ("ablation-quickstart", "list.yaml", "binary.yaml"):
        with pytest.raises(ConfigError):
            load_experiment(name)
    with pytest.raises(ConfigError, match="not a file"):
        read_mapping(Path("experiments"))


def test_a_problem_of_a_field_that_is_not_written_is_told_at_the_one_around_it():
    document = Document("model:\n  depth: 2\n", "x.yaml")
    assert document.where(("model", "img_size", 0)) == "x.yaml:1"
    assert document.where(("model", "depth")) == "x.yaml:2"
    assert document.where(("data",)) == "x.yaml:1"
    plain = document_of({"a": {"b": [1, "x"]}}, "call")
    assert (plain.data, plain.where(("a", "b"))) == ({"a": {"b": [1, "x"]}}, "call")


@pytest.mark.parametrize(
    "model",
    [
        *("{norm: batch_norm}", "{patch_embed: conv_stem}", "{family: resnet18}"),
        "{family: coatnet, depths: [1, 1], layout: CT, pool: mean, pos_embed: relative}",
    ],
)
def test_parts_of_a_batch_are_refused_where_batch_norm_would_see_only_those(model):
    """Its gradients would differ from those of the whole batch."""
    document = Document(f"model: {model}\ntrain:\n  accumulate: 2", "x.yaml")
    with pytest.raises(ConfigError, match=r"x\.yaml:3: train\.accumulate: batch norm would see"):
        parse_experiment(document.data, document)
    stored = parse_experiment(document.data, document, is_stored=True)
    assert stored.train.accumulate == 2, "an old run can be read"
    document = Document("train: {accumulate: 2}", "x.yaml")  # a layer norm sees each image
    assert parse_experiment(document.data, document).train.accumulate == 2


PLAIN_RESNET = "model: {family: resnet18}"
STUDY = "base: quickstart\n{}\nseeds: [0]\nvariants:\n  first: {{}}\n  second:\n    {{{}}}"
FFN = "model.ffn: none"
IN_STUDIES = [
    ("qestion: why?", FFN, "2: unknown field 'qestion'; did you mean 'question'"),
    ("question: [why]", FFN, "2: question: should be text; put it in quotes"),
    ("train: {epoch: 1}", FFN, "2: unknown field 'train.epoch'; did you mean"),
    ("seed: 1", FFN, "2: a study has 'seeds'"),
    ("threads: none", FFN, "2: threads: should be a valid integer, got 'none'"),
    ("tune: {optim.lr: [-1.0]}", FFN, "2: optim.lr: should be greater than 0"),
    ("", "model.fn: none", "7: variant 'second': unknown field 'model.fn'"),
    ("", "question: why", "7: variant 'second': unknown field 'question'; only"),
    ("", "model: {num_heads: 5}", "7: variant 'second': model: num_heads 5"),
]
"""A line of a study, a change of its second variant, and what is said of one of them."""


@pytest.mark.parametrize(
    ("load", "mine", "message"),
    [
        (load_experiment, "base: ./below.yaml\noptim: {eps: 0.1}", "below.yaml:4: optim.lr"),
        (load_experiment, "seed: 1\nbase: quikstart", "mine.yaml:2: base: no experiment is called"),
        (load_experiment, f"{PLAIN_RESNET}\ntrain:\n  batch_size: 1", "mine.yaml:3: train."),
        (load_experiment, "threads: 2", "mine.yaml:1: unknown field 'threads'; only a study has"),
        (load_experiment, "variants: {a: {}}", "mine.yaml: this is a study"),
        (load_experiment, "varients: {a: {}}", "mine.yaml:1: unknown field 'varients'; did you"),
        (load_experiment, "seed: 1\noptim.lr: 1e-3", "mine.yaml:2: unknown field 'optim.lr'"),
        (load_study, "seeds: [0]\nvariants: {a: {experiment: ./below.yaml}}", "below.yaml:4: "),
        (load_study, "base: ./study.yaml\nquestion: why?", "study.yaml:1: seed 0 appears twice"),
        (load_study, "variants: {a: {}, b: {model.ffn: none}}", "mine.yaml:1: 'seeds' is missing"),
        *((load_study, STUDY.format(*row[:2]), f"mine.yaml:{row[2]}") for row in IN_STUDIES),
    ],
)
def test_a_mistake_in_a_file_names_its_line(here, load, mine, message):
    Path("below.yaml").write_text("train:\n  epochs: 1\noptim:\n  lr: -1\n")
    Path("study.yaml").write_text("seeds: [0, 0]\nvariants: {a: {}, b: {model.ffn: none}}\n")
    Path("mine.yaml").write_text(mine)
    assert told(load, "./mine.yaml").startswith(message)


def test_a_refusal_of_the_whole_experiment_names_the_option_that_was_typed():
    changes = RESNET | {"train.accumulate": 2}
    message = told(load_experiment, "quickstart", changes, {"train.accumulate": "--accumulate"})
    assert message.startswith("--accumulate: batch norm")
    changes = {"train.epochs": 1, "data.val_split": 0}
    message = told(load_experiment, "finetune", changes, {"train.epochs": "--epochs"})
    assert "train.early_stopping: set data.val_split" in message, "--epochs is another field"


def test_an_empty_choice_in_a_base_is_no_choice(tmp_path):
    (tmp_path / "a.yaml").write_text("task:\n")
    (tmp_path / "b.yaml").write_text("base: ./a.yaml\ntask: {headline: macro_f1}\n")
    assert load_experiment(str(tmp_path / "b.yaml")).spec.task.headline == "macro_f1"


def test_a_copy_of_an_experiment_has_no_results_of_the_original():
    text = "# Aim: a\n# Run: vitcli train\n#      twice\n# Cost: 1 s\n# a remark\nseed: 0\n"
    assert without_results(text) == "# Aim: a\n# a remark\nseed: 0\n"


@pytest.mark.plugin("distil")
def test_own_code_that_is_not_loaded_is_named_and_not_asked_of_a_teacher():
    assert typed_command("data check", "pictures") == ["vitcli", "data", "check", "pictures"]
    code = {"far.py": "0" * 64}
    with pytest.raises(OwnCodeError, match=r"far\.py"):
        parse_experiment({"code": code}, Document("", "x.yaml"))
    teacher = {"run": "r", "code": code, "model": {"family": "Far"}}
    raw = {"task": {"name": "distil", "teacher": teacher}}
    spec = parse_experiment(raw, Document("", "x.yaml"), is_stored=True)
    assert spec.task.taught_by.model is None


def test_what_a_family_refuses_names_the_experiment(monkeypatch):
    def refuse(spec):
        raise ConfigError("no such size")

    row = dataclasses.replace(FAMILIES["vit"], fit=refuse)
    monkeypatch.setitem(FAMILIES, "vit", row)
    with pytest.raises(ConfigError, match="no such size"):
        load_experiment("quickstart")


@pytest.mark.plugin("search")
def test_unknown_fields_get_only_what_can_be_typed_there():
    assert "vitcli search" in _suggest_field(("search",), {}, in_file=True, of_function=False)
    assert not _suggest_field(("model.xyz.q",), {}, in_file=False, of_function=True)
    assert not _suggest_field(("xyzzy",), {}, in_file=False, of_function=True)
