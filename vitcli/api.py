"""The Python interface: build, train, predict and look at attention in a few lines."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitcli.core.data.batches import num_batches
from vitcli.core.data.source import DataSet
from vitcli.core.inspect.maps import attention_maps as attention_maps
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.image_model import build_model as build_from
from vitcli.core.spec import AugmentSpec, ExperimentSpec, OptimSpec
from vitcli.plugin import Registry, missing_for
from vitcli.runner.data.formats.npz import data_of_arrays
from vitcli.runner.data.load import load_data as read_data
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.evaluate.classifier import Classifier as Classifier
from vitcli.runner.evaluate.classifier import Prediction as Prediction
from vitcli.runner.evaluate.load import load_classifier as load_classifier
from vitcli.runner.evaluate.weights import load_model as load_model
from vitcli.runner.evaluate.weights import published_weights
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import parse_experiment
from vitcli.runner.experiment.resolve import resolve_by_name
from vitcli.runner.experiment.yaml_text import Places
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.listing import list_records, select_runs
from vitcli.runner.run.predictions import Predictions as Predictions
from vitcli.runner.run.record import RunRecord
from vitcli.runner.run.record import load_run as load_run
from vitcli.runner.study.definition import default_root, trial_folder
from vitcli.runner.study.from_python import CALL, call_text, define_study, plain, run_here
from vitcli.runner.study.page import publish_outside
from vitcli.runner.study.plan import Options
from vitcli.runner.study.result import StudyResult, VariantResult
from vitcli.runner.study.table import render
from vitcli.runner.text import write_message
from vitcli.runner.train.build import build_training
from vitcli.runner.train.fit import FoldData, fitting_model, saved_epochs
from vitcli.runner.train.fit import epochs as epochs_of
from vitcli.runner.train.prepare import refuse_leaks

FUNCTIONS = Registry[Callable[..., Any]]("python")
"""Functions of this module that plugins compute."""

SHAPE: dict[str, Any] = {"img_size": (32, 32), "in_chans": 3, "num_classes": 10}


def build_model(experiment: str | None = None, *, seed: int = 0, **fields: Any) -> ImageModel:
    """Return a new model with initial weights, or published ones, by default a ViT.

    The model is a ``torch.nn.Module`` on the CPU. It maps normalised images (B, C, H, W) to logits
    (B, num_classes).

    Args:
        experiment: Name or file of an experiment, whose ``model`` part is taken. Without an
            experiment, the fields have their defaults, and images are RGB, 32x32 pixels, of 10
            classes.
        seed: Random seed of the initial weights.
        fields: Fields of ``model`` in an experiment file, such as ``embed_dim=48``. A class that a
            decorator of ``vitcli.parts`` has added stands for its name.

    Raises:
        UserError: There is no such experiment, a field is unknown, or the fields do not fit
            together.
    """
    below = resolve_by_name(experiment).spec.model.model_dump() if experiment else SHAPE
    spec = _check("build_model", {"model": below | fields})
    try:
        model = build_from(spec.model, seed)
    except ValueError as error:
        raise ConfigError(f"build_model: {error}") from error
    weights = published_weights(spec.model.family)
    if weights and (file := weights.first_file(spec, False, write_message)):
        weights.load(model, file, write_message, ())
    return model


def load_data(
    name: str = "scenes",
    *,
    data_dir: str | Path | None = None,
    seed: int = 0,
    on_message: Callable[[str], None] = write_message,
    **fields: Any,
) -> DataSet:
    """Return a data set, whose images are uint8 tensors on the CPU.

    ``data.train`` and ``data.test`` each have ``pixels`` (N, C, H, W) uint8 and ``labels`` (N,)
    int64. ``data.val`` is None without ``val_split``. ``data.normalize(pixels)`` returns the
    float32 images that a model takes. ``data.class_names`` has the name of each label.

    Args:
        name: scenes, shapes, gratings, cifar10, cifar100, svhn, fashion-mnist, mnist or
            imagefolder:PATH.
        data_dir: The only folder to search. If None: $VITCLI_DATA, the cache and the network, which
            VITCLI_OFFLINE=1 forbids.
        seed: With ``folds``, the seed of the run whose test images are read.
        on_message: Receives each message, such as the start of a download. Writes to stderr by
            default.
        fields: Other fields of ``data`` in an experiment file, such as ``resize=64`` (pixels) or
            ``val_split=1000`` (images).

    Raises:
        UserError: The data set is unknown, missing or damaged, or a field is invalid.
    """
    spec = _check("load_data", {"data": {"name": name, **fields}}).data
    folder = Path(data_dir) if data_dir else None
    data = read_data(spec, data_dir=folder, seed=seed, on_message=on_message)
    return FoldData(**vars(data), seed=seed) if spec.folds else data


def data_set(
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    val: tuple[Any, Any] | None = None,
    *,
    class_names: Sequence[str] = (),
    name: str = "arrays",
    on_message: Callable[[str], None] = write_message,
) -> DataSet:
    """Return a data set of your own arrays, for ``fit``.

    The images are sorted by label and content, so that equal images always give the same training.

    Args:
        train: Images and labels, as arrays of NumPy or tensors. Images are uint8 or uint16 of the
            shape (N, H, W), (N, H, W, C) or (N, C, H, W); labels are (N,) integers from 0 or texts.
        test: Images and labels that measure each epoch.
        val: Images and labels for validation.
        class_names: Name of each label; by default the labels.
        name: Name of the data set, for messages.
        on_message: Receives messages. Writes to stderr by default.

    Raises:
        UserError: The arrays are of another kind, or do not fit together.
    """
    with _one_line("data_set"):
        splits = {"train": train, "test": test, "val": val}
        return data_of_arrays(name, splits, class_names, on_message)


def fit(
    model: nn.Module,
    data: DataSet,
    *,
    epochs: int,
    batch_size: int = 128,
    optim: OptimSpec | Mapping[str, Any] | None = None,
    augment: AugmentSpec | Mapping[str, Any] | None = None,
    label_smoothing: float = 0.0,
    seed: int = 0,
    save: str | Path | None = None,
    on_message: Callable[[str], None] = write_message,
) -> Iterator[dict[str, float]]:
    """Train a model on its device, and yield after each epoch. Writes no files without ``save``.

    The training starts with the first ``next``. It changes the weights of the model. After each
    epoch the model is in eval mode. It computes in fp32 with torch's kernels; on CUDA, TF32 is
    switched off. On a CPU, the process then keeps freed memory, as in ``vitcli train``.

    Args:
        model: The model to train: one of vitcli, or any module that maps normalised images
            (B, C, H, W) to logits (B, num_classes). Its current weights are the start.
        data: The training images, and the test images that measure each epoch.
        epochs: Number of passes over the training images.
        batch_size: Number of images per step. A smaller last batch is dropped.
        optim: Fields of ``optim`` in an experiment file, such as ``{"lr": 1e-3}``; the defaults if
            None.
        augment: Fields of ``data.augment``, such as ``{"crop_padding": 4}``; no augmentation if
            None.
        label_smoothing: Fraction of the target that is spread over all classes, from 0 to below 1.
        seed: Random seed of image order, augmentation and dropout. With folds, that of the data.
        save: Folder of a new run, such as ``runs/x``, with checkpoints and all records. It is
            complete after the last epoch. Images of arrays are not saved.
        on_message: Receives messages. Writes to stderr by default.

    Yields:
        ``epoch`` (from 1), ``train_loss`` (nats, mean of the epoch) and ``test_accuracy`` (0 to 1);
        with ``save`` and validation images, ``val_accuracy`` before the last epoch.

    Raises:
        UserError: A field is invalid, the model returns no logits, model and data do not fit
            together, or held-out pictures are in another split, too. A training that diverges
            raises during the epoch.
    """
    fitting = fitting_model(model, data, on_message)
    device = pick_device(str(next(model.parameters()).device))
    std = tuple(value or 1.0 for value in data.std)  # a single level has no spread
    arrays = {"name": f"imagefolder:{data.name}", "val_split": len(data.val or ())}
    source = data.spec.model_dump() if data.spec else arrays
    read = {"mean": data.mean, "std": std, "class_names": data.class_names}
    fields = {
        "model": fitting.spec.model_dump(),
        "data": {**source, **read, "augment": augment or {}},
        "optim": optim or {},
        "train": {
            "epochs": epochs,
            "batch_size": batch_size,
            "label_smoothing": label_smoothing,
            "precision": "fp32",
            "kernels": "torch",
            "compile": False,
            "graphs": False,
            "grad_checkpointing": fitting.grad_checkpointing,
        },
        "seed": seed,
    }
    spec = _check("fit", fields)
    with _one_line("fit", "; choose a smaller batch_size"):
        num_batches(len(data.train), batch_size)
    with _one_line("fit"):
        refuse_leaks(spec, data)
        training = build_training(spec, fitting, data.to(device))
    return epochs_of(training) if save is None else saved_epochs(training, Path(save), on_message)


@contextmanager
def _one_line(function: str, advice: str = "") -> Iterator[None]:
    """Let an error of the block begin with the name of the function."""
    try:
        yield
    except (ValueError, TypeError, ConfigError, InputError) as error:
        raise ConfigError(f"{function}: {error}{advice}") from error


@dataclass(frozen=True)
class ResultTable:
    """A table of results. ``print`` shows it as text, a notebook as HTML."""

    document: StudyResult
    """The trials, the source and everything that the table is made from."""
    folder: Path | None = None
    """The folder of the study; None for results that vitcli did not train."""
    source: Path | None = None
    """The CSV file that the results were read from."""

    def render(
        self, form: str = "text", *, details: bool = False, caption: str | None = None
    ) -> str:
        """Return the table as ``text``, ``md``, ``latex``, ``csv``, ``json`` or ``html``."""
        return render(self.document, form, details=details, caption=caption)

    def save(self, folder: str | Path) -> list[Path]:
        """Write the tables, the figure and ``report.html`` into a folder; return the files."""
        return publish_outside(self.document, Path(folder), self.source)

    def to_pandas(self) -> Any:
        """Return a data frame of pandas with a row for each trial.

        Its columns are variant, seed, state, the score (a share for an accuracy), what the record
        of a trial holds, and the fields that the variants change. ``run`` is the folder of the
        trial, and ``curve`` a list of (epoch, score). Results that vitcli did not train have no
        such record.

        Raises:
            UserError: pandas is not installed.
        """
        rows = [(row, trial) for row in self.document.rows for trial in row.trials]
        names = {name: None for _, trial in rows for name in trial.entry().get("measured", ())}
        return _frame(
            {
                "variant": row.variant,
                "seed": trial.seed,
                "state": trial.state,
                self.document.headline.name: trial.number(f"test_{self.document.headline.name}"),
                **({} if self.document.origin else self._record(row, trial, names)),
                **{name: _cell(value) for name, value in row.changes.items()},
            }
            for row, trial in rows
        )

    def _record(self, row: VariantResult, trial: RunRecord, names: Iterable[str]) -> dict[str, Any]:
        """Return what is recorded of a trial; ``names`` are numbers that some trials have."""
        has_run = trial.state != "missing" and (row.chosen or not row.candidates)
        folder = trial_folder(row.variant, row.chosen or {}, trial.seed)
        numbers = ("test_loss", "train_loss", "train_seconds", "images_per_second")
        return {
            "reason": trial.reason,
            "epochs": trial.epochs,
            **{name: trial.number(name) for name in (*numbers, *names)},
            "parameters": row.parameters,
            "forward_flops": row.forward_flops,
            "flops": trial.flops,
            "run": str(self.folder / folder) if self.folder and has_run else None,
            "curve": [*trial.curve],
        }

    def __str__(self) -> str:
        return self.render()

    def _repr_html_(self) -> str:
        return self.render("html")


def _frame(rows: Iterable[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise UserError("a data frame needs pandas; type: pip install pandas") from error
    return pandas.DataFrame([*rows])


def _cell(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value


class Runs(list[RunRecord]):
    """A list of runs."""

    def to_pandas(self) -> Any:
        """Return a data frame of pandas with a row for each run.

        The columns are those of ``vitcli runs ls --json``, and one for each setting that differs
        from the experiment of a run.

        Raises:
            UserError: pandas is not installed.
        """
        rows = [record.document() for record in self]
        return _frame(
            row | {name: _cell(value) for name, value in row.pop("differs").items()} for row in rows
        )


def runs(pattern: str | None = None) -> Runs:
    """Return the runs under runs/, oldest first.

    Args:
        pattern: Name or folder of runs, in which ``*`` stands for any characters; by default all.
    """
    return Runs(select_runs(list_records(), [pattern] if pattern else []))


def ablate(
    base: str | Path | Mapping[str, Any],
    variants: Mapping[str, Mapping[str, Any] | None],
    *,
    seeds: int | Sequence[int] = 3,
    planned_seeds: int | None = None,
    name: str = "",
    output: str | Path | None = None,
    epochs: int | None = None,
    limit_batches: int | None = None,
    data: str | None = None,
    data_dir: str | Path | None = None,
    code: Sequence[str | Path] = (),
    workers: int | None = None,
    device: str = "auto",
    on_message: Callable[[str], None] = write_message,
) -> ResultTable:
    """Train the variants of a study and return their table, as ``vitcli ablate`` does.

    The folder gets the same files; saved trials are not used. The same call trains only trials
    without a result. A part that is defined in a notebook or a script, and not in a file that was
    imported, is trained in this process; changes of its source text make its trials stale.

    Args:
        base: Name, file or fields of the experiment that all variants start from.
        variants: Name -> dotted fields to change, such as ``{"model.attention": Sigmoid}``. A
            class or function that a decorator of ``vitcli.parts`` has added stands for its name.
            The first variant is the baseline.
        seeds: Random seeds, or their number, counted from 0.
        planned_seeds: Number of seeds that the study will end with; by default that of ``seeds``,
            at least 3. The first call records it: verdicts hold at every look, and are easiest at
            this number.
        name: Name of the study; by default that of the base, with ``-ablation``.
        output: Folder of the study; by default runs/NAME, or runs/NAME-DATA with ``data``.
        epochs: Number of epochs of every trial.
        limit_batches: Number of steps of an epoch, at most, for a quick look.
        data: Data set of every trial.
        data_dir: The only folder to search for the data set.
        code: Files of own code that were not imported.
        workers: Number of trials to train at once; by default one per core, and one on a GPU.
        device: Device of the trials: auto, cpu, cuda or mps.
        on_message: Receives a line for each trial. Writes to stderr by default.

    Raises:
        UserError: A field is wrong, the images are missing, or the study was interrupted. A trial
            that fails raises nothing; the table and a message say so.
    """
    own_code.load([Path(file) for file in code])
    own_code.state.typed.add(CALL)
    given: dict[str, Any] = {"epochs": epochs, "limit_batches": limit_batches, "data": data}
    study = define_study(base, variants, seeds, name, given, planned_seeds)
    for variant in study.variants:
        own_code.refuse_unsaved(variant.spec)
    root = Path(output) if output else default_root(study)
    files = [Path(file).name for file in code]
    given |= {"base": base, "variants": variants, "seeds": seeds, "name": study.name, "code": files}
    given["planned_seeds"] = planned_seeds
    options = Options(
        jobs=workers,
        device=device,
        data_dir=Path(data_dir) if data_dir else None,
        command=call_text(given),
    )
    return ResultTable(run_here(study, root, options, on_message), root)


def table(
    results: Any, *, on_message: Callable[[str], None] = write_message, **choices: Any
) -> ResultTable:
    """Return the table of results that any program trained, as ``vitcli table`` prints it.

    Args:
        results: A CSV file, or a data frame of pandas, with one trial a row.
        on_message: Receives the columns that were not used. Writes to stderr by default.
        choices: ``score``, ``variant`` and ``seed`` (columns), ``baseline``, ``unit``
            (``percent``, ``fraction`` or ``none``), ``lower_is_better``, ``margin`` and ``plan``
            (number of planned seeds): the options of the command.

    Raises:
        UserError: The results are missing or damaged, or contradict themselves or a choice.
    """
    shown: ResultTable = _of_plugin("vitcli.table", results, on_message, choices)
    return shown


def decide(
    change: Any,
    against: Any = None,
    *,
    on_message: Callable[[str], None] = write_message,
    **choices: Any,
) -> Any:
    """Return whether a change is better than the best so far, as ``vitcli decide`` does.

    The result has ``verdict``, ``pairs``, ``mean`` (difference) and ``interval``; ``is_final`` is
    false if another pair is needed.

    Args:
        change: Differences of the pairs so far, in the order of their seeds. Or a function that
            trains with a seed and returns a score; ``against`` is such a function, too, and
            ``folder`` keeps the scores, so that the same call goes on. Or dotted fields, such as
            ``{"optim.lr": 0.01}``, or an experiment, which are trained.
        against: What is the best so far. A campaign that has begun needs none.
        on_message: Receives a line for each training. Writes to stderr by default.
        choices: ``max_seeds``, ``margin`` and ``higher_is_better``; for what is trained
            ``campaign`` (name) or ``folder``, ``data``, ``epochs``, ``limit_batches``, ``jobs``,
            ``device``, ``data_dir`` and ``budget`` (seconds): the options of the command.

    Raises:
        UserError: A field is wrong, the best diverged, or the trainings were interrupted.
    """
    return _of_plugin("vitcli.decide", change, against, on_message, **choices)


def _of_plugin(name: str, *arguments: Any, **choices: Any) -> Any:
    if name not in FUNCTIONS:
        problem = missing_for(FUNCTIONS.field, name) or "needs a plugin that is not installed"
        raise ConfigError(f"{name} {problem}")
    return FUNCTIONS[name](*arguments, **choices)


def _check(function: str, fields: Mapping[str, Any]) -> ExperimentSpec:
    return parse_experiment(plain(fields, function), Places((), function), is_stored=True)
