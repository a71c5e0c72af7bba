"""`vitcli runs rm` on a study: what it asks, removes and refuses."""

from pathlib import Path

import pytest

from tests.cli.commands import document, said
from tests.fabricated import make_run
from tests.plugin_rows import has
from vitcli.runner.experiment.yaml_text import dump
from vitcli.runner.files import commit_json, readable_json, sha256
from vitcli.runner.run.folder import hold_folder

pytestmark = pytest.mark.usefixtures("here")
STUDY = Path("runs/parts")
WRITTEN = dict.fromkeys(("report.html", "table.md", "figures/forest.svg"), sha256(b"x" * 125_000))


@pytest.fixture
def study() -> Path:
    for trial in ("full/seed0", "full/seed1", "no-ffn/seed0"):
        make_run(0, folder=STUDY / trial)
    (STUDY / "no-ffn/seed1").mkdir()
    (STUDY / "no-ffn/seed1/.lock").touch()
    commit_json(STUDY / "plan.json", {"study": "parts", "trials": {}})
    for name in WRITTEN:
        (STUDY / name).parent.mkdir(exist_ok=True)
        (STUDY / name).write_text("x" * 125_000)
    commit_json(STUDY / "results.json", {"written": WRITTEN})
    return STUDY


@pytest.mark.parametrize("name", ["parts", STUDY])
def test_a_study_is_removed_with_its_trials_and_its_report(study, name):
    run = make_run(3)
    if has("page"):
        said(0, "runs", "page", study)
    words = ("runs", "rm", name, "parts/full/seed0", run.name, run.path, "--yes")
    assert {"parts", run.name} <= {*document(*words)["removed"]}
    assert list(Path("runs").iterdir()) == []


@pytest.mark.parametrize("held", ["", "no-ffn/seed0"])
def test_a_running_study_or_trial_is_refused(study, held):
    idle = make_run(5)
    with hold_folder(study / held, "in use"):
        said(7, "runs", "rm", "-y", idle.name, "parts")
    assert idle.exists
    assert len(list(study.rglob("config.yaml"))) == 3
    assert (study / "report.html").exists()


def test_files_that_vitcli_did_not_write_stay(study):
    run = make_run(4)
    own = [study / name for name in ("index.html", "notes.txt", "figures/mine.png", "logs/mine")]
    own += [study / "logs" / name for name in ("driverx.lock", "workerbench.log", "ray.txt")]
    own += [study / name for name in ("figures/fields.png", "parts-confirm.yaml", "search.journal")]
    hashes = {"written": WRITTEN | {"table.md": sha256(b"before a person")}}
    commit_json(study / "results.json", hashes)
    own += [
        study / "table.md",
        run.path / "notes.txt",
        run.checkpoints / "1/mine.txt",
        run.path / ".config.yaml.swp",
    ]
    names = ("events.out.tfevents.1.vm.2.3", ".metrics.jsonl.abcd12_3")
    written = [run.path / name for name in names]
    logs = ("worker0.log", "worker1.0.log", "driver0.lock")
    written += [study / "logs" / name for name in logs]
    for path in own + written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    said(2, "runs", "page", study)
    talk = said(0, "runs", "rm", "parts", run.name, "--yes")
    left = {path for path in Path("runs").rglob("*") if path.is_file() and path.name != ".lock"}
    assert left == {*own}
    assert talk.count("not removed, because vitcli did not write it") == len(own)


def record_code(folder: Path, name: str) -> None:
    hashes = {name: sha256(b"part") for name in ("part.py", "edited.py")}
    package = "pack/__init__.py 4\npartpack/part.py 4\npart"
    config = {"code": hashes | {"pack/": sha256(package.encode())}}
    if name == "config.yaml":
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("code: {}\n", dump(config)))
    else:
        trials = {"trials": {"full/seed0": {"config": config}}}
        commit_json(folder / name, readable_json(folder / name) | trials)
    (folder / "code/pack").mkdir(parents=True)
    for file in ("part.py", "edited.py", "mine.py", "pack/__init__.py", "pack/part.py"):
        (folder / "code" / file).write_text("mine" if file == "edited.py" else "part")


def test_only_unchanged_copies_of_own_code_are_removed(study):
    run = make_run(4)
    record_code(run.path, "config.yaml")
    record_code(study, "plan.json")
    talk = said(0, "runs", "rm", run.name, "parts", "--yes")
    left = {path.name for path in Path("runs").rglob("*.py")}
    assert left == {"edited.py", "mine.py"}
    assert talk.count("mine.py") == 2


@pytest.mark.parametrize(
    "place",
    [
        *("full/seed0/checkpoints", "full/seed0/checkpoints/800", "full/seed0/code"),
        *("full/seed0", "full", "code", "logs", "figures", "code/pack", "full/seed0/code/pack"),
    ],
)
def test_what_lies_behind_a_link_stays(study, place):
    record_code(study / "full/seed0", "config.yaml")
    record_code(study, "plan.json")
    folder = study / place
    for name in ("worker0.log", "forest.svg", "part.py", "1/manifest.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("part")
    elsewhere = folder.rename("elsewhere").resolve()
    folder.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    said(0, "runs", "rm", "parts", "--yes")
    assert sorted(elsewhere.rglob("*")) == before
    assert list(study.rglob("config.yaml")) == []
    assert folder.is_symlink(), "it is named as a file that vitcli did not write"


@pytest.mark.parametrize("name", ["parts", "parts/full/seed0"])
def test_a_run_or_study_that_is_a_link_is_not_removed(study, name):
    (Path("runs") / name).rename("elsewhere")
    (Path("runs") / name).symlink_to(Path("elsewhere").resolve())
    before = sorted(Path("elsewhere").rglob("*"))
    talk = said(4, "runs", "rm", make_run(5).name, name, "--yes")
    assert sorted(Path("elsewhere").rglob("*")) == before
    assert f"vitcli runs rm {Path('elsewhere').resolve()}" in talk
    assert make_run(5).exists, "nothing else was removed either"
