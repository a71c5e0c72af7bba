"""Options that several commands share, and the Typer groups that hold commands."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from vitcli.cli import complete
from vitcli.cli.console import QUIET, only_results, say
from vitcli.plugin import PluginError, load_target, missing_for, options_of, rows_of
from vitcli.runner.errors import ConfigError
from vitcli.runner.files import require_utf8

HELP = {"help_option_names": ["-h", "--help"]}
DATA_HELP = "Data set or your own pictures: 'vitcli data ls' lists both."
ORDER_HELP = (
    "Order: oldest first (date), best result of the headline metric first (score or accuracy; a"
    " validation result where there is no test result), or by name."
)
TOP_HELP = "Number of classes or runs to show: the likeliest, or those with the best results."
Rare = partial(Option, hidden=True)
"""An option that only ``--help-all`` shows."""
RUN_HELP = "Run folder, name under runs/, or bundled model."
AnyRun = partial(Argument, metavar="RUN", autocompletion=complete.run)
OwnRun = partial(Argument, metavar="RUN", autocompletion=complete.own_run)
# Each option is a type, so that it has the same name and help in every command.
Json = Annotated[bool, Option("--json", help="Print the result as one JSON document.")]
Format = Annotated[
    Literal["text", "md", "csv", "json", "latex", "html"],
    Option(
        "--format",
        metavar="FORMAT",
        help="Format of the output: text, md, csv, json, latex or html.",
    ),
]
"""Beside an option of this type, or the next, a command has ``--json``."""
RowFormat = Annotated[
    Literal["text", "md", "csv", "json", "jsonl", "latex", "html"],
    Option(
        "--format",
        metavar="FORMAT",
        help="Format of the output: text, md, csv, json, jsonl, latex or html.",
    ),
]
DryRun = Annotated[bool, Option("--dry-run", help="Show size and cost; train nothing.")]
Status = Annotated[bool, Option("--status", help="Show states and results; train nothing.")]
Rerun = Annotated[bool, Option("--rerun", help="Train again what is finished.")]
Save = Annotated[
    Path | None,
    Rare(
        metavar="FOLDER",
        help="Also keep the results in this folder, in files that you can commit; what has a"
        " result there is not trained again.",
        show_default="only read experiments/results/trials",
    ),
]
Yes = Annotated[bool, Option("--yes", "-y", help="Remove without asking.")]
Epochs = Annotated[int | None, Option(min=0, help="Number of training epochs.")]
Caption = Annotated[
    str | None,
    Option(metavar="TEXT", help="Caption of the table in place of its name and question."),
]
Details = Annotated[
    bool, Option("--details", help="Print a second table: how sure differences are.")
]
Device = Annotated[str, Option(help="Device: auto, cpu, cuda, cuda:1 or mps.", show_default=False)]
FitOption = Annotated[
    Literal["crop", "pad", "stretch"] | None,
    Rare(
        "--fit",
        help="How to fit pictures of another aspect ratio.",
        show_default="as in the training; crop",
    ),
]
Data = Annotated[str | None, Option(help=DATA_HELP, autocompletion=complete.data_set)]
DataDir = Annotated[
    Path | None,
    Rare(
        help="Only folder to search for the data set, or the new place of a run's own pictures.",
        show_default="VITCLI_DATA, then cache",
    ),
]
Offline = Annotated[
    bool, Rare("--offline", envvar="VITCLI_OFFLINE", help="Never open a network connection.")
]
SkipBad = Annotated[
    bool, Rare("--skip-bad", help="Leave out pictures of a folder that cannot be read.")
]
AllowLeaks = Annotated[
    bool, Rare("--allow-leaks", help="Train although test pictures are in the training set.")
]
LimitBatches = Annotated[
    int | None,
    Option(min=1, help="Maximum number of batches per epoch and evaluation.", show_default="all"),
]
Sets = Annotated[
    list[str] | None,
    Option(
        "--set",
        "-s",
        metavar="FIELD=VALUE",
        help="Change a field; may be repeated.",
    ),
]
Run = Annotated[str, AnyRun(help=RUN_HELP)]
Order = Literal["date", "score", "accuracy", "name"]
Split = Annotated[
    Literal["test", "val", "train"],
    Option(help="Images to measure, or whose results to show: test, val or train."),
]
Track = Annotated[
    list[str] | None,
    Rare(
        metavar="TRACKER",
        help="Also show the run in this tracker while it trains; may be repeated.",
    ),
]
Pictures = Annotated[
    list[str] | None,
    Argument(metavar="PICTURE", help="Picture files or folders; - is standard input."),
]
RunOf = Annotated[
    str | None,
    AnyRun(help=RUN_HELP, show_default="the newest classifier of real pictures, or cifar10-pocket"),
]
Code = Annotated[
    list[Path] | None,
    Rare(metavar="PATH", help="Python file or package folder with own parts; may be repeated."),
]
TrustCode = Annotated[
    bool, Rare("--trust-code", help="Run the copies of own code in a run folder.")
]
Quiet = Annotated[bool, Rare("--quiet", "-q", envvar=QUIET, help="Print only results and errors.")]
Verbose = Annotated[
    bool, Rare("--verbose", "-v", envvar="VITCLI_TRACEBACK", help="Show where errors come from.")
]


def show_whole_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        command = context.command = copy(context.command)
        parameters: list[Any] = [copy(parameter) for parameter in command.params]
        for parameter in parameters:
            parameter.hidden = False
        command.params = parameters
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    Option(
        "--help-all", callback=show_whole_help, is_eager=True, help="Show all options and exit."
    ),
]
RunName = Annotated[str | None, Option("--name", help="Name of the run; its folder is runs/NAME.")]


def output_option(metavar: str, text: str, shown_default: str | bool = True) -> Any:
    """Return the option ``-o``, with its help and what the help shows as the default."""
    return Option("-o", "--output", metavar=metavar, help=text, show_default=shown_default)


def refuse_empty(option: str, value: object) -> None:
    if value == "":
        raise ConfigError(f"{option} is empty; is a shell variable unset?")


def exclude(given: Mapping[str, object]) -> None:
    """Refuse two options of which a command takes one."""
    named = [option for option, value in given.items() if value is not None and value is not False]
    if len(named) > 1:
        raise ConfigError(f"{named[0]} and {named[1]} exclude each other; leave out one of them")


def run_folder(name: str | None, output: Path | None) -> Path | None:
    from vitcli.runner.run.folder import named_folder

    exclude({"--name": name, "-o": output})
    require_utf8(output or Path())
    return output if name is None else named_folder(name)


def typed_files(options: Mapping[str, Any]) -> set[str]:
    from vitcli.runner.experiment.config import find_experiment

    files = set()
    for option in ("experiment", "study", "name", "names"):
        value = options.get(option)
        for name in [value] if isinstance(value, str) else value or ():
            with suppress(ConfigError):  # the command says what is wrong
                files.add(str(find_experiment(name)))
    return files


def with_code(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def call(*args: Any, code: list[Path] | None, trust_code: bool, **options: Any) -> Any:
        from vitcli.runner.experiment import own_code

        own_code.state.trusts_copies = trust_code
        own_code.state.typed = typed_files(options)
        with only_results():
            if code:
                own_code.load(code)
            return command(*args, **options)

    return _add_options(call, code=(Code, None), trust_code=(TrustCode, False))


def with_plugins(name: str) -> Callable[..., Any]:
    """Add the options of plugins to a command.

    The command gets ``added``: for each function of a plugin its first option, that option's value,
    and the function with its options.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        taken: dict[Any, dict[str, inspect.Parameter]] = {}
        known = {*inspect.signature(command).parameters}
        for target in options_of(name):
            try:
                function = load_target(target)
            except PluginError as error:
                say(f"warning: {error}")
                continue
            every = inspect.signature(function).parameters
            parameters = {
                name: each for name, each in every.items() if each.kind is each.KEYWORD_ONLY
            }
            if twice := sorted(known & parameters.keys()):
                say(f"warning: {function.__module__}: {name} has {twice[0]} already")
            else:
                taken[function] = parameters
                known |= parameters.keys()

        @wraps(command)
        def call(*args: Any, **options: Any) -> Any:
            added = []
            for function, parameters in taken.items():
                values = {name: options.pop(name) for name in parameters}
                first = next(iter(values))
                option = f"--{first.replace('_', '-')}"
                added.append((option, values[first], partial(function, **values)))
            return command(*args, added=added, **options)

        signature = inspect.signature(command)
        kept = [each for each in signature.parameters.values() if each.name != "added"]
        call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        options = {
            name: (parameter.annotation, parameter.default)
            for parameters in taken.values()
            for name, parameter in parameters.items()
        }
        return _add_options(call, **options)

    return decorate


def check_trackers(names: Sequence[str]) -> None:
    trackers = rows_of("tracker")
    for name in names:
        if name not in trackers:
            reason = missing_for("tracker", name) or f"choose from: {', '.join(trackers)}"
            raise ConfigError(f"--track {name}: {reason}")
        if find_spec(name) is None:
            raise ConfigError(f"the tracker {name} is not installed; type: pip install {name}")


def with_common(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def call(*args: Any, quiet: bool, verbose: bool, help_all: bool, **options: Any) -> Any:
        set_talk(quiet=quiet, verbose=verbose)
        if is_report and options.pop("json"):
            options["form"] = "json"
        return command(*args, **options)

    form = inspect.signature(command).parameters.get("form")
    is_report = form is not None and form.annotation in (Format, RowFormat)
    options = {"json": Json} if is_report else {}
    options |= {"quiet": Quiet, "verbose": Verbose, "help_all": HelpAll}
    return _add_options(call, **{name: (kind, False) for name, kind in options.items()})


def set_talk(*, quiet: bool, verbose: bool) -> None:
    if quiet:
        os.environ[QUIET] = os.environ["TQDM_DISABLE"] = "1"
    if verbose:
        os.environ["VITCLI_TRACEBACK"] = "1"


def _add_options(command: Any, **added: tuple[Any, Any]) -> Any:
    signature = inspect.signature(command)
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in added.items()
    ]
    new = signature.replace(parameters=[*signature.parameters.values(), *parameters])
    command.__signature__ = new
    command.__annotations__ |= {name: kind for name, (kind, _) in added.items()}
    return command


def with_example(*lines: str) -> Callable[..., Any]:
    """Show command lines at the end of the help of a command."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command.__doc__ = add_example(inspect.cleandoc(command.__doc__ or ""), *lines)
        return command

    return decorate


def add_example(text: str, *lines: str) -> str:
    return "\n  ".join([f"{text}\n\n\b\nExample:", *lines])


class Commands(typer.Typer):
    """A group of commands with the options that all commands have."""

    def command(
        self, name: str | None = None, *, example: str = "", **options: Any
    ) -> Callable[..., Any]:
        register = super().command(name, context_settings=HELP, **options)
        shown = with_example(example) if example else lambda function: function
        return lambda function: register(with_common(shown(function)))


def group(*, example: str = "", **options: Any) -> Commands:
    """Return a Typer application with plain output, as pipes, NO_COLOR and TERM=dumb require."""
    if example:
        options["help"] = add_example(options["help"], example)
    return Commands(
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP,
        **options,
    )
