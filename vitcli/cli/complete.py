"""Shell completion of experiments, runs, data sets and fields. It imports no torch."""

import contextlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer

if TYPE_CHECKING:
    from vitcli.core.spec import ExperimentSpec

BREAKS = {"=", ":"}
"""Characters at which bash splits a word that is completed."""


def answer(app: Callable[[], object], shell: str) -> None:
    """Answer a shell that completes a command line.

    An error offers nothing and prints nothing, because the shell is waiting for the user's next
    key. VITCLI_TRACEBACK=1 shows the error.
    """
    kept = ""
    code: Any = 0
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            kept = join_bash_words(os.environ) if shell == "bash" else ""
            app()
        except SystemExit as end:
            code = end.code
        except Exception:
            if os.environ.get("VITCLI_TRACEBACK"):
                raise
            code = 1
    for line in printed.getvalue().splitlines():
        typer.echo(line.removeprefix(kept))
    sys.exit(code)


def join_bash_words(environment: MutableMapping[str, str]) -> str:
    """Join the words that bash has split at ``=`` and ``:``.

    Returns:
        The beginning of the last word, which bash keeps, so that no answer may repeat it.
    """
    last = int(environment["COMP_CWORD"])
    words = environment["COMP_WORDS"].split("\n")[: last + 1]
    joined: list[str] = []
    was_break = False
    for word in words:
        is_break = bool(word) and set(word) <= BREAKS
        if joined and word and (was_break or is_break):
            joined[-1] += word
        else:
            joined.append(word)
        was_break = is_break
    environment["COMP_WORDS"] = "\n".join(joined)
    environment["COMP_CWORD"] = str(len(joined) - 1)
    kept = joined[-1] if was_break else joined[-1].removesuffix(words[-1])
    return kept.partition("=")[2] if kept.startswith("--") else kept


def completion(
    candidates: Callable[[typer.Context, str], Iterator[str]],
) -> Callable[..., list[str]]:
    """Return a completion for Typer.

    A text with a space is left out, because bash would split it, and so is one with a control
    character.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return [
            each for each in candidates(ctx, incomplete) if " " not in each and each.isprintable()
        ]

    return complete


@completion
def any_experiment(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    return (name for name, _ in experiment_files(incomplete))


@completion
def experiment(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    return (name for name, path in experiment_files(incomplete) if is_kind(path, "experiment"))


@completion
def study(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    return (name for name, path in experiment_files(incomplete) if is_kind(path, "study"))


@completion
def search(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    return (name for name, path in experiment_files(incomplete) if is_kind(path, "search"))


@completion
def topic(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    from vitcli.runner.explain.topics import TOPICS

    return (name for name in TOPICS if name.startswith(incomplete))


def experiment_files(incomplete: str) -> Iterator[tuple[str, Path]]:
    """Yield name and file of the experiments and studies that a word may mean."""
    from vitcli.runner.experiment import config

    files = {str(path): path for path in Path(incomplete).parent.glob("*.yaml") if path.is_file()}
    found = config.experiment_files() | files
    return ((name, path) for name, path in found.items() if name.startswith(incomplete))


def is_kind(path: Path, kind: str) -> bool:
    """Return whether a file is of a kind. A broken file counts as an experiment."""
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.experiment import listing

    try:
        return listing.kind_of(path) == kind
    except ConfigError:
        return kind == "experiment"


@completion
def run(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    from vitcli.runner.run.folder import bundled_models

    yield from own_runs(incomplete)
    yield from bundled_models()


@completion
def run_or_picture(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    yield from run(ctx, incomplete)
    yield from (name for name, _ in paths(incomplete))


@completion
def weights(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield the weights files that a word may mean, and the folders that may hold some."""
    from vitcli.runner.run.folder import WEIGHTS

    yield from (name for name in ("timm:",) if name.startswith(incomplete) and incomplete)
    for name, path in paths(incomplete):
        if path.is_dir() or path.suffix in WEIGHTS:
            yield name


def paths(incomplete: str) -> Iterator[tuple[str, Path]]:
    """Yield the files and folders that a word may mean; the name of a folder ends with a slash."""
    for path in sorted(Path(incomplete + "x").parent.glob("[!.]*")):
        name = f"{path}/" if path.is_dir() else str(path)
        if name.startswith(incomplete):
            yield name, path


@completion
def own_run(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    return own_runs(incomplete)


@completion
def resumable(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    yield "auto"
    yield from own_runs(incomplete)


def own_runs(incomplete: str) -> Iterator[str]:
    """Yield the runs under runs/. A run that is alone in its folder is named by the folder."""
    from vitcli.runner.run.folder import list_runs

    names = [run.name for run in list_runs()]
    count = Counter(name.partition("/")[0] for name in names)
    for name in names:
        folder = name.partition("/")[0]
        yield folder if count[folder] == 1 and "/" not in incomplete else name


@completion
def data_set(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield the named data sets, and the files and folders that may hold pictures."""
    from vitcli.core.spec import DATA_READERS, DATA_SETS

    yield from DATA_SETS
    prefix, colon, begun = incomplete.partition(":")
    if not colon:
        yield from (f"{name}:" for name in DATA_READERS if name != "imagefolder")
        prefix, begun = "imagefolder", ""
    top = Path(begun) if begun.endswith("/") else Path(begun).parent
    suffix = f".{prefix}"
    paths = (p for p in sorted(top.glob("[!.]*")) if p.is_dir() or p.suffix == suffix)
    yield from (f"{prefix}:{path}" for path in paths)


@completion
def field(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield the fields of the chosen experiment, or the values of the one that is meant."""
    from vitcli.runner.experiment.config import flatten

    spec = chosen_spec(ctx)
    now = flatten(spec.model_dump(mode="json"))
    name, equals, _ = incomplete.partition("=")
    found = [each for each in now if each == name or (not equals and each.startswith(name))]
    if len(found) != 1:
        yield from (f"{each}=" for each in found)
        return
    # A shell types a space after a single answer. The name alone, offered beside it, prevents this.
    free = [as_text(now[found[0]])] if equals else ["", as_text(now[found[0]])]
    yield from (f"{found[0]}={value}" for value in values_of(spec, found[0]) or free)


def chosen_spec(ctx: typer.Context) -> "ExperimentSpec":
    """Return the experiment of the command line with the fields that are already set."""
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.experiment.config import load_experiment, parse_sets

    # Without a value for its last option, the line is not parsed to its end.
    name = ctx.params.get("experiment") or next(iter(ctx.args), "quickstart")
    try:
        return load_experiment(name, parse_sets(ctx.params.get("sets"))).spec
    except ConfigError:
        return load_experiment("quickstart").spec


def values_of(spec: "ExperimentSpec", name: str) -> list[str]:
    """Return the values of a field that takes one of several; empty for any other field."""
    from vitcli.core.spec import DATA_SETS
    from vitcli.core.spec.rows import choice_of, table_of

    if name == "data.name":
        return [*DATA_SETS]
    *groups, last = name.split(".")
    owner: Any = spec
    choice = None
    for group in groups:
        choice = choice_of(type(owner).model_fields[group])
        owner = getattr(owner, group)
    if choice and last == choice.key:
        return [*choice.table]
    info = type(owner).model_fields[last]
    return [*(table_of(info) or ()), *map(as_text, literals(info.annotation))]


def literals(kind: Any) -> list[Any]:
    """Return the values of a type that takes one of several, such as a Literal or a bool."""
    if kind is bool:
        return [True, False]
    if get_origin(kind) is Literal:
        return [*get_args(kind)]
    return [value for each in get_args(kind) for value in literals(each)]


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
