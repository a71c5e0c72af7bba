"""`vitcli claims`: the verdict on every claim and result of the sources."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitcli.cli.console import emit, say, table

if TYPE_CHECKING:
    from vitcli.runner.claims.item import Finding, Item

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Claims to show in full, such as S2-21."),
]
AllItems = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Also list components, options, figures and theory. To see the command of one, type"
        " its id.",
    ),
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Format: text, md, json or html.",
        show_default="suffix of -o, or text",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="File to write.", show_default="standard output"),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Judge again, now and here; exit with 6 if a recorded verdict differs."
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Result files for --check.",
        show_default="experiments/results, if it exists",
    ),
]


def claims(
    ids: Ids = None,
    all_items: AllItems = False,
    form: Form = None,
    output: Output = None,
    check: Check = False,
    results: Results = None,
) -> None:
    """Show a verdict on every claim of the three sources.

    \b
    Example:
      vitcli claims
      vitcli claims S2-21 --check
      vitcli claims --all -o claims.html
    """
    from vitcli.runner.claims.judge import read_recorded, select
    from vitcli.runner.claims.render import count_verdicts, render
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.files import commit, make_output_folder

    if check and (form or output):
        raise ConfigError("--check prints text only; leave out --format and -o")
    if results and not check:
        raise ConfigError("--results: add --check, which reads the result files")
    if ids and all_items:
        raise ConfigError("--all lists every item; leave out --all or the ids")
    form = format_of(form, output)
    items, findings = select(ids or (), all_items=all_items), read_recorded()
    if check:
        check_verdicts(items, findings, results)
        return
    if form != "text":
        text = render(items, findings, form)
    elif ids:
        text = "\n\n".join(in_full(item, findings.get(item.id)) for item in items)
    else:
        text = overview(items, findings)
    if output:
        make_output_folder(output.parent)
        commit(output, f"{text}\n".encode())
        say(f"wrote {output}")
    else:
        emit(text, wrap=form == "text")
    if form == "text" and not ids:
        say(f"{count_verdicts(findings)}\nnext: vitcli claims {items[0].id}")


def format_of(form: str | None, output: Path | None) -> str:
    """Return the format: ``--format``, or the one that the suffix of ``-o`` names, or text.

    Raises:
        ConfigError: There is no such format, or the suffix names another one or none.
    """
    from vitcli.runner.claims.render import FORMATS
    from vitcli.runner.errors import ConfigError

    if form and form not in FORMATS:
        raise ConfigError(f"--format {form}: choose one of {', '.join(FORMATS)}")
    if not output:
        return form or "text"
    suffix = output.suffix.lower().removeprefix(".")
    named = "text" if suffix == "txt" else suffix
    if named not in FORMATS and form:
        return form
    if named not in FORMATS:
        raise ConfigError(f"-o {output}: end the name with .txt, .md, .json or .html")
    if form and form != named:
        raise ConfigError(f"-o {output}: the name does not fit --format {form}")
    return named


def overview(items: "Sequence[Item]", findings: "Mapping[str, Finding]") -> str:
    """Return a table of one line per item: its verdict, or its kind if it has none."""
    rows = []
    for item in items:
        finding = findings.get(item.id)
        rows.append([item.id, finding.said if finding else item.kind, item.text])
    return table(["id", "verdict or kind", "statement"], rows)


def in_full(item: "Item", finding: "Finding | None") -> str:
    """Return everything about an item, with a title for each line."""
    facts = {"source": f"{item.source}, {item.where}", "kind": item.kind}
    if finding:
        facts |= {"verdict": finding.said, "found": finding.found, "refuted by": item.test}
        facts |= {"hardware": finding.hardware} if finding.hardware else {}
    facts["command"] = item.command
    lines = [f"{item.id}  {item.text}", *(f"  {name:<10}  {fact}" for name, fact in facts.items())]
    return "\n".join(lines)


def check_verdicts(
    items: "Sequence[Item]", recorded: "Mapping[str, Finding]", results: Path | None
) -> None:
    """Judge items again and print each verdict.

    Raises:
        CheckError: A recorded verdict differs.
        InputError: There are no result files, or none can be read.
        PartlyError: Some verdicts could not be judged again.
    """
    from vitcli.runner.claims.judge import judge
    from vitcli.runner.errors import CheckError, InputError, PartlyError

    folder = results or Path("experiments/results")
    if results and not folder.is_dir():
        raise InputError(f"--results {results}: no such folder")
    changed, failed, count = [], [], 0
    for item in items:
        if not item.is_judged:
            emit(f"{item.id}  is a {item.kind} and has no verdict; to see it, type: {item.command}")
            continue
        count += 1
        before = recorded[item.id].verdict
        try:
            found = judge(item, folder if folder.is_dir() else None, before)
        except InputError as error:
            emit(f"{item.id}  not checked: {error}")
            failed.append(item.id)
            continue
        emit(f"{item.id}  {found.said}: {found.found}")
        if found.verdict != before:
            changed.append(f"{item.id}: {found.verdict}, recorded {before}")
    if changed:
        raise CheckError("; ".join(changed))
    if failed:
        kind = PartlyError if len(failed) < count else InputError
        here = "" if folder.is_dir() else f"; there is no folder {folder}, type --results FOLDER"
        raise kind(f"{len(failed)} of {count} not checked{here}")
    if count:
        say(f"{count} of {count} checked; no verdict differs from the recorded one")
