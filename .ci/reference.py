"""The reference pages that describe the command line and the fields, from Typer and the schema."""

import re
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

import typer

from vitcli.cli.main import app
from vitcli.runner.report.tables import markdown_grid

EVERYWHERE = ("quiet", "verbose", "help", "help_all")
EXAMPLE = re.compile(r"^([^\n]+):\n((?: +.+\n?)+)", re.MULTILINE)
KIND = {"model": "family", "task": "name"}
"""Section of an experiment file -> the field whose value decides which other fields it has."""


def commands() -> str:
    """Return every command with its arguments and options, those of ``--help-all`` too."""
    return "\n\n".join(_commands("vitcli", typer.main.get_command(app)))


def _commands(path: str, group: Any) -> Iterator[str]:
    for name, command in getattr(group, "commands", {}).items():
        yield f"{'##' if path == 'vitcli' else '###'} {path} {name}"
        yield EXAMPLE.sub(_block, cleandoc(command.help.replace("\b", ""))).strip()
        if not hasattr(command, "commands"):
            yield _parameters(command)
        yield from _commands(f"{path} {name}", command)


def _block(example: re.Match[str]) -> str:
    return f"{example[1]}:\n\n```bash\n{cleandoc(example[2])}\n```\n"


def _parameters(command: Any) -> str:
    context = command.make_context(command.name, [], resilient_parsing=True)
    rows = []
    for each in command.get_params(context):
        if each.name in EVERYWHERE:
            continue
        more, each.hidden = getattr(each, "hidden", False), False
        name, about = each.get_help_record(context)
        rows.append([f"`{name.replace('|', ' or ')}`", f"{about}{' (`--help-all`)' * more}"])
        each.hidden = more
    return markdown_grid(["argument or option", "meaning"], rows)


def fields(schema: dict[str, Any]) -> str:
    """Return every field of an experiment file by section, with type, default and meaning."""
    sections = {name: _kinds(schema, each) for name, each in schema["properties"].items()}
    parts = ["## Top level", _grid("", schema["properties"])]
    for section, kinds in sections.items():
        for kind in kinds:
            parts += _section(schema, section, kind["properties"], kinds[0]["properties"])
    return "\n\n".join(parts)


def _section(
    schema: dict[str, Any], section: str, found: dict[str, Any], first: dict[str, Any]
) -> Iterator[str]:
    row = found.get(KIND.get(section, ""), {}).get("const")
    yield f"## {section}" + f": {row}" * bool(row)
    own = {name: each for name, each in found.items() if found is first or first.get(name) != each}
    if len(own) < len(found):
        shared = ", ".join(f"`{name}`" for name in found if name not in own)
        yield f"As for `{first[KIND[section]]['const']}`: {shared}."
    yield _grid(f"{section}.", own)
    for name, each in own.items():
        for below in _kinds(schema, each) if section != "pretrain" else ():
            yield from (f"### {section}.{name}", _grid(f"{section}.{name}.", below["properties"]))


def _kinds(schema: dict[str, Any], field: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sections with fields of their own that a field's value can be."""
    every = (schema["$defs"].get(_name(each), each) for each in [field, *field.get("anyOf", [])])
    return [each for each in every if "properties" in each]


def _name(field: dict[str, Any]) -> str:
    return field.get("$ref", "").rpartition("/")[2]


def _grid(prefix: str, found: dict[str, Any]) -> str:
    rows = []
    for name, each in found.items():
        default = each.get("default")
        shown = "" if default in (None, "") or isinstance(default, dict) else f"`{default}`"
        about = each.get("description", "").replace("\n", " ")
        rows.append([f"`{prefix}{name}`", _values(each), shown, about])
    return markdown_grid(["field", "values", "default", "meaning"], rows)


def _values(field: dict[str, Any]) -> str:
    """Return what a field's value can be, such as "integer, 1 to 256, or unset"."""
    if "anyOf" in field:
        kinds = list(dict.fromkeys(_values(each) for each in field["anyOf"]))
        return " or ".join(sorted(filter(None, kinds), key="unset".__eq__))
    if "oneOf" in field:
        return ", ".join(f"`{each['const']}`" for each in field["oneOf"] if "const" in each)
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field.get("type") == "array":
        items = {_values(each) for each in [*field.get("prefixItems", []), field.get("items", {})]}
        return "list: " + ", ".join(sorted(items - {""})) if items - {""} else "list"
    kind = {"object": "section", "null": "unset", "string": "text"}
    words = kind.get(field.get("type", ""), field.get("type", "section"))
    return f"{words}{_bounds(field)}"


def _bounds(field: dict[str, Any]) -> str:
    names = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return "".join(f" {sign} {field[name]}" for name, sign in names.items() if name in field)
