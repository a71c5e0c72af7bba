"""Teachers: trained runs whose outputs another training imitates.

torch is imported only for an experiment with a teacher, because a study file is read without it.
"""

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.task import TeacherSpec
from vitcli.runner.errors import ConfigError, UserError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import experiment_files
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.record import RunRecord, read_record

if TYPE_CHECKING:
    from torch import Tensor

    from vitcli.core.objectives.objective import Task

FIELD = "task.teacher"


def teacher_run(spec: ExperimentSpec) -> str:
    """Return the name of the run that teaches with the spec's seed; empty if there is none."""
    teacher = spec.task.taught_by
    return teacher.run_for(spec.seed) if teacher else ""


def weights_used(record: RunRecord, spec: ExperimentSpec) -> dict[str, str]:
    """Return run -> known SHA-256 of its weights, for runs a trial started or learned from."""
    first = spec.train.init or (record.pretrained or {}).get("run")
    runs = {first: record.init_sha256, teacher_run(spec): record.teacher_sha256}
    return {run: sha256 for run, sha256 in runs.items() if run and sha256}


def other_weights(record: RunRecord, spec: ExperimentSpec) -> str:
    """Return which run at hand has other weights now than a trial used; empty if none has."""
    for run, sha256 in weights_used(record, spec).items():
        if weights_at_hand(run) not in ("", sha256):
            return f"trained with other weights of {run}"
    return ""


def weights_at_hand(run: str) -> str:
    """Return the SHA-256 of a run's weights; empty without such a run."""
    from vitcli.runner.evaluate.weights import start_sha256

    with suppress(UserError, OSError):
        return start_sha256(find_run(run))
    return ""


def with_teacher(spec: ExperimentSpec, *, required: bool = True) -> ExperimentSpec:
    """Return the spec with what follows from the run of its teacher, if its task has one."""
    if spec.pretrain and spec.pretrain.task.has_teacher:
        raise ConfigError(
            "pretrain.task: a pre-training has no teacher; train that run first, and start from"
            " it: --init RUN"
        )
    if not spec.task.has_teacher:
        return spec
    try:
        asked = spec.task.taught_by
        if asked is None:
            raise ConfigError(f"{FIELD}: name the run that teaches: -s {FIELD}=RUN")
        run, weights, sha256 = _read(asked, spec.seed)
        theirs = run.spec()
        code = own_code.code_of_parts(theirs.model)
        if asked.code and asked.code != code:
            raise ConfigError(
                f"{FIELD}: the code of {run.name} has changed ({', '.join(code)}); restore the"
                f" run, or train a new run with it: -s {FIELD}={shlex.quote(asked.run)}"
            )
    except ConfigError:
        if required:
            raise
        return spec
    if any(name.startswith("head_dist.") for name in weights):
        raise ConfigError(
            f"{FIELD}: {run.name} predicts with a distillation token, which a teacher cannot have;"
            " take a run of another task.kind"
        )
    teacher = TeacherSpec(
        run=asked.run,
        sha256=sha256,
        model=theirs.model,
        class_names=theirs.data.class_names if theirs.task.row.classifies else (),
        mean=theirs.data.mean,
        std=theirs.data.std,
        code=code,
    )
    return spec.replace(task=spec.task.replace(teacher=teacher))


def with_known_teacher(spec: ExperimentSpec, run: RunDir | None) -> ExperimentSpec:
    """Return ``with_teacher``; a finished run without its teacher keeps what it recorded of it."""
    try:
        return with_teacher(spec)
    except ConfigError:
        if run is None or read_record(run).status != "finished":
            raise
        asked, known = spec.task.taught_by, run.spec().task.taught_by
        if asked is None or known is None or asked.run != known.run:
            raise
        return spec.replace(task=spec.task.replace(teacher=known))


def with_seed(spec: ExperimentSpec, seed: int) -> ExperimentSpec:
    """Return the spec with another seed, and with the teacher of that seed if it is at hand."""
    reseeded, teacher = spec.model_copy(update={"seed": seed}), spec.task.taught_by
    if teacher is None or teacher_run(reseeded) == teacher_run(spec):
        return reseeded
    unknown = spec.task.replace(teacher=TeacherSpec(run=teacher.run))
    return with_teacher(reseeded.replace(task=unknown), required=False)


def load_teacher(task: "Task") -> None:
    """Fill the teacher of a task, if it has one, with the weights of its run.

    A task without the SHA-256 of its teacher is only measured; its teacher's weights stay random.
    """
    from vitcli.runner.machine.device import move_module

    asked, model = task.spec.task.taught_by, task.teacher
    if model is None or asked is None or asked.sha256 is None:
        return
    run, weights, _ = _read(asked, task.spec.seed)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(f"{FIELD}: the weights of {run.name} do not fit its model") from error
    move_module(model, next(model.parameters()).device, model.spec)


def _read(asked: TeacherSpec, seed: int) -> tuple[RunDir, dict[str, "Tensor"], str]:
    from vitcli.runner.evaluate.weights import encoder_weights, final_step, weights_sha256

    name = asked.run_for(seed)
    try:
        run = find_run(name)
        weights = encoder_weights(run, final_step(run))  # no message would say that it is another
    except UserError as error:
        experiment, _, own_seed = name.partition("/train/seed")
        option = f" --seed {own_seed}" if own_seed else ""
        can_train = experiment in experiment_files()
        hint = f"; train it first: vitcli train {experiment}{option}" if can_train else ""
        raise ConfigError(f"{FIELD}: {error}{hint}") from error
    digest = weights_sha256(weights)
    if asked.sha256 not in (None, digest):
        raise ConfigError(
            f"{FIELD}: the weights of {run.name} have changed (SHA-256 {digest[:12]}, not"
            f" {asked.sha256[:12]}); restore them, or train a new run with them:"
            f" -s {FIELD}={shlex.quote(asked.run)}"
        )
    return run, weights, digest
