"""The page about plugins names each hook: what a plugin states, and each table that it extends."""

import re
from dataclasses import fields
from pathlib import Path

from vitcli.plugin import DOORS, TABLES, Plugin
from vitcli.version import PACKAGE

PAGE = (Path(__file__).parents[2] / "docs/reference/plugins.md").read_text()
SET_BY_VITCLI = {"package", "version", "problem", "modules"}


def test_each_hook_is_documented():
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    tables = set(re.findall(r'Registry\[.+?\]\("([^"]+)"\)', sources))
    tables |= set(re.findall(r'rows_of\("([^"]+)"\)', sources))
    assert tables == {*TABLES}
    stated = {field.name for field in fields(Plugin)} - SET_BY_VITCLI
    assert not {name for name in tables | stated if f"`{name}`" not in PAGE}
    assert set(re.findall(r'with_plugins\("([^"]+)"\)', sources)) == {*DOORS}
