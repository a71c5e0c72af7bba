from vitcli.cli.console import emit_report
from vitcli.cli.options import Format, Run
from vitcli.runner.report.report import Fact, Report


def roundness(run: Run, form: Format = "text") -> None:
    """Say how round a model is."""
    from vitcli.runner.evaluate.weights import load_model  # torch only now, not for --help

    weights = [value.flatten() for value in load_model(run).state_dict().values()]
    large = sum(int((value.abs() > 0.1).sum()) for value in weights)
    emit_report(Report(facts=[Fact("run", run), Fact("roundness", large)]), form)
