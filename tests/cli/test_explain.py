"""`vitcli explain`: the list, a topic, the page, and errors in one line."""

import re
from pathlib import Path

from PIL import Image

from tests.cli.commands import document, printed


def test_a_topic_on_a_run_of_ones_own_and_a_picture(mapped_run):
    Image.new("RGB", (40, 30), "teal").save("photo.png")
    out = printed("explain", "attention", mapped_run, "photo.png")
    assert ("photo.png" in out, "(1, 5, 16)" in out) == (True, True)  # 2x2 patches and CLS
    found = document("explain", "average", mapped_run)
    assert (found["run"], found["average"]["query"]) == (str(mapped_run), "CLS")


def test_the_page_and_the_text_are_written(here):
    assert printed("explain", "average", "-o", "one.html") == "one.html\n"
    assert re.findall(r'<section id="(\w+)"', Path("one.html").read_text())[0] == "average"
    assert printed("explain", "average", "--format", "html") == "explain-average.html\n"
    assert Path("explain-average.html").read_bytes() == Path("one.html").read_bytes()
    assert printed("explain", "average", "-o", "one.txt") == "one.txt\n"
    assert Path("one.txt").read_text() == printed("explain", "average")
