"""`vitcli doctor`: is everything here that is needed?"""

from typing import Any

from vitcli.cli.console import emit, emit_json, say
from vitcli.cli.options import Json


def doctor(json: Json = False) -> None:
    """Check versions, devices, folders and data.

    The text names no person and no machine, so it can be pasted into an issue.
    """
    from vitcli.runner.errors import CheckError
    from vitcli.runner.machine.doctor import examine

    report = examine()
    if json:
        emit_json(report.as_json())
    else:
        for title, facts in report.facts.items():
            emit(section(title, facts))
        emit("\n".join(["notes", *(f"  {note}" for note in report.notes or ["none"])]))
    if report.problems:
        raise CheckError("; ".join(report.problems))
    say("everything needed is here; next: vitcli train")


def section(title: str, facts: dict[str, Any]) -> str:
    """A title, and below it one indented line a fact."""
    width = max(map(len, facts), default=0)
    lines = [
        f"  {name.removesuffix('_bytes'):<{width}}  {text(name, value)}"
        for name, value in facts.items()
    ]
    return "\n".join([title, *lines, ""])


def text(name: str, value: Any) -> str:
    """A fact as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value in (None, []):
        return "none"
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    return "; ".join(value) if isinstance(value, list) else str(value)
