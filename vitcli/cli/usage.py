"""Mistakes in a command line, each told in one line; old spellings, which work for one release."""

import re
from collections.abc import Iterator
from enum import EnumType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import typer

from vitcli.cli.chosen import SHORTCUTS, option_names
from vitcli.runner.text import closest, join_words

UsageError = cast(type[Exception], typer.BadParameter.__base__)
"""The error that Typer raises for a wrong command line. Typer exports only a subclass of it."""
EXAMPLE = re.compile(r"^Example:\n +(.+)$", re.MULTILINE)
MAX_OWNERS = 2
"""Number of commands with an option that an error names."""


def is_help(error: Exception) -> bool:
    """Return whether the error only shows the help: a group of commands was named alone."""
    return type(error).__name__ == "NoArgsIsHelpError"


def explain(error: Any, root: typer.Context) -> str:
    """Return what is wrong in a command line, and what to type."""
    context = error.ctx or root
    command = context.command_path
    if not error.ctx and root.invoked_subcommand:
        command += f" {root.invoked_subcommand}"
    hint = f"see '{command} --help'"
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        told = suggest_option(error.option_name, context) or hint
        return f"'{command}' has no option {error.option_name}; {told}"
    if hasattr(error, "param_type"):
        example = EXAMPLE.search(context.command.help or "")
        hint = f"type for example: {example[1]}" if example else hint
        return f"'{command}' needs {name_of(error.param)}; {hint}"
    if getattr(error, "param", None):
        return f"{explain_value(error.param, context.command.callback)}; {hint}"
    if found := re.match(r"No such command '(.*?)'", error.message):
        meant = closest(found[1], getattr(context.command, "commands", ()))
        hint = f"did you mean '{command} {meant}'?" if meant else hint
        return f"'{command}' has no command {found[1]!r}; {hint}"
    return reword(error.message, context, hint)


def suggest_option(name: str, context: typer.Context) -> str:
    """Return what to type instead of an option that a command lacks; empty if nothing is close.

    An option of another command was not misspelt. So no similar option is suggested for it.
    """
    own = options_of(context.command)
    plural = next((each for each in own if f"{name}s" == each), None)
    owners = [path for path, known in all_options(context.find_root().command) if name in known]
    if not owners or plural:
        meant = plural or closest(name, own)
        return f"did you mean {meant}?" if meant else ""
    fields = {option: field for field, option in option_names(SHORTCUTS).items()}
    if name in fields and "--set" in own:
        return f"type -s {fields[name]}=VALUE"
    has = "has" if len(owners) == 1 else "have"
    shown = join_words([f"'vitcli {path}'" for path in owners])
    return f"only {shown} {has} it" if len(owners) <= MAX_OWNERS else ""


def options_of(command: Any) -> list[str]:
    """Return the options of a command as they are typed, without its arguments."""
    return [
        name
        for each in command.params
        if each.param_type_name == "option"
        for name in (*each.opts, *each.secondary_opts)
    ]


def all_options(command: Any, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield every command, such as ``runs ls``, with its options."""
    for name, each in getattr(command, "commands", {}).items():
        yield f"{path}{name}", options_of(each)
        yield from all_options(each, f"{path}{name} ")


def name_of(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    return str(max(parameter.opts, key=len) if is_option else parameter.metavar)


def explain_value(parameter: Any, command: Any) -> str:
    """Return which values a parameter takes, such as ``--top takes a whole number of at least 1``.

    They are read from the command's annotations, because releases of Typer store them differently.
    """
    hint = get_type_hints(command, include_extras=True)[parameter.name]
    annotated, option = get_args(hint)
    kinds = {annotated, *get_args(annotated)}
    for kind, text in ((int, "a whole number"), (float, "a number")):
        if kind in kinds:
            return f"{name_of(parameter)} takes {text}{range_of(option)}"
    if choices := next((kind for kind in kinds if isinstance(kind, EnumType)), None):
        names = [str(each.value) for each in cast(Any, choices)]
        return f"{name_of(parameter)} takes one of {', '.join(names)}"
    if literal := next((kind for kind in kinds if get_origin(kind) is Literal), None):
        return f"{name_of(parameter)} takes one of {', '.join(get_args(literal))}"
    value = "true or false" if bool in kinds else "text"
    return f"{option.envvar or name_of(parameter)} takes {value}"


def range_of(option: Any) -> str:
    if option.min is not None and option.max is not None:
        return f" from {option.min:g} to {option.max:g}"
    return "" if option.min is None else f" of at least {option.min:g}"


def reword(message: str, context: typer.Context, hint: str) -> str:
    """Return a message of Typer in the words of the other errors."""
    if found := re.match(r"Got unexpected extra argument\S* \((.*)\)", message):
        if "=" in found[1] and any(each.name == "sets" for each in context.command.params):
            hint = f"to set a field, type -s {found[1]}"
        elif any(each.param_type_name == "argument" for each in context.command.params):
            hint = "a name with spaces needs quotes"
        return f"'{context.command_path}' takes no argument {found[1]!r}; {hint}"
    if found := re.match(r"Option '(.*)' (requires an argument|does not take a value)", message):
        return f"{found[1]} {'needs a' if found[2][0] == 'r' else 'takes no'} value; {hint}"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; {hint}"


ARGUMENTS = "RUN", "PICTURE", "EXPERIMENT"
"""The values of old options that are arguments now."""
OLD_SPELLINGS = (
    ("runs", "list", "ls"),
    ("runs", "compare", "diff"),
    ("data", "list", "ls"),
    ("experiments", "list", "ls"),
    ("predict", "--run RUN", "RUN ..."),
    ("attn-map", "--run RUN", "RUN ..."),
    ("attn-map", "--model RUN", "RUN ..."),
    ("explain", "--run RUN", "... RUN"),
    ("explain", "--image PICTURE", "... PICTURE"),
    ("import", "--experiment EXPERIMENT", "... EXPERIMENT"),
    ("import", "-e EXPERIMENT", "... EXPERIMENT"),
    ("export", "--to", "--format"),
    ("runs export", "--to", "--format"),
    ("runs ls", "--experiment", "--of"),
    ("ablate", "--only first", "--first"),
    ("table", "--seed", "--pairs"),
    ("data info", "--picture", "-o"),
    ("bench train", "--profile", "--trace"),
    ("bench data", "--profile", "--trace"),
)
"""Command, its old spelling, and its spelling today. An option whose value is an argument now moves
it to the place that ``...``, the other arguments, leaves."""


def spelled_today(args: list[str]) -> tuple[list[str], list[str]]:
    """Return a command line, without the program, in the spellings of today, and notes on them."""
    args, notes = list(args), []
    start = next((i for i, word in enumerate(args) if not word.startswith("-")), len(args))
    for path, old, new in OLD_SPELLINGS:
        end = start + len(path.split())
        if args[start:end] != path.split():
            continue
        changed = _replace(args[end:], old.split(), new)
        if changed != args[end:]:
            args[end:] = changed
            notes.append(f"note: 'vitcli {path} {old}' is now 'vitcli {path} {new}'")
    return args, notes


def _replace(words: list[str], old: list[str], new: str) -> list[str]:
    """Return the words after the command with an old spelling replaced."""
    if not old[0].startswith("-"):
        return [new, *words[1:]] if words[:1] == old else words
    options = words[: words.index("--")] if "--" in words else words
    for i, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name != old[0]:
            continue
        if old[-1] in ARGUMENTS:
            rest = words[:i] + words[i + (1 if equals else 2) :]
            moved = [value] if equals else words[i + 1 : i + 2]
            return [*moved, *rest] if new.endswith("...") else [*rest, *moved]
        if words[i : i + len(old)] == old or (equals and len(old) == 1):
            today = [new, value] if equals else [new]
            return [*words[:i], *today, *words[i + len(old) :]]
    return words
