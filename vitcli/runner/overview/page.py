"""The page of runs: one HTML file with every run and study below a folder.

The page needs no network and runs one script, which its content-security policy names by a hash.
Its data is JSON that is never run as code; the script writes names as text only.
"""

import time
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, make_output_folder, policy_hash
from vitcli.runner.overview.collect import collect
from vitcli.runner.report import pages
from vitcli.runner.run.listing import PAGE, PAGE_MARK, is_page_of_runs
from vitcli.runner.text import printable
from vitcli.version import __version__

SCRIPTS = ("overview/rows.js", "overview/chart.js", "overview/runs.js")
"""The files of the page's script, in the order in which they are joined."""


def write_page(folder: Path, output: Path | None = None) -> tuple[Path, dict[str, Any]]:
    """Write the page of a folder; return its path and its data."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; train a run first: vitcli train")
    page = output or folder / PAGE
    if page.exists() and not is_page_of_runs(page):
        raise ConfigError(f"{page}: not a page of runs; name another file with -o")
    data = collect(folder, page)
    if not (data["runs"] or data["studies"]):
        raise InputError(f"{folder}: holds no run; train one: vitcli train")
    make_output_folder(page.parent)
    commit(page, html(data, printable(folder.resolve().name)).encode())
    return page, data


def html(data: dict[str, Any], title: str) -> str:
    """Return the page of the data that ``collect`` returns."""
    style, script = pages.source("overview/runs.css"), pages.sources(*SCRIPTS)
    return pages.render(
        "overview/runs.html",
        data=data,
        title=title,
        mark=Markup(PAGE_MARK),
        style=style,
        script=script,
        style_hash=Markup(policy_hash(style)),
        script_hash=Markup(policy_hash(script)),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        version=__version__,
    )
