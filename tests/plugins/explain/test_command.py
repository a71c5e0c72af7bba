"""`vitcli explain`: the list, a topic, the page, and errors in one line."""

import json
from pathlib import Path

from PIL import Image

from tests.cli.commands import document, printed, vitcli


def test_an_older_checkpoint_of_a_run_of_ones_own_is_told_once(mapped_run):
    Image.new("RGB", (40, 30), "teal").save("photo.png")
    status = mapped_run / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"step": 99}))
    told = "step 99 is missing"
    found = document("explain", "attention", mapped_run, "photo.png")
    assert (found["run"], found["picture"]) == (str(mapped_run), "photo.png")
    assert told in found["notes"][0]
    _, out, talk = vitcli("explain", "attention", mapped_run)
    assert (out.count(told), talk.count(told)) == (0, 1)


def test_the_page_is_written(here):
    assert printed("explain", "average", "-o", "one.html") == "one.html\n"
    assert printed("explain", "average", "--format", "html") == "explain-average.html\n"
    assert Path("explain-average.html").read_bytes() == Path("one.html").read_bytes()
    assert vitcli("explain", "average", "-o", "one.txt")[0] == 2
