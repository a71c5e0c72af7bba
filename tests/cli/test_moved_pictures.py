"""``--data-dir`` of a run whose own pictures have moved."""

import json
from pathlib import Path

from tests.cli.test_train_eval_predict import one_line, vitcli


def test_a_run_finds_its_pictures_after_they_have_moved(tiny, pictures, here):
    assert vitcli("train", tiny, "-o", "run", "--epochs", 1)[0] == 0
    accuracy = json.loads(Path("run/result.json").read_text())["test_accuracy"]
    moved = pictures.rename(here / "moved")
    code, _, talk = vitcli("train", tiny, "-o", "new", "--resume", "auto", "--data-dir", moved)
    assert (code, "leave out --data-dir" in one_line(talk)) == (2, True)
    more = ("train", "--resume", "run", "--epochs", 2, "--allow-inexact")
    for words in (["eval", "run"], more):
        code, _, talk = vitcli(*words)
        assert code == 4
        assert "--data-dir" in one_line(talk)
    code, out, talk = vitcli("eval", "run", "--json", "--data-dir", moved)
    assert (code, json.loads(out)["test_accuracy"]) == (0, accuracy)
    assert "other images" not in talk
    assert vitcli("visualize", "run", "--what", "curves", "--data-dir", moved)[0] == 0
    assert vitcli(*more, "--data-dir", moved)[0] == 0
    assert f"imagefolder:{pictures}" in Path("run/config.yaml").read_text()

    (moved / "test" / "dark" / "0.png").unlink()
    code, _, talk = vitcli(*more[:3], "--epochs", 3, "--allow-inexact", "--data-dir", moved)
    assert code == 4
    assert "was trained on other images" in one_line(talk)
    code, _, talk = vitcli("eval", "run", "--data-dir", moved)
    assert code == 0
    assert "was trained on other images" in talk
