"""`vitcli doctor`: a check of this machine."""

from typing import Any

from vitcli.cli.console import emit, emit_json, say
from vitcli.cli.options import Json


def doctor(json: Json = False) -> None:
    """Check versions, devices, speed, folders and data.

    The output contains no user name and no host name, so you can paste it into an issue.

    \b
    Example:
      vitcli doctor
    """
    from vitcli.runner.errors import CheckError
    from vitcli.runner.machine.doctor import examine

    report = examine()
    if json:
        emit_json(report.as_json())
    else:
        for title, facts in report.facts.items():
            emit(format_section(title, facts))
        emit("\n".join(["notes", *(f"  {note}" for note in report.notes or ["none"])]))
    if report.problems:
        raise CheckError("; ".join(report.problems))
    say("no problems found; next: vitcli train")


def format_section(title: str, facts: dict[str, Any]) -> str:
    """Return a title and one indented line per fact."""
    width = max(map(len, map(shown_name, facts)), default=0)
    lines = [
        f"  {shown_name(name):<{width}}  {format_fact(name, value)}"
        for name, value in facts.items()
    ]
    return "\n".join([title, *lines, ""])


def shown_name(name: str) -> str:
    """Return the name of a fact without its unit, which follows the number."""
    return name.removesuffix("_bytes").removesuffix("_flops")


def format_fact(name: str, value: Any) -> str:
    """Return a fact as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value in (None, []):
        return "none"
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    if name.endswith("_flops"):
        return f"{value / 1e9:.{0 if value >= 1e10 else 1}f} GFLOP/s"
    return "; ".join(value) if isinstance(value, list) else str(value)
