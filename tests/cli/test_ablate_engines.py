"""`vitcli ablate --engine` and `--first`, with an engine that trains nothing."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runner.engines.test_drive import Fake, train_here
from tests.runner.study.test_states import STUDY
from vitcli.cli import ablate as command
from vitcli.cli.engines import parse_duration, parse_minutes, parse_sbatch
from vitcli.cli.main import app
from vitcli.runner.engines import drive, make
from vitcli.runner.engines.engine import Setup
from vitcli.runner.errors import ConfigError

RAY = ["--engine", "ray", "--address", "auto", "--gpus", "0.25"]


class Recorded(Fake):
    """Keeps the setup that it is made with."""

    setup: Setup

    def __call__(self, name: str, root: Path, jobs: Any, setup: Setup) -> "Fake":
        self.name, self.setup = name, setup
        return super().__call__(name, root, jobs, setup)


@pytest.fixture
def engine(here, monkeypatch) -> Recorded:
    (here / "mine.yaml").write_text(STUDY)
    found = Recorded(train_here)
    monkeypatch.setattr(drive, "make_engine", found)
    monkeypatch.setattr(make, "REQUIRED", {})
    monkeypatch.setattr(command, "show_table", lambda *_: None)
    monkeypatch.setattr("vitcli.runner.study.page.publish", lambda *_: None)
    return found


def ablate(*words: str) -> tuple[int, str]:
    line = ["ablate", "mine.yaml", "--device", "cpu", *words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["vitcli", *line])
        result = CliRunner().invoke(app, line)
    return result.exit_code, result.stderr


def test_the_first_trial_is_tried_here_before_the_rest_goes_to_a_cluster(engine):
    code, talk = ablate(*RAY, "--first")
    assert code == 0, talk
    assert (engine.rounds, engine.name) == ([["full/seed0"]], "local")
    assert "next    vitcli ablate mine.yaml --device cpu --engine ray --address auto " in talk
    code, talk = ablate(*RAY)
    assert code == 0, talk
    assert sorted(engine.rounds[1]) == ["full/seed1", "no-norm/seed0", "no-norm/seed1"]
    cluster = engine.setup.cluster
    assert (engine.name, cluster.address, cluster.gpus) == ("ray", "auto", 0.25)
    assert engine.setup.count is None, "as many at once as fit"


def test_the_plan_of_the_first_trial_trains_nothing(engine):
    code, talk = ablate(*RAY, "--first", "--dry-run")
    assert (code, "full/seed0" in talk, engine.rounds) == (0, True, [])


def test_the_first_trial_is_saved_at_once(engine, here):
    code, talk = ablate(*RAY, "--first", "--save", "saved")
    assert code == 0, talk
    assert [path.name for path in (here / "saved/mine").glob("*.jsonl")] == ["seed0.jsonl"]


def test_times_and_options_of_sbatch_are_read():
    found = [parse_duration(text) for text in ("90s", "30m", "1.5h", "2d")]
    assert found == [90, 1800, 5400, 172800]
    assert [parse_minutes(text) for text in ("30m", "2h", "1d")] == [30, 120, 1440]
    assert parse_sbatch("account=vision") == ("account", "vision")
    assert parse_sbatch("--mail-user=a@b.org") == ("mail-user", "a@b.org")
    for wrong in ("", "0m", "h", "-1h", "1 h 2", "1e3s", "inf"):
        for parse in (parse_minutes, parse_duration):
            with pytest.raises(ConfigError):
                parse(wrong)
