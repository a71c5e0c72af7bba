"""`vitcli experiments`: listing, showing, copying and checking files."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.cli import commands
from tests.cli.commands import document, said
from vitcli.core.spec import FAMILIES, ExperimentSpec
from vitcli.plugin import load_target
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.kinds import FILE_KINDS
from vitcli.runner.experiment.yaml_text import FILE_FIELDS
from vitcli.runner.study.definition import load_study

vitcli = partial(commands.vitcli, "experiments")
pytestmark = pytest.mark.usefixtures("here")
STUDY = (
    "question: which part matters?\nbase: quickstart\nseeds: [0, 1]\n"
    "variants: {full: {}, no-ffn: {model: {ffn: none}}}\n"
)


def local(name: str, text: str) -> Path:
    Path("experiments").mkdir(exist_ok=True)
    path = Path("experiments") / name
    path.write_text(text)
    return path


def test_one_broken_file_does_not_hide_the_others():
    local("parts.yaml", STUDY)
    local("bad.yaml", "model: [")
    kinds = {row["name"]: row["kind"] for row in document("experiments", "ls")["experiments"]}
    wanted = {"parts": "study", "bad": "broken", "quickstart": "experiment"}
    assert kinds | wanted == kinds


def test_show_prints_the_file_as_it_is():
    text = "question: 'tabs?\tyes'\nseed: 1 # \u00e9\n"
    path = local("mine.yaml", text)
    assert vitcli("show", "mine")[:2] == (0, text)
    assert vitcli("show", path)[1] == text
    assert vitcli("show", "quickstart")[1] == load_experiment("quickstart").path.read_text()


@pytest.mark.parametrize(
    ("dest", "file"),
    [
        *(([], "quickstart.yaml"), (["folder"], "folder/quickstart.yaml")),
        *((["mine"], "mine.yaml"), (["folder/mine.yml"], "folder/mine.yml")),
    ],
)
def test_cp_makes_a_file_that_can_be_trained(dest, file):
    Path("folder").mkdir()
    assert document("experiments", "cp", "quickstart", *dest)["path"] == file
    assert load_experiment(file).spec == load_experiment("quickstart").spec
    Path(file).write_text("precious")
    said(2, "experiments", "cp", "quickstart", *dest)
    assert Path(file).read_text() == "precious"
    said(0, "experiments", "cp", "quickstart", *dest, "--force")
    assert load_experiment(file).spec == load_experiment("quickstart").spec


def test_validate_names_what_is_wrong_and_goes_on():
    """A file whose pictures are elsewhere is not wrong."""
    texts = {
        "data.val_split": "data: {val_split: 999999}",
        "'seeds'": "variants: {full: {}}",
        "not YAML": "\x1b[31m",
        "nowhere": "data: {name: 'imagefolder:nowhere'}",
    }
    files = [local(f"mine{i}.yaml", text) for i, text in enumerate(texts.values())]
    rows = document("experiments", "validate", *files, code=2)["experiments"]
    assert [row["ok"] for row in rows] == [False, False, False, True]
    for told, file, row in zip(texts, files, rows, strict=True):
        assert row["name"] == str(file)
        assert told in row["detail"]


def test_the_schema_describes_every_field_and_what_files_may_say():
    schema = json.loads(vitcli("schema")[1])
    assert schema["$schema"].startswith("https://json-schema.org/")
    fields = {*FILE_FIELDS, *ExperimentSpec.model_fields}
    for kind in FILE_KINDS.values():
        fields |= load_target(kind.fields).model_fields.keys()
    assert schema["properties"].keys() == fields
    assert schema["additionalProperties"] is False
    model, *others = (each["properties"] for each in schema["properties"]["model"]["anyOf"])
    assert [each["family"]["const"] for each in (model, *others)] == [*FAMILIES]
    assert "window_size" not in model, "an editor completes the fields of a family"
    resize = schema["$defs"]["DataSpec"]["properties"]["resize"]["anyOf"]
    kinds = [each["type"] for each in resize]
    assert kinds == ["integer", "array", "null"], "resize: 64 is allowed in a file"


def test_a_copy_has_the_fields_of_the_original_and_none_of_its_results():
    original = local(
        "parts.yaml",
        "# Question: which part\n#           matters?\n# Run:      vitcli ablate parts\n"
        "# Result:   95.5 % on\n#           shapes\n# My own remark.\n"
        "base: quickstart\nseeds: [0, 1] # two\n"
        "reference:\n  source: a paper\n  rows: {full: {accuracy: 95.5}}\n"
        "variants: {full: {}, no-ffn: {model: {ffn: none}}}\n",
    )
    said(0, "experiments", "cp", "parts", "mine")
    assert Path("mine.yaml").read_text() == (
        "# Question: which part\n#           matters?\n# My own remark.\n"
        "base: quickstart\nseeds: [0, 1] # two\n"
        "variants: {full: {}, no-ffn: {model: {ffn: none}}}\n"
    )
    assert "95.5" in original.read_text()
    assert load_study("mine.yaml").variants == load_study("parts").variants
