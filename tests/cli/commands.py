"""`vitcli` in a test, and pictures for it."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import typer.testing
from PIL import Image
from typer.testing import CliRunner

from tests.patience import HANG
from vitcli.cli.main import app, main

# typer's runner makes all commands anew for each call, which takes longer than most calls.
typer.testing._get_command = cache(typer.main.get_command)


def root() -> Any:
    return typer.testing._get_command(app)


def commands_of(group: Any, path: str = "vitcli") -> Iterator[tuple[str, Any]]:
    """Yield ``vitcli train``, ``vitcli runs``, ``vitcli runs ls`` and so on with their objects."""
    for name, each in getattr(group, "commands", {}).items():
        yield f"{path} {name}", each
        yield from commands_of(each, f"{path} {name}")


def vitcli(*words: object) -> tuple[int, str, str]:
    typed = [*map(str, words)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["vitcli", *typed])
        result = CliRunner().invoke(app, typed, prog_name="vitcli")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.stderr
    return result.exit_code, result.stdout, result.stderr


def printed(*words: object) -> str:
    code, out, talk = vitcli(*words)
    assert code == 0, talk
    return out


def said(code: int, *words: object) -> str:
    found, _, talk = vitcli(*words)
    assert found == code, talk
    return talk


def typed(command: str, code: int = 0) -> tuple[str, str]:
    found, out, talk = vitcli(*shlex.split(command))
    assert found == code, talk
    return out, talk


def offered(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what bash completes a line with."""
    words = line.split(" ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_VITCLI_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", "\n".join(words))
        patch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            main()
    printed = capsys.readouterr()
    assert printed.err == ""
    return sorted(word for word in printed.out.splitlines() if word)


def started(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vitcli", *map(str, words)]
    streams: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    streams |= {"text": True, "timeout": HANG}
    return subprocess.run(command, check=False, **streams | options)


def document(*words: object, code: int = 0) -> Any:
    found, out, talk = vitcli(*words, "--json")
    assert found == code, talk
    return json.loads(out)


def save_picture(name: str, size: tuple[int, int], mode: str = "RGB", **options) -> str:
    rng = np.random.default_rng(1)
    pixels = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    pixels.convert(mode).save(name, **options)
    return name
