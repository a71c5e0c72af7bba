"""The errors of a CSV file of pictures name the line, and its classes are sorted."""

import pytest

from vitcli.runner.data.own import list_pictures
from vitcli.runner.errors import InputError


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b.png,cat,test,", "line 3: there is no picture .*b.png"),
        ("a.png,dog,train,", "line 3: a.png was named before"),
        ("../x/a.png,cat,test,", "line 3: ../x/a.png is outside the folder"),
        ("/etc/passwd,cat,test,", "line 3: /etc/passwd is outside the folder"),
        ("c.png,,test,", "line 3: the label is empty"),
        (",cat,test,", "line 3: the path is empty"),
        ("c.png,cat,tset,", "line 3: unknown split 'tset'; did you mean 'test'"),
        ("c.png,cat,,", "line 3: either each line has a split, or none"),
        ("c.png,cat,test", "line 3: 3 columns, not 4"),
        ("c.png,owl,test,", "class 'owl' has no training picture"),
        ("c.png,cat,train,", "only one class, 'cat'"),
    ],
)
def test_a_csv_file_names_the_wrong_line(line, said, tmp_path):
    for name in "ac":
        (tmp_path / f"{name}.png").touch()
    path = tmp_path / "x.csv"
    path.write_text(f"path,label,split,group\na.png,cat,train,\n{line}\n")
    with pytest.raises(InputError, match=said) as caught:
        list_pictures(f"csv:{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "said"),
    [("path,lable", "no column 'label'"), ("path,label,colour", "unknown column 'colour'"),
     ("path,label,label", "twice the column 'label'")],
)  # fmt: skip
def test_a_csv_file_has_known_columns(header, said, tmp_path):
    (tmp_path / "x.csv").write_text(f"{header}\n")
    with pytest.raises(InputError, match=f"line 1: {said}"):
        list_pictures(f"csv:{tmp_path / 'x.csv'}")


def test_numbers_as_labels_are_sorted_by_value(tmp_path):
    lines = [f"{label}.png\t{label}" for label in (10, 9, 2)]
    for label in (10, 9, 2):
        (tmp_path / f"{label}.png").write_bytes(b"")
    (tmp_path / "x.csv").write_text("\n".join(["path\tlabel", *lines]))
    assert list_pictures(f"csv:{tmp_path / 'x.csv'}").class_names == ("2", "9", "10")
