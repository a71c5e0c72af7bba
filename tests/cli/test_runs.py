"""`vitcli runs` on fabricated folders."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fabricated import make_run
from tests.patience import HANG
from vitcli.cli.main import app
from vitcli.runner.files import to_hashed_json
from vitcli.runner.run.folder import RunDir

pytestmark = pytest.mark.usefixtures("here")


def vitcli(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; without a terminal."""
    result = CliRunner().invoke(app, ["runs", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.stderr
    return result.exit_code, result.stdout, result.stderr


def listed(*words: object) -> list[dict]:
    code, out, _ = vitcli("ls", "--json", *words)
    assert code == 0
    return json.loads(out)


def age(run: RunDir, seconds: float) -> RunDir:
    """Make a run older."""
    os.utime(run.path / "status.json", (1e9 - seconds, 1e9 - seconds))
    return run


def test_ls_of_nothing_says_what_to_type():
    assert vitcli("ls") == (0, "", "no runs yet; start with: vitcli train\n")
    assert listed() == []


def test_ls_is_a_table_oldest_first():
    age(make_run(1, accuracy=0.25), 10)
    age(make_run(0, accuracy=0.75), 20)
    code, out, talk = vitcli("ls")
    assert code == 0
    assert [" ".join(line.split()) for line in out.splitlines()[1:]] == [
        "quickstart/train/seed0 scenes finished 75.00 % 140,618 3 min 20 s",
        "quickstart/train/seed1 scenes finished 25.00 % 140,618 3 min 20 s",
    ]
    assert talk == "next: vitcli runs show quickstart/train/seed1\n"


def test_ls_json_has_what_scripts_need():
    make_run(3, accuracy=0.25)
    (run,) = listed()
    assert run["name"] == "quickstart/train/seed3"
    assert run["path"] == "runs/quickstart/train/seed3"
    assert (run["state"], run["seed"], run["epochs"]) == ("finished", 3, 8)
    assert (run["test_accuracy"], run["parameters"]) == (0.25, 140618)


def test_ls_top_is_the_best_first_and_leaves_out_what_was_never_measured():
    for seed, accuracy in enumerate([0.2, 0.9, 0.4]):
        age(make_run(seed, accuracy=accuracy), seed)
    make_run(7, state="interrupted").set_metrics([])
    assert [run["seed"] for run in listed("--top", 2)] == [1, 2]
    assert len(listed("--top", 9)) == 3


def test_an_unfinished_run_shows_how_far_it_came():
    make_run(0, state="interrupted", accuracy=0.5)
    _, out, _ = vitcli("ls")
    assert "interrupted 3/8   50.00 %           -     -" in out


def test_a_killed_run_is_not_called_running_and_one_in_work_is():
    run = make_run(0, state="running")
    assert listed()[0]["state"] == "interrupted"
    assert listed()[0]["reason"] == "its process is gone"
    with run.lock():
        assert listed()[0]["state"] == "running"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "model: {dept: 4}"),
        ("config.yaml", "\0"),
        ("status.json", "{"),
        ("meta.json", "[]"),
        ("metrics.jsonl", "{torn\n"),
        ("result.json", ""),
    ],
)
def test_a_damaged_file_does_not_hide_the_other_runs(file, content):
    damaged = make_run(0)
    make_run(1)
    (damaged.path / file).write_text(content)
    assert sorted(run["name"] for run in listed()) == [
        "quickstart/train/seed0",
        "quickstart/train/seed1",
    ]
    assert vitcli("ls")[0] == 0


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_control_characters_in_names_are_shown_escaped(json_option):
    make_run(0, folder=Path("runs/evil\x1b[31m\nname"))
    for words in (("ls",), ("show", "evil\x1b[31m\nname"), ("rm", "-y", "evil\x1b[31m\nname")):
        code, out, talk = vitcli(*words, *json_option)
        assert code == 0
        assert "\x1b" not in out + talk
        assert "evil\\x1b[31m" in out or "evil\\u001b[31m\\nname" in out


def test_a_table_row_is_one_line_whatever_the_name():
    make_run(0, folder=Path("runs/two\nlines"))
    _, out, _ = vitcli("ls")
    assert len(out.splitlines()) == 2
    assert "two\\nlines  scenes  finished" in out


def test_show_says_state_changes_epochs_result_and_circumstances():
    make_run(0, changes={"model.depth": 2})
    code, out, talk = vitcli("show", "quickstart")
    assert code == 0
    assert "state   finished at step 800" in out
    assert "  model.depth                2\n" in out
    assert "model.patch_size" not in out, "the default is not a difference"
    assert "test_accuracy      50.00 %" in out
    assert re.search(r"hardware +AMD EPYC, 2 threads\n", out)
    epochs = out.partition("last epochs\n")[2].splitlines()
    assert [line.split()[0] for line in epochs] == ["epoch", "4", "5", "6", "7", "8"]
    assert talk == "next: vitcli eval quickstart/train/seed0\n"


def test_show_json():
    make_run(0)
    found = json.loads(vitcli("show", "quickstart", "--json")[1])
    assert found["status"]["state"] == "finished"
    assert found["config"]["model.embed_dim"] == 64
    assert "model.patch_size" not in found["config"]
    assert [record["epoch"] for record in found["metrics"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found["result"]["parameters"] == 140618
    assert found["meta"]["experiment"] == "quickstart"


@pytest.mark.parametrize(
    ("state", "command"),
    [
        ("interrupted", "vitcli train --resume quickstart/train/seed0"),
        ("running", "vitcli train --resume quickstart/train/seed0"),
        ("failed", "vitcli train --resume quickstart/train/seed0"),
        ("diverged", "vitcli train runs/quickstart/train/seed0/config.yaml -s optim.lr=0.0007"),
    ],
)
def test_show_names_what_fits_the_state(state, command):
    make_run(0, state=state)
    assert vitcli("show", "quickstart")[2] == f"next: {command}\n"


@pytest.mark.parametrize("command", ["show", "rm"])
def test_a_run_that_is_not_there(command):
    code, out, talk = vitcli(command, "quickstrat")
    assert (code, out) == (4, "")
    assert talk == "error: no run is called 'quickstrat' ('vitcli runs ls' lists them)\n"


def test_diff_shows_what_was_set_and_what_was_measured():
    make_run(0, folder=Path("runs/a"), accuracy=0.5)
    changes = {"model.depth": 2, "data.augment.mixup": 0.5}
    make_run(1, folder=Path("runs/b"), accuracy=0.625, changes=changes, meta={"commit": "e" * 40})
    code, out, _ = vitcli("diff", "a", "b")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["model.depth", "4", "2"] in lines
    assert ["data.augment.mixup", "0", "0.5"] in lines
    assert ["seed", "0", "1"] in lines
    assert ["commit", "c" * 40, "e" * 40] in lines
    assert ["test_accuracy", "50.00", "%", "62.50", "%", "+12.50", "%"] in lines
    assert "model.patch_size" not in out
    assert "torch" not in out, "the same torch is not a difference"
    found = json.loads(vitcli("diff", "a", "b", "--json")[1])
    assert found["config"].keys() == {"model.depth", "data.augment.mixup", "seed"}
    assert found["measures"]["test_accuracy"] == [0.5, 0.625]


@pytest.mark.parametrize(
    ("words", "command"), [(["a", "b c"], "diff a 'b c'"), ([], "diff A B"), (["a"], "diff A B")]
)
def test_compare_names_the_command_that_compares(words, command):
    code, out, talk = vitcli("compare", *words)
    assert (code, out) == (2, "")
    assert talk == f"error: there is no 'runs compare'; type: vitcli runs {command}\n"
    assert not re.search("^  compare", vitcli("--help")[1], re.M), "it is no command"


def test_diff_of_a_run_with_itself_is_empty():
    make_run(0)
    found = json.loads(vitcli("diff", "quickstart", "quickstart", "--json")[1])
    assert (found["config"], found["facts"]) == ({}, {})


def test_diff_with_an_unfinished_run_compares_its_epochs_so_far():
    make_run(0, folder=Path("runs/a"))
    make_run(0, folder=Path("runs/b"), state="interrupted")
    found = json.loads(vitcli("diff", "a", "b", "--json")[1])
    assert found["measures"]["epochs"] == [8, 3]
    assert found["measures"]["parameters"] == [140618, None]


def test_a_result_that_was_changed_by_hand_is_shown_as_damaged():
    run = make_run(0)
    path = run.path / "result.json"
    whole = to_hashed_json(json.loads(path.read_bytes()))
    path.write_bytes(whole)
    assert listed()[0]["state"] == "finished"
    path.write_bytes(whole.replace(b'"test_accuracy": 0.5', b'"test_accuracy": 0.9'))
    (row,) = listed()
    assert (row["state"], row["test_accuracy"]) == ("damaged", 0.5), "that of the last epoch"
    shown = json.loads(vitcli("show", "quickstart", "--json")[1])
    assert (shown["status"]["state"], shown["result"]) == ("damaged", {})
    assert vitcli("export", "--to", "csv", "-o", "out")[0] == 4


def test_rm_removes_the_run_and_the_folders_it_leaves_empty():
    make_run(0)
    make_run(1)
    code, out, _ = vitcli("rm", "quickstart/train/seed0", "--yes")
    assert (code, out) == (0, "removed quickstart/train/seed0\n")
    assert not Path("runs/quickstart/train/seed0").exists()
    assert [run["seed"] for run in listed()] == [1]
    assert json.loads(vitcli("rm", "quickstart", "-y", "--json")[1]) == {
        "removed": ["quickstart/train/seed1"]
    }
    assert list(Path("runs").iterdir()) == []


def test_rm_removes_a_run_outside_of_runs_and_nothing_around_it():
    make_run(0, folder=Path("elsewhere/run"))
    assert vitcli("rm", "elsewhere/run", "-y")[0] == 0
    assert Path("elsewhere").is_dir()
    assert not Path("elsewhere/run").exists()


@pytest.mark.parametrize("folder", [".", "runs", "quickstart/train", "elsewhere"])
def test_rm_takes_no_folder_above_a_run_for_the_run(folder):
    run = make_run(0, folder=Path("elsewhere/run") if folder == "elsewhere" else None)
    code, _, talk = vitcli("rm", folder, "--yes")
    assert code == 2
    assert f"vitcli runs rm {run.name}\n" in talk
    assert run.exists


def test_rm_without_a_terminal_and_without_yes_is_refused():
    run = make_run(0)
    code, out, talk = vitcli("rm", "quickstart")
    assert (code, out) == (2, "")
    assert talk == "error: 'vitcli runs rm' asks for confirmation; without a terminal, type --yes\n"
    assert run.exists


@pytest.mark.parametrize(
    ("answer", "code", "kept"),
    [("y\n", 0, False), ("n\n", 0, True), ("\n", 0, True), ("\4", 130, True)],
)
def test_rm_asks_on_a_terminal(answer, code, kept, environment):
    run = make_run(0)
    terminal, stdin = pty.openpty()
    words = [sys.executable, "-m", "vitcli", "runs", "rm", "quickstart"]
    process = subprocess.Popen(
        words, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.write(terminal, answer.encode())
    out, talk = process.communicate(timeout=HANG)
    os.close(terminal)
    os.close(stdin)
    assert process.returncode == code, talk
    assert b"remove quickstart/train/seed0 (0.0 MB)?" in out + talk
    assert run.exists is kept
    assert (b"nothing was removed" in talk) is kept


def test_rm_of_a_run_in_use_is_refused_and_removes_nothing(environment):
    idle, busy = make_run(0), make_run(1)
    words = ["rm", "-y", idle.name, busy.name]
    with busy.lock():
        done = subprocess.run(
            [sys.executable, "-m", "vitcli", "runs", *words],
            env=environment,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 7
    assert done.stderr.startswith("error: runs/quickstart/train/seed1: another process")
    assert idle.exists
    assert busy.exists
    assert vitcli(*words)[0] == 0


@pytest.mark.parametrize("config", ["lr: 0.1\nmodel: resnet\n", "", "seed: 3\n"])
def test_rm_leaves_folders_of_other_programs_alone(config):
    """Many programs have a config.yaml and checkpoints."""
    foreign = Path("project")
    (foreign / "checkpoints").mkdir(parents=True)
    (foreign / "config.yaml").write_text(config)
    (foreign / "checkpoints" / "best.pt").touch()
    code, _, talk = vitcli("rm", "-y", "project")
    assert code == 4
    assert "not a folder that vitcli wrote; nothing was removed" in talk
    assert (foreign / "checkpoints" / "best.pt").exists()


def test_rm_refuses_a_folder_without_config():
    Path("photos").mkdir()
    assert vitcli("rm", "-y", "photos")[0] == 4
    assert Path("photos").is_dir()


def test_rm_leaves_foreign_files_in_a_run_and_names_them():
    run = make_run(0)
    (run.path / "notes.txt").write_text("mine")
    (run.path / "events.out.tfevents.1.vm.2.3").touch()
    (run.path / ".metrics.jsonl.abc").touch()
    code, _, talk = vitcli("rm", "-y", "quickstart")
    assert code == 0
    assert "not removed, because vitcli did not write it: " in talk
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "notes.txt"]
    assert listed() == []


def test_rm_does_not_follow_links_out_of_the_run():
    run = make_run(0)
    Path("precious").mkdir()
    Path("precious/data").touch()
    (run.checkpoints / "800" / "link").symlink_to(Path("precious").resolve())
    assert vitcli("rm", "-y", "quickstart")[0] == 0
    assert Path("precious/data").exists()


def test_rm_of_one_run_named_twice():
    make_run(0)
    assert vitcli("rm", "-y", "quickstart", "runs/quickstart/train/seed0")[0] == 0


def test_rm_removes_a_run_whose_config_is_damaged():
    run = make_run(0)
    (run.path / "config.yaml").write_text("model: {dept: 4}")
    assert vitcli("rm", "-y", "quickstart")[0] == 0
    assert not run.path.exists()


def test_record_writes_a_file_or_prints_the_document():
    make_run(1)
    make_run(0)
    names = ["quickstart/train/seed1", "quickstart/train/seed0"]
    code, out, talk = vitcli("record", *names, "-o", "results/quickstart.json")
    assert (code, out, talk) == (0, "", "wrote results/quickstart.json\n")
    written = json.loads(Path("results/quickstart.json").read_text())
    assert written == json.loads(vitcli("record", *names)[1])
    assert [trial["seed"] for trial in written["rows"][0]["trials"]] == [0, 1]


def test_record_says_that_the_code_was_changed():
    make_run(0, meta={"dirty": True})
    code, out, talk = vitcli("record", "quickstart", "--json")
    assert code == 0
    assert json.loads(out)["dirty"] is True
    assert "uncommitted changes" in talk


def test_listing_runs_does_not_load_torch(environment):
    make_run(0)
    code = (
        "import sys; sys.argv = ['vitcli', 'runs', 'ls']\n"
        "from vitcli.cli.main import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart/train/seed0" in done.stdout
