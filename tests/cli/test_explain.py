"""`vitcli explain`: the list, a topic, the page, and errors in one line."""

import json
import re
from functools import partial
from pathlib import Path

from PIL import Image

from tests.cli import commands

explain = partial(commands.vitcli, "explain")


def test_a_topic_on_a_run_of_ones_own_and_a_picture(mapped_run):
    Image.new("RGB", (40, 30), "teal").save("photo.png")
    code, out, talk = explain("attention", mapped_run, "photo.png")
    assert code == 0, talk
    assert "picture: photo.png" in out
    assert "(1, 5, 16)" in out  # 2x2 patches and CLS
    assert "next  vitcli explain scale" in talk
    code, out, _ = explain("average", mapped_run, "--json")
    found = json.loads(out)
    assert found["run"] == str(mapped_run)
    assert found["average"]["query"] == "CLS"


def test_the_page_and_the_text_are_written(here):
    code, out, _ = explain("average", "-o", "one.html")
    assert (code, out) == (0, "one.html\n")
    assert re.findall(r'<section id="(\w+)"', Path("one.html").read_text())[0] == "average"
    code, out, _ = explain("average", "--format", "html")
    assert (code, out) == (0, "explain-average.html\n")
    assert Path("explain-average.html").read_bytes() == Path("one.html").read_bytes()
    code, out, _ = explain("average", "-o", "one.txt")
    assert (code, out) == (0, "one.txt\n")
    assert Path("one.txt").read_text() == explain("average")[1]
