"""`vitcli ablate` as it is typed, also with no training at all."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import said, typed
from tests.cli.conftest import STUDY
from tests.runner.study.trials import STUDY as PLAIN_STUDY
from tests.runner.study.trials import fabricate
from vitcli.cli.engines import parse_duration, shared_words
from vitcli.runner.errors import ConfigError
from vitcli.runner.study.result import FIGURE_FORMATS

ROOT = Path("runs/mine")
TWICE = "twice: {model.depth: 4}"


@pytest.fixture
def study(tiny, without_workers) -> None:
    Path("mine.yaml").write_text(STUDY.replace("epochs: 2", "epochs: 1"))


@pytest.mark.seam
def test_a_study_from_nothing_to_its_table_and_again(study):
    first, _ = typed("ablate mine.yaml -j 2")
    files = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()}
    figures = {f"figures/{name}.{form}" for name in ("forest", "curves") for form in FIGURE_FORMATS}
    tables = {"plan.json", "results.json", "report.html", "table.md", "table.tex", "table.csv"}
    assert figures | tables <= files
    again, talk = typed("ablate mine.yaml")
    assert (again == first, "to train" in talk) == (True, False)
    stored = json.loads((ROOT / "results.json").read_text())
    assert stored.pop("written").keys() == (figures | tables) - {"plan.json", "results.json"}
    assert json.loads(typed("ablate mine.yaml --table-only --json")[0]) == stored


def test_a_dry_run_says_what_it_takes_and_trains_nothing(study):
    text = Path("mine.yaml").read_text().replace("no-norm: {model.norm: none}", TWICE)
    Path("mine.yaml").write_text(f"{text}equal_compute: true\n")
    plan = json.loads(typed("ablate mine.yaml --dry-run --seeds 0 --epochs 5 --json")[0])
    full, twice = (trial["flops"] for trial in plan["trials"])
    assert (plan["to_train"], 1e6 < full / 2 < twice <= full) == (2, True)
    assert not ROOT.exists()


def test_a_dry_run_refuses_the_pictures_that_the_trials_refuse(study, pictures):
    words = ("ablate", "mine.yaml", "--data", f"imagefolder:{pictures}", "--dry-run")
    train, test = (pictures / split / "dark" / "z.png" for split in ("train", "test"))
    copied = next((pictures / "train" / "dark").iterdir()).read_bytes()
    harms = [(train, b"\x89PNG", "data.skip_bad=true"), (test, copied, "data.allow_leaks=true")]
    for file, content, field in harms:
        file.write_bytes(content)
        assert f"-s {field}" in said(4, *words)
        words = (*words, "-s", field)
        said(0, *words)
    (pictures / "train" / "dark").rename(pictures / "dark")
    said(4, *words)


@pytest.mark.usefixtures("sketched")
@pytest.mark.parametrize("words", [("--only", "full"), ()])
def test_a_dry_run_refuses_pictures_that_were_edited_since_the_first_trial(study, pictures, words):
    typed("ablate mine.yaml --only full --seeds 0")
    next((pictures / "train" / "dark").iterdir()).unlink()
    assert "were trained on other images" in said(4, "ablate", "mine.yaml", *words, "--dry-run")


def test_the_report_of_the_whole_study_is_not_replaced_by_that_of_some_seeds(here, sketched):
    (here / "mine.yaml").write_text(PLAIN_STUDY)
    for variant in ("full", "no-norm"):
        for seed in (0, 1):
            fabricate(variant, seed)
    typed("ablate mine.yaml")
    whole = (ROOT / "results.json").read_bytes()
    typed("ablate mine.yaml --seeds 0")
    assert (ROOT / "results.json").read_bytes() == whole


@pytest.mark.parametrize("command", ["ablate mine.yaml", "runs rm mine --yes"])
def test_a_table_that_a_person_makes_before_there_is_a_report_is_kept(here, sketched, command):
    (here / "mine.yaml").write_text(PLAIN_STUDY)
    for variant in ("full", "no-norm"):
        fabricate(variant, 0)
    typed("ablate mine.yaml --seeds 0")
    for path in (mine := [ROOT / "figures/curves.svg", ROOT / "table.tex"]):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    for variant in ("full", "no-norm"):
        fabricate(variant, 1)
    talk = typed(command)[1]
    there = [path for old in mine for path in old.parent.glob(f"{old.name}*")]
    assert [path.read_text() for path in there].count("mine") == 2
    assert all(str(path) in talk for path in mine)


def test_a_report_that_a_person_has_changed_is_kept_beside_the_new_one(here):
    (here / "mine.yaml").write_text(PLAIN_STUDY)
    for seed in range(3):
        for variant in ("full", "no-norm"):
            fabricate(variant, seed)
        if seed == 1:
            typed("ablate mine.yaml")
            changed = [ROOT / "table.tex", ROOT / "figures/curves.svg"]
            for path in changed:
                path.write_text("mine")
            assert ".old1" not in typed("ablate mine.yaml")[1]
    _, talk = typed("ablate mine.yaml --seeds 0-2")
    kept = [path.with_name(f"{path.name}.old1") for path in changed]
    assert sorted(kept) == sorted(ROOT.rglob("*.old*"))
    for path, old in zip(changed, kept, strict=True):
        assert (old.read_text(), path.read_text() != "mine", old.name in talk) == ("mine", True, 1)


@pytest.mark.parametrize("command", ["ablate mine.yaml", "ablate mine.yaml --dry-run"])
@pytest.mark.parametrize("file", ["report.html", "table.csv", "results.json", "figures/curves.png"])
def test_a_file_of_a_person_in_the_folder_is_refused_before_anything_is_written(
    tiny, command, file
):
    Path("mine.yaml").write_text(PLAIN_STUDY)
    path = Path("paper", file)
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert str(path) in typed(f"{command} -o paper", 2)[1]
    assert [(each, each.read_text()) for each in Path("paper").rglob("*.*")] == [(path, "mine")]


def test_a_start_that_is_no_run_is_refused_before_anything_is_written(tiny):
    Path("mine.yaml").write_text(f"{PLAIN_STUDY}  tuned: {{train.init: gone}}\n")
    assert "tuned/seed0: train.init: " in said(4, "ablate", "mine.yaml", "--dry-run")
    assert not ROOT.exists()


def test_a_duration_has_a_unit():
    found = [parse_duration(text) for text in ("90s", "30m", "1.5h", "2d")]
    assert found == [90, 1800, 5400, 172800]
    for wrong in ("", "0m", "h", "-1h", "1 h 2", "1e3s", "inf"):
        with pytest.raises(ConfigError):
            parse_duration(wrong)


def test_a_driver_has_the_words_of_the_command_without_those_of_its_engine():
    words = "ablate mine.yaml --engine ray -j 4 --gpus=0.5 -s a.b=1 -o far --seeds 0-7 -ofar -j2"
    assert " ".join(shared_words(words.split())) == "ablate mine.yaml -s a.b=1 --seeds 0-7"
