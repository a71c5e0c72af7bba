"""`--dry-run`: what a training would say, and its estimate. No data set is downloaded."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vitcli.core.data.source import DataSet
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.find import find_source, is_offline, missing_data_error
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.run.checkpoint import resumable_checkpoint
from vitcli.runner.run.folder import find_run, is_effectively_empty
from vitcli.runner.run.record import read_record
from vitcli.runner.train.estimate import Estimate, make_estimate
from vitcli.runner.train.images import read_images, refuse_leaks, refuse_other_data
from vitcli.runner.train.initial import initial_module
from vitcli.runner.train.start import Request, chosen_folder, is_already_finished, refuse_passed
from vitcli.runner.weights.timm_start import first_file


def dry_run(
    experiment: Experiment,
    request: Request,
    on_message: Callable[[str], None],
    spent_seconds: float = 0.0,
) -> Estimate:
    """Read the data set and estimate the training, with the notes and errors of the training."""
    experiment = replace(experiment, spec=with_teacher(experiment.spec))
    run = chosen_folder(experiment, request)
    run.refuse_links()
    is_new = request.rerun or not run.path.is_dir() or is_effectively_empty(run.path)
    old = None if is_new else read_record(run)
    if old and is_already_finished(old, experiment.spec, request):
        on_message("already finished, nothing would be trained (--rerun trains it again)")
    elif old:
        resumable_checkpoint(run.checkpoints, on_message)
    began = time.perf_counter()
    spec = experiment.spec
    data: DataSet | None = None
    if note := missing_data_note(spec.data.name, request.data_dir, request.offline):
        on_message(note)
    else:
        read = replace(request, offline=True).reader(spec)
        spec, data = read_images(experiment, read, on_message)
    seconds = time.perf_counter() - began + spent_seconds
    if data and old:
        refuse_other_data(old, data)
    elif data:
        refuse_leaks(spec, data)
    fitted = replace(experiment, spec=spec)
    estimate = make_estimate(fitted, request.device, data, compile_too=True, on_message=on_message)
    if data and estimate.spec.train.init:  # weights that do not fit are refused
        file = first_file(estimate.spec, True, on_message)
        first = file or request.first or find_run(estimate.spec.train.init)
        initial_module(estimate.spec, data, first, on_message)
    if old:
        done, epochs = run.last_step() // estimate.steps_per_epoch, estimate.spec.train.epochs
        refuse_passed(run, request, done, epochs)
    seconds += estimate.startup_seconds
    return replace(estimate, startup_seconds=seconds, stop_after=request.stop_after)


def missing_data_note(name: str, place: Path | None, offline: bool) -> str:
    """Return what a training would do without its data set; empty if the data set is here."""
    if name not in CATALOGUE or find_source(name, place):
        return ""
    if place or is_offline(offline):
        return f"note: the training would stop here: {missing_data_error(name, place)}"
    megabytes = CATALOGUE[name].download_bytes / 1e6
    return f"note: the training would first download {name} ({megabytes:.0f} MB)"
