"""`--dry-run`: what a training would say, and its estimate. No data set is downloaded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.find import find_source, is_offline, missing_data_error
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.train.estimate import Estimate, make_estimate
from vitcli.runner.train.prepare import Request, finished_run, prepare


def dry_run(
    experiment: Experiment,
    request: Request,
    on_message: Callable[[str], None],
    spent_seconds: float = 0.0,
) -> Estimate:
    """Read the data set and estimate the training, with the notes and errors of the training."""
    request = replace(request, on_message=on_message, offline=True)
    if finished_run(experiment, request):
        on_message("already finished, nothing would be trained (--rerun trains it again)")
        request = replace(request, rerun=True)
    if note := missing_data_note(experiment.spec.data.name, request.data_dir, request.offline):
        on_message(note)
        estimate = make_estimate(experiment, request.device, None, compile_too=True)
    else:
        plan = prepare(experiment, request)
        estimate = make_estimate(
            replace(plan.experiment, spec=plan.spec), request.device, plan.data, compile_too=True
        )
    seconds = estimate.startup_seconds + spent_seconds
    return replace(estimate, startup_seconds=seconds, stop_after=request.stop_after)


def missing_data_note(name: str, place: Path | None, offline: bool) -> str:
    """Return what a training would do without its data set; empty if the data set is here."""
    if name not in CATALOGUE or find_source(name, place):
        return ""
    if place or is_offline(offline):
        return f"note: the training would stop here: {missing_data_error(name, place)}"
    megabytes = CATALOGUE[name].download_bytes / 1e6
    return f"note: the training would first download {name} ({megabytes:.0f} MB)"
