"""Shell completion: what it offers, in which words, and without noise."""

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import HANG
from tests.terminal import read_until, read_until_end
from vitcli.cli.main import main

SHIM = f"""#!/bin/sh
exec {sys.executable} -c '
import sys
from vitcli.cli.main import main
sys.argv[0] = "vitcli"
main()' "$@"
"""


@pytest.fixture
def place(here) -> Path:
    """A folder with runs, a study of the user, pictures and broken files."""
    for run in ("photos", "twice/train/seed0", "twice/train/seed1", "quickstart/train/seed0"):
        (here / "runs" / run).mkdir(parents=True)
        (here / "runs" / run / "config.yaml").write_text("{")
    (here / "mine.yaml").write_text("base: ablation-quickstart\n")
    (here / "broken.yaml").write_text("{")
    (here / "bytes.yaml").write_bytes(b"\xff\xfe")
    (here / "pictures" / "train").mkdir(parents=True)
    (here / "red\x1b[31m").mkdir()
    (here / "photo.jpg").touch()
    (here / "theirs.pt").touch()
    return here


def bash_words(line: str) -> dict[str, str]:
    """Return the variables of the completion script in bash, which splits words at = and :."""
    words: list[str] = []
    for word in line.split(" "):
        words += [part for part in re.split("([=:]+)", word) if part] or [""]
    return {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}


def typed(line: str) -> dict[str, str]:
    return {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


@pytest.fixture
def complete(place, monkeypatch, capsys):
    """Return a function that lists what a shell is offered for the last word of a line."""

    def offered(line: str, shell: str = "bash") -> list[str]:
        variables = {"VITCLI_TRACEBACK": "1"}  # a bug must not look like a line without an answer
        variables |= bash_words(line) if shell == "bash" else typed(line)
        for name, value in {"_VITCLI_COMPLETE": f"complete_{shell}", **variables}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            main()
        printed = capsys.readouterr()
        assert printed.err == ""
        return [each.partition("\t")[0] for each in printed.out.splitlines() if each]

    return offered


TWICE = ["twice/train/seed0", "twice/train/seed1"]
OFFERS = {
    "vitcli ev": ["eval"],
    "vitcli train cifar10-tiny-": ["cifar10-tiny-fast", "cifar10-tiny-native"],
    "vitcli train ablation-l": [],
    "vitcli train ./": [],
    "vitcli ablate ablation-length-1": ["ablation-length-15", "ablation-length-15-fashion"],
    "vitcli search search-": ["search-grid", "search-quickstart", "search-tiny"],
    "vitcli ablate m": ["mine.yaml"],
    "vitcli experiments show ablation-pos": ["ablation-positions"],
    "vitcli bench train quick": ["quickstart"],
    "vitcli import vit.pt cifar10-sw": ["cifar10-swin"],
    "vitcli attn-map theirs": ["theirs.pt"],
    "vitcli export ph": ["photos"],
    "vitcli export ph --format s": ["safetensors"],
    "vitcli eval ph": ["photos"],
    "vitcli eval qu": ["quickstart"],
    "vitcli eval quickstart/": ["quickstart/train/seed0"],
    "vitcli eval tw": TWICE,
    "vitcli eval cifar10-p": ["cifar10-pocket"],
    "vitcli runs rm cifar10-p": [],
    "vitcli runs rm ph": ["photos"],
    "vitcli predict ph": ["photo.jpg", "photos"],
    "vitcli train --init ph": ["photos"],
    "vitcli train --resume ": ["auto", "photos", "quickstart", *TWICE],
    "vitcli train --data cifar": ["cifar10", "cifar100"],
    "vitcli data info mn": ["mnist"],
    "vitcli train --data imagefolder:pic": ["pictures"],
    "vitcli train --data imagefolder:re": [],
    "vitcli train --data=imagefolder:pictures/": ["pictures/train"],
    "vitcli train -s model.de": ["model.depth=", "model.depth=4"],
    "vitcli train -s model.depth=": ["4"],
    "vitcli train cifar10-swin -s model.de": ["model.depths=", "model.depths=[2,4,2]"],
    "vitcli train -s optim.name=": ["adamw", "adam", "sgd", "muon"],
    "vitcli train -s model.attention=li": ["linformer", "linear"],
    "vitcli train --set=model.attention=li": ["linformer", "linear"],
    "vitcli train -s model.family=s": ["swin"],
    "vitcli train -s model.qkv_bias=": ["true", "false"],
    "vitcli train -s train.precision=b": ["bf16"],
    "vitcli train -s data.name=cifar": ["cifar10", "cifar100"],
    "vitcli train broken.yaml -s model.dep": ["model.depth=", "model.depth=4"],
    "vitcli train -s nonsense=": [],
}


def test_what_each_shell_is_offered(complete):
    """bash replaces the part after = or :, and other shells the whole word."""
    found = {line: sorted(complete(line)) for line in OFFERS}
    assert found == {line: sorted(offered) for line, offered in OFFERS.items()}
    line = "vitcli train --data=imagefolder:pictures/"
    assert complete(line, "fish") == ["imagefolder:pictures/train"]
    (first, *_, last) = complete("vitcli train -s model.attention=li", "zsh")
    assert first.endswith('"model.attention=linformer"')
    assert last.startswith('"model.attention=linear"')
    assert "quickstart" in complete("vitcli train -s model.depth= "), "a space begins a new word"


@pytest.mark.parametrize("variables", [{}, {"COMP_CWORD": "x", "COMP_WORDS": ""}], ids=str)
def test_a_broken_request_gets_no_message(variables, here, monkeypatch, capsys):
    for name, value in {"_VITCLI_COMPLETE": "complete_bash", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr() == ("", "")


KEYS = {
    "train cifar10-tiny-f\t": "<train><cifar10-tiny-fast>",
    "eval ph\t": "<eval><photos>",
    "train --set=model.attention=\tlinf\t": "<train><--set=model.attention=linformer>",
    "train -s model.dep\t\t": "<train><-s><model.depth=4>",
    "train --data imagefolder:pic\t": "<train><--data><imagefolder:pictures>",
    "predict photo.\t": "<predict><photo.jpg>",
}
"""Keys pressed after "vitcli " -> the words of the line after that."""


@pytest.mark.ci
@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_keys_pressed_in_bash(place, environment):
    """Install completion as the documentation says, then press the keys in a terminal."""
    (place / "bin").mkdir()
    (place / "bin" / "vitcli").write_text(SHIM)
    (place / "bin" / "vitcli").chmod(0o755)
    own = {"HOME": str(place), "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "TERM": "xterm"}
    install = ["bash", "--norc", "-c", "vitcli --install-completion; true"]
    subprocess.run(install, env=environment | own, check=True, capture_output=True, timeout=HANG)
    with open(place / ".bashrc", "a") as rc:
        rc.write("bind 'set enable-bracketed-paste off'\nPS1='READY> '\n")
    screen = press_keys(environment | own)
    assert re.findall(r"(?m)^<vitcli>(.*?)\r?$", screen) == list(KEYS.values())


def press_keys(environment: dict[str, str]) -> str:
    """Press ``KEYS`` in an interactive bash, and print the words of each line with printf."""
    terminal, other = pty.openpty()
    options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), other)
    options |= {"env": environment, "start_new_session": True}
    shell = subprocess.Popen(["bash", "--noprofile", "-i"], **options)
    os.close(other)
    seen = b""
    start_of_line, end_of_line = "\x01", "\x05"
    lines = [f"vitcli {keys}{start_of_line}printf '<%s>' {end_of_line} && echo" for keys in KEYS]
    for line in [*lines, "exit"]:
        seen += read_until(terminal, b"READY> ")
        os.write(terminal, f"{line}\n".encode())
    seen += read_until_end(terminal)
    os.close(terminal)
    assert shell.wait(timeout=HANG) == 0
    return seen.decode()
