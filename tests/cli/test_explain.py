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
    assert (code, "photo.png" in out, "(1, 5, 16)" in out) == (0, True, True), talk  # 2x2 and CLS
    found = json.loads(explain("average", mapped_run, "--json")[1])
    assert (found["run"], found["average"]["query"]) == (str(mapped_run), "CLS")


def test_the_page_and_the_text_are_written(here):
    assert explain("average", "-o", "one.html")[:2] == (0, "one.html\n")
    assert re.findall(r'<section id="(\w+)"', Path("one.html").read_text())[0] == "average"
    assert explain("average", "--format", "html")[:2] == (0, "explain-average.html\n")
    assert Path("explain-average.html").read_bytes() == Path("one.html").read_bytes()
    assert explain("average", "-o", "one.txt")[:2] == (0, "one.txt\n")
    assert Path("one.txt").read_text() == explain("average")[1]
