"""Mistakes in a command line, each told in one line."""

import re
from enum import EnumType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import typer

from vitcli.cli.chosen import SHORTCUTS, option_names
from vitcli.runner.text import closest

UsageError = cast(type[Exception], typer.BadParameter.__base__)
"""The error that Typer raises for a wrong command line. Typer exports only a subclass of it."""
EXAMPLE = re.compile(r"^Example:\n +(.+)$", re.MULTILINE)


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
    """Return what to type instead of an option that a command lacks; empty if nothing is close."""
    known = options_of(context.command)
    if f"{name}s" in known:
        return f"did you mean {name}s?"
    fields = {option: field for field, option in option_names(SHORTCUTS).items()}
    if name in fields and "--set" in known:
        return f"type -s {fields[name]}=VALUE"
    meant = closest(name, known)
    return f"did you mean {meant}?" if meant else ""


def options_of(command: Any) -> list[str]:
    """Return the options of a command as they are typed, without its arguments."""
    return [
        name
        for each in command.params
        if each.param_type_name == "option"
        for name in (*each.opts, *each.secondary_opts)
    ]


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
