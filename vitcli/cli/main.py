"""The Typer application: its commands, and the exit codes of errors."""

import errno
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn, cast

import typer
from typer import Option
from typer.core import TyperGroup

from vitcli import plugin
from vitcli.cli.console import say, silence
from vitcli.cli.options import Quiet, Verbose, group, set_talk, with_example
from vitcli.runner.errors import ConfigError, InputError, ResourceError, UserError
from vitcli.runner.experiment.torch_state import unchanged
from vitcli.runner.machine.launch import read_launch
from vitcli.version import __version__, source_commit

UsageError = cast(type[Exception], typer.BadParameter.__base__)
"""The error that Typer raises for a wrong command line. Typer exports only a subclass of it."""
SPIN_COUNT = "20000"
"""Number of iterations for which a waiting thread of libgomp spins. libgomp's default of 300,000 is
faster on idle cores, but much slower if another program runs. 1,000 is slower on idle cores, but
faster if another program runs."""
COMMANDS = {
    "train": "vitcli.cli.train:train",
    "eval": "vitcli.cli.eval:evaluate",
    "predict": "vitcli.cli.predict:predict",
    "attn-map": "vitcli.cli.attn_map:attn_map",
    "ablate": "vitcli.cli.ablate:ablate",
    "visualize": "vitcli.cli.visualize:visualize",
    "runs": "vitcli.cli.runs:commands",
    "experiments": "vitcli.cli.experiments:commands",
    "data": "vitcli.cli.data:commands",
    "doctor": "vitcli.cli.doctor:doctor",
    "plugins": "vitcli.cli.plugins:plugins",
}
"""Command -> the function or group that is imported when the command is called or listed, in the
order of the help: first those that people use every day."""
RANK_SECONDS = 5.0
"""Time that rank 0 has to fail, too. torchrun then ends the other ranks before they say why."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RESOURCES = (
    *FULL,
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENODEV),
    *(errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS),
    *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
)
"""Errors of the system that no other command line avoids: a disk, a right, memory, a limit."""
plugin.guard = unchanged
plugin.warn = lambda text: say(f"warning: {text}")


def all_commands() -> dict[str, str]:
    return COMMANDS | plugin.commands() | COMMANDS


class LazyCommands(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        commands = all_commands()
        target = commands[name]
        try:
            loaded = _made(name, plugin.load_target(target))
        except plugin.PluginError as error:
            loaded = _made(name, _failing(error))
            loaded.ignore_unknown_options = loaded.allow_extra_args = True
            loaded.short_help = str(error)
        for row in commands:
            if row.startswith(f"{name} ") and hasattr(loaded, "commands"):
                loaded.commands[row.removeprefix(f"{name} ")] = self[row]
        return loaded

    def __iter__(self) -> Iterator[str]:
        return (name for name in all_commands() if " " not in name)

    def __len__(self) -> int:
        return len(list(iter(self)))


def _made(name: str, command: Any) -> Any:
    app = group()
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)
    return typer.main.get_group(app).commands[name]


def _failing(error: plugin.PluginError) -> Callable[[], None]:
    """Return a command that fails with an error, which also is its help."""

    def command() -> None:
        raise error

    command.__doc__ = str(error)
    return command


class Commands(TyperGroup):
    """Turn a user's mistake into a message and an exit code; a bug shows its traceback."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast(Any, LazyCommands())

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        added = plugin.commands()
        room = formatter.width - 6 - max(map(len, self.commands))
        for title in ("Commands", "Commands of plugins"):
            shown = [
                (name, self.commands[name].get_short_help_str(room))
                for name in self.commands
                if (name in added) == (title != "Commands")
            ]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            refuse(error, ctx)
        except KeyboardInterrupt as error:
            stop(error)

    def invoke(self, ctx: Any) -> Any:
        try:
            require_working_folder()
            return super().invoke(ctx)
        except UsageError as error:
            refuse(error, ctx)
        except KeyboardInterrupt as error:
            stop(error)
        except (typer.Exit, typer.Abort):
            raise
        except BaseException as error:  # SystemExit of own code, too
            mistake = error if isinstance(error, UserError) else as_user_error(error)
            if mistake is None:
                raise
            say_error(str(mistake))
            raise typer.Exit(mistake.exit_code) from error


def require_working_folder() -> None:
    """Refuse to work in a folder that was deleted, in which torch ends the process."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise InputError("the folder that you are in was deleted; change to another one") from error


def as_user_error(error: BaseException) -> UserError | None:
    """Return what an error says about own code, a file, memory or a GPU; None for a bug."""
    if not os.environ.get("VITCLI_TRACEBACK"):
        code = sys.modules.get("vitcli.runner.experiment.own_code")
        text = str(error) if isinstance(error, plugin.PluginError) else ""
        text = text or (code and code.locate_in_own_code(error)) or plugin.locate_in_plugin(error)
        if text:
            return ConfigError(f"{text} (VITCLI_TRACEBACK=1 shows where)")
    if isinstance(error, OSError):
        return None if os.environ.get("VITCLI_TRACEBACK") else _as_file_error(error)
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    if "torch" in sys.modules:
        from vitcli.runner.machine.resources import as_resource_error

        return as_resource_error(error)
    return ResourceError("out of memory") if isinstance(error, MemoryError) else None


def _as_file_error(error: OSError) -> UserError | None:
    if error.errno is None and isinstance(error.__cause__, OSError):  # of matplotlib
        text = f"no folder for temporary files can be written ({error.__cause__.strerror})"
        return ResourceError(f"{text}; type: export TMPDIR=FOLDER")
    is_resource = error.errno in RESOURCES
    if error.filename is None and not is_resource:
        return None
    name = error.filename
    if name is None:  # 'vitcli runs ls > full/runs.txt'
        name = "the output" if error.errno in FULL else "a file"
        silence(1)
    text = f"{name}: {error.strerror} (VITCLI_TRACEBACK=1 shows where)"
    return ResourceError(text) if is_resource else ConfigError(text)


def say_error(text: str) -> None:
    """Print an error. Of several ranks with the same error, rank 0 prints it."""
    launch = read_launch()
    if launch and launch.rank:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(RANK_SECONDS)
        text = f"rank {launch.rank}: {text}"
    say(f"error: {text}")


def stop(error: KeyboardInterrupt) -> NoReturn:
    say("stopped immediately")
    raise typer.Exit(130) from error


def refuse(error: Any, context: typer.Context) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands was named alone
        raise error
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    command = (error.ctx or context).command_path
    if unknown := re.match(r"no such command '(.*?)'", message, re.IGNORECASE):
        name = " ".join([*command.split()[1:], unknown[1]])
        if missing := plugin.missing_for_command(name):
            say_error(f"{name}: {missing}")
            raise typer.Exit(2) from error
    say_error(f"{message[:1].lower()}{message[1:]} (see '{command} --help')")
    raise typer.Exit(2) from error


app = group(cls=Commands)


def _version(wanted: bool) -> None:
    if wanted:
        commit, dirty = source_commit()
        origin = f" (commit {commit[:9]}{', changed' if dirty else ''})" if commit else ""
        typer.echo(f"vitcli {__version__}{origin}")
        raise typer.Exit


def switch_off(context: typer.Context, switches: list[str] | None) -> None:
    """Switch plugins off for this command and the processes that it starts."""
    before = os.environ.get(plugin.VARIABLE, "")
    wanted = ",".join([before, *(switches or ())])
    known = {f"{plugin.OFF}{name}" for name in plugin.plugins()}
    for switch in plugin.switches(before):
        if switch.startswith(plugin.OFF) and switch not in known:
            say(f"warning: {plugin.VARIABLE}: there is no plugin {switch.removeprefix(plugin.OFF)}")
        elif switch not in known:
            raise UsageError(f"the variable {plugin.VARIABLE} takes {plugin.OFF}NAME, not {switch}")
    for switch in switches or ():
        if unknown := {*plugin.switches(switch)} - known:
            taken = ", ".join(sorted(known))
            raise typer.BadParameter(f"{min(unknown)} (-p takes {taken})")
    context.call_on_close(partial(os.environ.__setitem__, plugin.VARIABLE, before))
    os.environ[plugin.VARIABLE] = wanted
    for name in plugin.plugins():
        problem = plugin.problem_of(name)
        if problem and problem == plugin.why_off(name) and not context.resilient_parsing:
            say(f"warning: the plugin {name} is off: {problem}")


@app.callback()
@with_example("vitcli train")
def vitcli(
    version: Annotated[
        bool, Option("--version", "-V", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    switches: Annotated[
        list[str] | None,
        Option(
            "-p",
            metavar="no:NAME",
            callback=switch_off,
            is_eager=True,
            help="Switch a plugin off ('vitcli plugins' lists them); may be repeated.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train, evaluate, ablate and inspect small Vision Transformers.

    Start with 'vitcli train': it needs no download and one or two minutes on a CPU.
    """
    set_talk(quiet=quiet, verbose=verbose)


def main() -> None:
    if sys.platform == "win32":
        say("error: vitcli does not run on native Windows; use WSL2")
        sys.exit(2)
    if isinstance(sys.stdout, TextIOWrapper):  # letters that its encoding lacks, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    # Waiting threads must not spin for long: if another program needs a core, spinning makes a
    # training several times slower. libgomp reads this variable when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # vitcli opens no window, and matplotlib is not imported with a backend that it does not know.
    os.environ["MPLBACKEND"] = "agg"
    # If the home folder is not writable, matplotlib warns that its cache is in another folder.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Torch asks for the name of this folder also where it writes nothing into it.
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # the disk is read-only
        tempfile.tempdir = "/tmp"
    try:
        app(prog_name="vitcli")
    except SystemExit as end:
        torch = sys.modules.get("torch")
        if end.code == ResourceError.exit_code and torch and torch.cuda.is_initialized():
            # While Python ends, threads of a GPU that failed may abort the process.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ResourceError.exit_code)
        raise
