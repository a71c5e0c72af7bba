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
    typer.Option("--all", help="Also list what the sources show or define, with its command."),
]
Form = Annotated[str, typer.Option("--format", help="Format: text, md, json or html.")]
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
    form: Form = "text",
    output: Output = None,
    check: Check = False,
    results: Results = None,
) -> None:
    """Show a verdict on every claim of the three sources.

    \b
    Example:
      vitcli claims
      vitcli claims S2-21 --check
      vitcli claims --all --format html -o claims.html
    """
    from vitcli.runner.claims.judge import read_recorded, select
    from vitcli.runner.claims.render import FORMATS, count_verdicts, render
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.files import commit, make_output_folder

    if form not in FORMATS:
        raise ConfigError(f"--format {form}: choose one of {', '.join(FORMATS)}")
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
        say(f"{count_verdicts(findings)}; next: vitcli claims {items[0].id}")


def overview(items: "Sequence[Item]", findings: "Mapping[str, Finding]") -> str:
    """Return a table of one line per item: its verdict or, without one, its command."""
    rows = []
    for item in items:
        finding = findings.get(item.id)
        rows.append([item.id, finding.verdict if finding else item.command, item.text])
    return table(["id", "verdict or command", "statement"], rows)


def in_full(item: "Item", finding: "Finding | None") -> str:
    """Return everything about an item, with a title for each line."""
    facts = {"source": f"{item.source}, {item.where}", "kind": item.kind}
    if finding:
        facts |= {"verdict": finding.verdict, "found": finding.found, "refuted by": item.test}
        facts |= {"hardware": finding.hardware} if finding.hardware else {}
    facts["command"] = item.command
    lines = [f"{item.id}  {item.text}", *(f"  {name:<10}  {fact}" for name, fact in facts.items())]
    return "\n".join(lines)


def check_verdicts(
    items: "Sequence[Item]", recorded: "Mapping[str, Finding]", results: Path | None
) -> None:
    """Judge items again and print each verdict; raise CheckError if a recorded one differs."""
    from vitcli.runner.claims.judge import judge
    from vitcli.runner.errors import CheckError, ConfigError

    folder = results or Path("experiments/results")
    if results and not folder.is_dir():
        raise ConfigError(f"--results {results}: no such folder")
    changed = []
    for item in items:
        if not item.is_judged:
            emit(f"{item.id}  nothing to check: a {item.kind}; {item.command} shows it")
            continue
        found = judge(item, folder if folder.is_dir() else None)
        if found is None:
            emit(f"{item.id}  not checked: its results are not in {folder}")
            continue
        emit(f"{item.id}  {found.verdict}: {found.found}")
        if found.verdict != recorded[item.id].verdict:
            changed.append(f"{item.id}: {found.verdict}, recorded {recorded[item.id].verdict}")
    if changed:
        raise CheckError("; ".join(changed))
