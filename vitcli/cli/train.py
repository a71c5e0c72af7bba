"""`vitcli train`: the training of an experiment."""

import getpass
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from vitcli.cli import complete
from vitcli.cli import options as shared
from vitcli.cli.chosen import adopt_model, collect_changes, load_changed, shorten_pretraining
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import Rare, output_option, with_code, with_example
from vitcli.plugin import has_option
from vitcli.runner.errors import ConfigError, DivergedError, InUseError, StoppedError
from vitcli.runner.machine.launch import read_launch
from vitcli.runner.report.report import Fact, Report, hidden
from vitcli.runner.text import duration, quantity

if TYPE_CHECKING:
    from vitcli.runner.experiment.config import Experiment
    from vitcli.runner.run.folder import RunDir
    from vitcli.runner.run.record import RunRecord
    from vitcli.runner.train.prepare import Request

Name = Annotated[
    str | None,
    Argument(
        metavar="EXPERIMENT",
        help="Experiment name ('vitcli experiments ls' lists them) or file.",
        show_default="quickstart",
        autocompletion=complete.experiment,
    ),
]
Seed = Annotated[int | None, Option(min=0, help="Random seed of weights, data order and dropout.")]
LearningRate = Annotated[float | None, Option("--lr", help="Peak learning rate.")]
BatchSize = Annotated[
    int | None,
    Rare(
        min=1, help="Number of images or sequences per step.", show_default="as in the experiment"
    ),
]
Precision = Annotated[
    str | None,
    Rare(help="Precision: fp32, tf32, bf16, fp16 or auto.", show_default="as in the experiment"),
]
Init = Annotated[
    str | None,
    Option(
        metavar="RUN|FILE|timm:NAME",
        help="Start from the weights of a run or of timm; family timm also from a file.",
        autocompletion=complete.run,
    ),
]
Output = Annotated[Path | None, output_option("FOLDER", "Run folder to write.", "runs/...")]
Resume = Annotated[
    str | None,
    Option(
        metavar="RUN|auto",
        help="Continue a run; 'auto' starts the run if it has no checkpoint.",
        autocompletion=complete.own_run,
    ),
]
Inexact = Annotated[
    bool,
    Rare(
        "--allow-inexact",
        help="Continue even if the thread count, the torch version or a setting has changed, and"
        " mark the run as inexact.",
    ),
]
StopAfter = Annotated[
    int | None,
    Rare(
        metavar="N",
        min=1,
        help="Stop after epoch N, with the schedule of the whole training; --resume continues it.",
        show_default="the last epoch",
    ),
]
Replay = Annotated[
    int | None,
    Rare(
        metavar="STEP",
        min=1,
        help="Take the steps of --resume RUN up to STEP again, or up to the first one that is not"
        " finite, and show the range of each layer there. Writes nothing.",
    ),
]


@with_example(
    "vitcli train quickstart --epochs 2",
    "vitcli train quickstart --data imagefolder:pictures --name pets",
)
@with_code
def train(
    experiment: Name = None,
    data: shared.Data = None,
    epochs: shared.Epochs = None,
    lr: LearningRate = None,
    batch_size: BatchSize = None,
    sets: shared.Sets = None,
    name: shared.RunName = None,
    skip_bad: shared.SkipBad = False,
    allow_leaks: shared.AllowLeaks = False,
    fit: shared.FitOption = None,
    output: Output = None,
    resume: Resume = None,
    stop_after: StopAfter = None,
    replay: Replay = None,
    rerun: shared.Rerun = False,
    dry_run: shared.DryRun = False,
    seed: Seed = None,
    init: Init = None,
    device: shared.Device = "auto",
    precision: Precision = None,
    limit_batches: shared.LimitBatches = None,
    data_dir: shared.DataDir = None,
    allow_inexact: Inexact = False,
    offline: shared.Offline = False,
    track: shared.Track = None,
    form: shared.Format = "text",
) -> None:
    """Train an experiment and measure its test accuracy.

    \b
    On several GPUs or processes:
      torchrun --nproc-per-node 2 -m vitcli train quickstart
    """
    from vitcli.runner.train.prepare import Request

    if track:
        shared.check_trackers(track)
    shortcuts: dict[str, Any] = {
        "seed": seed,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "optim.lr": lr,
        "train.precision": precision,
        "train.limit_batches": limit_batches,
        "train.init": init,
        "data.name": data,
        "data.skip_bad": skip_bad or None,
        "data.allow_leaks": allow_leaks or None,
        "data.fit": fit,
    }
    changes, options = collect_changes(sets, shortcuts)
    if replay is not None and (resume in (None, "auto") or stop_after or dry_run or track):
        raise ConfigError(
            "--replay takes the steps of a run again: name it with --resume RUN, and leave out"
            " --stop-after, --dry-run and --track"
        )
    chosen, output, first = choose_experiment(
        experiment, changes, options, resume, shared.run_folder(name, output), rerun, allow_inexact
    )
    request = Request(
        device=device,
        data_dir=data_dir,
        offline=offline,
        track=tuple(dict.fromkeys(track or ())),
        output=output,
        resume=resume is not None,
        rerun=rerun,
        allow_inexact=allow_inexact,
        stop_after=stop_after,
        first=first,
    )
    if replay is not None:
        return replay_step(chosen, request, replay, form)
    (show_costs if dry_run else run)(chosen, request, form)


def choose_experiment(
    experiment: str | None,
    changes: dict[str, Any],
    options: dict[str, str],
    resume: str | None,
    output: Path | None,
    rerun: bool,
    allow_inexact: bool,
) -> "tuple[Experiment, Path | None, RunDir | None]":
    from vitcli.runner.experiment.config import load_experiment
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.train.prepare import resume_experiment

    for option, value in {"EXPERIMENT": experiment, "--resume": resume}.items():
        shared.refuse_empty(option, value)
    if changes.get("train.init") == "" or (output is not None and not output.name):
        raise ConfigError('--init and -o need a name; is a shell variable unset? Here: -o "$PWD"')
    if resume in (None, "auto"):
        name = experiment or "quickstart"
        first: RunDir | None = None
        if changes.get("train.init"):
            changes, first = adopt_model(name, changes, options)
        found = load_changed(name, changes, options)
        pretrain, is_try = found.spec.pretrain, "train.limit_batches" in options
        if pretrain and is_try and (short := shorten_pretraining(pretrain.train, changes, options)):
            found = load_experiment(name, changes | short, options)
        return found, output, first
    if not (experiment or output or rerun):
        find_run(resume)
    if experiment or output or rerun or (changes and not allow_inexact):
        raise ConfigError(
            f"--resume {resume} continues that run unchanged; leave out the experiment, --set,"
            " --name, -o and --rerun (or train a new run, or add --allow-inexact, which marks the"
            " run)"
        )
    return *resume_experiment(str(resume), changes, options), None


def run(experiment: "Experiment", request: "Request", form: str) -> None:
    from vitcli.cli.live import TrainingDisplay, bars
    from vitcli.runner.data.find import own_path
    from vitcli.runner.experiment.config import shown_name
    from vitcli.runner.machine.device import warn_if_emulated
    from vitcli.runner.train.ranks import joined
    from vitcli.runner.train.train import train as run_training

    launch = read_launch()
    if launch and launch.rank:
        with joined(launch), suppress(StoppedError, DivergedError):  # rank 0 says so
            run_training(experiment, request)
        return

    say(f"experiment {shown_name(experiment.name, experiment.path)}")
    instead = f"{'train a new run with' if request.resume else 'type'} --precision fp32"
    warn_if_emulated(experiment.spec.train.precision, request.device, say, instead)
    launcher = launch.command if launch else ""
    command = f"{launcher} {shlex.join(['vitcli', *sys.argv[1:]])}".strip()
    with bars() as progress, joined(launch):
        screen = TrainingDisplay(progress)
        request = replace(request, launcher=launcher, command=command)
        request = replace(request, on_event=screen.show, on_message=screen.say)
        try:
            record = run_training(experiment, request)
        except InUseError as error:
            if launch or request.resume or (request.output and "--name" not in sys.argv):
                raise
            own = command_of_own_run(experiment.name)
            raise InUseError(f"{error}; to train a run of your own, type: {own}") from error
    if not screen.has_started:
        again = record.folder.rerun_command if request.resume else "--rerun"
        say(
            f"already finished, nothing was trained ({again} trains it again, --name NAME trains"
            " another)"
        )
        if record.reason:
            say(f"warning: {record.reason}; to make it again: {record.folder.rerun_command}")
    spec = experiment.spec
    if record.reached:
        say(f"{record.reason}; a checkpoint was saved")
        facts = facts_so_far(record)
        following = request.resume_command(record.folder)
    else:
        is_own = spec.train.init and own_path(spec.data.name) and spec.task.row.classifies
        verb = "eval --review" if is_own and has_option("eval", "review") else "eval"
        following = record.folder.command(verb, request.data_dir, request.device)
        facts = final_facts(record)
    shown = {fact.name for fact in facts}
    values = record.reached or record.result
    others = {name: value for name, value in values.items() if name not in shown}
    facts += [*hidden(**others), Fact("run", str(record.path))]
    notes = [f"warning: {values['warning']}"] if "warning" in values else []
    emit_report(Report(facts=facts, notes=notes, next=[following]), form)


def command_of_own_run(experiment: str) -> str:
    """Return the command that was typed, with a name that no run has."""
    from vitcli.runner.run.folder import plain_name, unused_name

    words = ["vitcli", *sys.argv[1:]]
    if "--name" in words:
        place = words.index("--name") + 1
        words[place] = unused_name(words[place])
        return shlex.join(words)
    user = ""
    with suppress(OSError, KeyError, ImportError):  # a user without an entry in passwd
        user = getpass.getuser()
    return shlex.join([*words, "--name", unused_name(plain_name(f"{user}-{experiment}"))])


def final_facts(record: "RunRecord") -> list[Fact]:
    result = record.result
    which, kept = "last epoch", quantity(result["epochs"], "epoch")
    if "stopped_at" in result:
        is_tuned = bool(result["steps"])
        which = "best epoch on the validation split"
        which = which if is_tuned else "the probe; tuning did not beat it"
        kept = f"epoch {result['epochs']}" if is_tuned else "the probe"
    facts = [score_fact(record, result, which)]
    balanced = result.get("test_balanced_accuracy")
    if balanced not in (None, facts[0].value):
        facts.append(Fact("test_balanced_accuracy", balanced, about="(mean of the classes)"))
    if any(name.startswith("set_threshold") for name in result):
        from vitcli.runner.evaluate.scores import describe_temperature

        facts.append(Fact("temperature", record.temperature, text=describe_temperature(record)))
    verb = "kept" if "stopped_at" in result else "trained"
    facts.append(trained_fact(verb, kept, result))
    return facts


def score_fact(record: "RunRecord", numbers: Mapping[str, Any], which: str) -> Fact:
    from vitcli.runner.run.record import headline_key

    headline = record.headline
    key = headline_key(numbers, headline.name)  # a trial of a search has no test images
    label = f"{key.partition('_')[0]} {headline.label}"
    return Fact(key, numbers.get(key), metric=headline, label=label, about=f"({which})")


def trained_fact(verb: str, epochs: str, numbers: Mapping[str, Any]) -> Fact:
    seconds = duration(numbers["train_seconds"])
    text = f"{epochs}, {numbers['parameters']:,} parameters, {seconds}"
    return Fact("epochs", numbers["epochs"], label=verb, text=text)


def facts_so_far(record: "RunRecord") -> list[Fact]:
    reached = record.reached
    score = score_fact(record, reached, f"epoch {reached['epochs']}")
    epochs = f"{reached['epochs']} of {quantity(reached['epochs_planned'], 'epoch')}"
    return [
        *([] if score.value is None else [score]),
        Fact("train_loss", reached["train_loss"]),
        trained_fact("trained", epochs, reached),
        *hidden(state=record.state, reason=record.reason),
    ]


def show_costs(experiment: "Experiment", request: "Request", form: str) -> None:
    from vitcli.runner.machine.device import warn_if_emulated
    from vitcli.runner.train.dry_run import costs_report, dry_run
    from vitcli.runner.train.ranks import describe_parts, refuse_parts

    launch = read_launch()
    if launch and launch.rank:
        return
    warn_if_emulated(experiment.spec.train.precision, request.device, say)
    costs = dry_run(experiment, replace(request, on_message=say), time.process_time())
    if launch:
        refuse_parts(costs.spec, launch.size)
        say(f"{describe_parts(costs.spec, launch.size)}; the time is that of one process")
    emit_report(costs_report(experiment.name, costs, request), form)


def replay_step(experiment: "Experiment", request: "Request", step: int, form: str) -> None:
    from vitcli.cli.runs import next_commands
    from vitcli.runner.run.folder import RunDir
    from vitcli.runner.run.record import read_record
    from vitcli.runner.train.replay import replay

    assert request.output
    report = replay(experiment, replace(request, on_message=say), step)
    following = next_commands(read_record(RunDir(request.output)))
    emit_report(replace(report, next=following), form)
