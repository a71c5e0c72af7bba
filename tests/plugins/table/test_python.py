"""`vitcli.table` of a data frame and of a file."""

from types import SimpleNamespace

import pytest

import vitcli
from tests.test_api import refusal
from vitcli import api, plugin


class Frame:
    """What is used of a data frame of pandas, whose index has the first columns."""

    def __init__(self, *names: str | None) -> None:
        self.index = SimpleNamespace(names=names or (None,))

    def to_csv(self, index: bool) -> str:
        rows = [f"{name},{seed}.0,{seed + 1}," for name in "ab" for seed in range(3)]
        left = 0 if index else sum(name is not None for name in self.index.names)
        lines = ["variant,seed,loss,note", *rows]
        return "\n".join(",".join(line.split(",")[left:]) for line in lines)


@pytest.mark.parametrize("names", [("variant",), ("variant", "seed")])
def test_the_index_of_a_frame_may_have_the_variant_and_the_seed(names):
    plain = vitcli.table(Frame(), score="loss")
    assert vitcli.table(Frame(*names), score="loss").document.rows == plain.document.rows


def test_a_table_is_made_from_a_frame_or_a_file(tmp_path):
    messages: list[str] = []
    found = vitcli.table(Frame(), score="loss", baseline="b", on_message=messages.append)
    assert messages == ["not used: note"]
    assert "lower is better" in str(found)
    assert [trial.seed for trial in found.document.rows[0].trials] == [0, 1, 2], "0.0 is 0"
    assert [row.variant for row in found.document.rows] == ["b", "a"]
    file = tmp_path / "results.csv"
    file.write_text(Frame().to_csv(index=False))
    same = vitcli.table(str(file), score="loss", baseline="b", on_message=messages.append)
    assert same.document.rows == found.document.rows
    assert same.document.command == "vitcli.table('results.csv', score='loss', baseline='b')"
    for name, value in {"baseline": 3, "margin": "1", "seed": "sead"}.items():
        assert repr(value).strip("'") in refusal(vitcli.table, file, score="loss", **{name: value})


def test_without_its_plugin_the_function_says_what_it_needs(monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, "no:table")
    monkeypatch.setattr(api, "FUNCTIONS", plugin.Registry(api.FUNCTIONS.field))
    assert "needs the plugin table, which is off" in refusal(vitcli.table, "results.csv")


def test_folds_in_the_index_of_a_frame_are_no_seeds():
    rows = ["fold,variant,seed,loss", *(f"{i},{v},{i + 5},{i}" for v in "ab" for i in range(3))]
    texts = {True: "\n".join(rows), False: "\n".join(row.partition(",")[2] for row in rows)}
    frame = SimpleNamespace(
        index=SimpleNamespace(names=["fold"]), to_csv=lambda index: texts[index]
    )
    assert "the rows of a variant are folds" in refusal(vitcli.table, frame, score="loss")
