"""`vitcli doctor`: a check of this machine."""

from vitcli.cli.console import emit_report
from vitcli.cli.options import Format, with_example
from vitcli.runner.errors import CheckError


@with_example("vitcli doctor")
def doctor(form: Format = "text") -> None:
    """Check versions, devices and folders.

    The output contains no user name and no host name, so you can paste it into an issue.
    """
    from vitcli.runner.machine.doctor import examine

    checks = examine()
    emit_report(checks.report(), form)
    if checks.problems:
        raise CheckError("; ".join(checks.problems))
