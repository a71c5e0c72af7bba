"""`vitcli explain`: the list, a topic, the page, and errors in one line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.runner.explain.topics import TOPICS


def explain(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["explain", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_list_has_every_topic_with_a_sentence_and_the_next_command(here):
    code, out, _ = explain()
    assert code == 0
    for name, topic in TOPICS.items():
        assert re.search(rf"^{name} +{re.escape(topic['about'])}$", out, re.MULTILINE)
    commands = re.findall(r"vitcli explain (\w+)", out)
    assert commands
    assert set(commands) <= {*TOPICS}
    assert out.rstrip().endswith("vitcli explain --format html")


def test_the_list_loads_no_torch(environment):
    code = (
        "import sys\nfrom vitcli.cli.explain import overview\noverview()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_a_topic_on_a_run_of_ones_own_and_a_picture(mapped_run):
    Image.new("RGB", (40, 30), "teal").save("photo.png")
    code, out, talk = explain("attention", "--run", mapped_run, "--image", "photo.png")
    assert code == 0, talk
    assert "picture: photo.png" in out
    assert "(1, 5, 16)" in out  # 2x2 patches and CLS
    assert "next  vitcli explain scale" in talk
    code, out, _ = explain("average", "--run", mapped_run, "--json")
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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["scale", "--image", ""], 2, "--image is empty; is a shell variable unset?"),
        (["scale", "--json", "--format", "html"], 2, "--json prints numbers, not a file; leave"),
        (["scale", "--json", "-o", "x.txt"], 2, "leave out --format html and -o"),
        (["attentoin"], 2, "did you mean 'attention'?"),
        (["zebra"], 2, "the topics are patches, attention,"),
        (["scale", "--format", "html", "-o", "page.txt"], 2, "a page ends in .html"),
        (["scale", "--format", "text", "-o", "page.html"], 2, "a page ends in .html"),
        (["-o", "all.txt"], 2, "name a topic"),
        (["scale", "-o", "-"], 2, "without -o"),
        (["scale", "--run", "nobody"], 4, "no run is called 'nobody'"),
        (["scale", "--image", "nothing.png"], 4, "nothing.png"),
    ],
)
def test_mistakes_are_one_line(here, words, code, message):
    found = explain(*words)
    assert found[:2] == (code, "")
    assert message in found[2]
    assert found[2].count("\n") == 1
