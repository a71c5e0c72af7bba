"""`vitcli doctor`: a check of this machine."""

from typing import Any

from vitcli.cli.console import emit, emit_json, say, section
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
            emit(f"{section(title, dict(map(format_fact, facts, facts.values())))}\n")
        emit("\n".join(["notes", *(f"  {note}" for note in report.notes or ["none"])]))
    if report.problems:
        raise CheckError("; ".join(report.problems))
    say("no problems found; next: vitcli train")


def format_fact(name: str, value: Any) -> tuple[str, str]:
    """Return the name of a fact without its unit, and the fact as text with its unit."""
    if isinstance(value, bool):
        return name, "yes" if value else "no"
    if value in (None, []):
        text = "none"
    elif name.endswith("_bytes"):
        text = f"{value / 2**30:.1f} GiB"
    elif name.endswith("_flops"):
        text = f"{value / 1e9:.{0 if value >= 1e10 else 1}f} GFLOP/s"
    else:
        text = "; ".join(value) if isinstance(value, list) else str(value)
    return name.removesuffix("_bytes").removesuffix("_flops"), text
