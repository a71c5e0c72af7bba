"""Study files: a base experiment, its variants and seeds. No torch; nothing is trained.

A study is an experiment file with ``variants``. Every variant starts from the file's other fields
or from its ``base``. It changes fields or names another experiment.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from vitcli.core.spec import ExperimentSpec, Spec
from vitcli.core.spec.data import OWN_FIELDS
from vitcli.core.spec.task import TASKS
from vitcli.plugin import load_target
from vitcli.runner.errors import ConfigError, UserError
from vitcli.runner.evaluate.teacher import with_seed, with_teacher
from vitcli.runner.experiment.config import (
    config_hash,
    experiment_files,
    find_experiment,
    flatten,
    load_experiment,
    load_own_code,
    merge_with_bases,
    override,
    parse_experiment,
    refuse_unknown_data,
)
from vitcli.runner.experiment.diff import differences
from vitcli.runner.experiment.family import switch_family
from vitcli.runner.experiment.problems import describe
from vitcli.runner.experiment.yaml_text import (
    Document,
    Places,
    in_files,
    on_command_line,
    read_mapping,
    read_purpose,
)
from vitcli.runner.files import sha256
from vitcli.runner.run.folder import RUNS
from vitcli.runner.study.design import crossed_design
from vitcli.runner.study.result import MIN_PAIRS, Reference
from vitcli.runner.text import did_you_mean, percent, quantity, setting_text

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
RESERVED = (
    *("figures", "logs", "code", "plan.json", "results.json", "report.html", "known.cache"),
    *("table.md", "table.tex", "table.csv", "campaign.json"),
)
"""Names of files and folders that vitcli writes, or once wrote, into a study's folder."""
EVALUATIONS = {"train.early_stopping", "train.epochs", "train.eval_every"}
MORE_EVALUATIONS = (
    "more evaluations have a better best one by chance; leave train.early_stopping, train.epochs"
    " and train.eval_every out of {}"
)
"""Why settings with early stopping are not compared if their ``EVALUATIONS`` differ."""
NEUTRAL = {f"train.{name}" for name in ("precision", "compile", "grad_checkpointing", "eval_every")}
"""Fields that may differ from those of the reference's experiment in the same setting."""
EPOCHS = "train.epochs"
SPLITS = ("name", "resize", "val_split", "folds", "skip_bad", *OWN_FIELDS)
"""Fields of ``data`` that decide the images of the splits; all variants share them."""
MAX_SETTINGS = 100
MAX_SEED = 2**31 - 1
Seeds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_SEED)]], Field(min_length=1)]


class StudyFields(Spec):
    """Fields of a study file that an experiment file does not have."""

    variants: dict[str, dict[str, Any] | None]
    """Name -> dotted fields to change, or ``experiment: NAME``. The first variant is the
    baseline."""
    seeds: Seeds
    """Random seeds; each variant is trained once with each seed. At least one."""
    planned_seeds: int | None = Field(None, ge=MIN_PAIRS, le=10_000)
    """Number of random seeds that the study will end with; by default the number of ``seeds``, at
    least 3. It is recorded before the first result, and later values do not count: verdicts hold at
    every look, and are easiest at the planned number."""
    threads: int = Field(1, ge=1, le=256)
    """CPU threads of each trial. The study sets them, because their number changes the rounding."""
    design: Literal["one-at-a-time", "factorial"] = "one-at-a-time"
    """``factorial`` trains every combination of the variants, and reports main effects and
    interactions."""
    equal_compute: bool = False
    """Whether the number of epochs of each variant follows from the baseline: the most, and at
    least one, with which a trial takes no more floating-point operations than a trial of the
    baseline. Its pre-training and its teacher's own training count."""
    tune: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Dotted field -> values to choose from, for each variant alone, on the validation split."""
    reference: Reference | None = None
    """Published numbers to compare with; unset compares with none."""
    equivalence_margin: float | None = Field(None, gt=0)
    """Differences below this count as none, in the unit of the table (percentage points). Choose it
    before the first trial; unset tests no equivalence."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of the table; without tuning, ``settings`` has one empty setting."""

    name: str
    changes: dict[str, Any]
    settings: tuple[tuple[dict[str, Any], ExperimentSpec], ...]

    @property
    def spec(self) -> ExperimentSpec:
        return self.settings[0][1]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training: a variant in one setting with one seed, and its folder inside the study."""

    variant: str
    setting: dict[str, Any]
    spec: ExperimentSpec
    config_hash: str
    """Of the configuration without the seed."""
    folder: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """A checked study; the first variant is the baseline."""

    name: str
    path: Path
    question: str
    hypothesis: str = ""
    seeds: tuple[int, ...]
    threads: int
    tune: dict[str, list[Any]]
    variants: tuple[Variant, ...]
    reference: Reference | None
    equivalence_margin: float | None = None
    parts: tuple[str, ...] = ()
    """Names of the crossed variants of a factorial study; empty for other studies."""
    equal_compute: bool = False
    file_seeds: tuple[int, ...]
    """Seeds of the file, even if the command line replaced them."""
    planned_seeds: int
    data: str | None = None
    """The data set, if the command line replaced that of the file."""
    typed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Dotted field -> value that the command line set in the base of every variant."""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Dotted field -> the option of the command line that set it; ``-s`` if absent."""
    note: str = ""
    """What the user should know about these values; empty if nothing."""

    @property
    def baseline(self) -> Variant:
        return self.variants[0]

    @cached_property
    def rows(self) -> dict[str, str]:
        """Variant -> hash of its configuration, with all settings."""
        return {each.name: _joint_hash(spec for _, spec in each.settings) for each in self.variants}

    def trials(self, only: Sequence[str] = ()) -> list[Trial]:
        return [each for each in self._trials if not only or each.variant in only]

    @cached_property
    def _trials(self) -> list[Trial]:
        settings = [
            (variant.name, setting, spec, config_hash(spec))
            for variant in self.variants
            for setting, spec in variant.settings
        ]
        return [
            Trial(
                variant=name,
                setting=setting,
                spec=with_seed(spec, seed),
                config_hash=key,
                folder=trial_folder(name, setting, seed),
            )
            for seed in self.seeds
            for name, setting, spec, key in settings
        ]


def trial_folder(variant: str, setting: Mapping[str, Any], seed: int) -> str:
    """Return a trial's folder in its study, such as ``full/lr=0.001/seed0``, or ``full/seed0``."""
    tuned = [re.sub(r"[^\w.=,+-]", "_", setting_text(setting, ","))] if setting else []
    return "/".join([variant, *tuned, f"seed{seed}"])


def hashed_trial(spec: ExperimentSpec, digest: str, setting: Mapping[str, Any]) -> Trial:
    """Return a trial whose folder is named by its configuration hash."""
    name = digest[:12]
    folder = trial_folder(name, {}, spec.seed)
    return Trial(variant=name, setting={**setting}, spec=spec, config_hash=digest, folder=folder)


def _joint_hash(specs: Iterable[ExperimentSpec]) -> str:
    hashes = [config_hash(spec) for spec in specs]
    return hashes[0] if len(hashes) == 1 else sha256("".join(hashes).encode())


def default_root(study: Study) -> Path:
    """Return the study's folder if the user names none: another one for what the user changed."""
    data = Path(study.data.partition(":")[2] or study.data).resolve().name if study.data else ""
    is_changed = study.typed.keys() - {"data.name"}
    # A typed field that the baseline sets itself changes the other variants only.
    is_hidden = is_changed & study.baseline.changes.keys()
    key = _joint_hash(each.spec for each in study.variants[: None if is_hidden else 1])
    return RUNS / "-".join(filter(None, [study.name, data, key[:8] if is_changed else ""]))


def load_study(
    name: str,
    seeds: Sequence[int] | None = None,
    typed: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> Study:
    path = find_experiment(name)
    study = study_of(read_mapping(path), path, seeds, typed, options)
    return dataclasses.replace(study, typed=dict(typed or {}), options=dict(options or {}))


def study_of(
    document: Document,
    path: Path,
    seeds: Sequence[int] | None = None,
    typed: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> Study:
    """Return the checked study of a document, whose file is ``path``; see ``Study.typed``."""
    typed, shown = dict(typed or {}), on_command_line(typed or {}, options or {})
    raw, documents = merge_with_bases(path, document)
    raw |= load_own_code(documents) if "code" in raw else {}
    refuse_unknown_data(typed, options or {})
    places = in_files(documents)
    if "variants" not in raw:
        name = path.stem if path in experiment_files().values() else str(path)
        raise ConfigError(f"{path}: an experiment, not a study; train it: vitcli train {name}")
    if "seed" in document.data:
        raise ConfigError(
            f"{document.where(('seed',))}: a study has 'seeds', such as [0, 1, 2], not 'seed'"
        )
    if "seed" in typed:
        raise ConfigError(
            f"{shown.where(('seed',))}: seed: a study has several; type --seeds {typed['seed']}"
        )
    fields = _check_fields({k: raw.pop(k) for k in StudyFields.model_fields if k in raw}, places)
    if tuned := sorted(flatten(typed).keys() & fields.tune.keys()):
        where = shown.where(tuple(tuned[0].split(".")))
        raise ConfigError(f"{where}: 'tune' of {path} chooses {tuned[0]}; leave this option out")
    purpose = read_purpose(document)
    chosen = tuple(fields.seeds if seeds is None else seeds)
    if duplicates := sorted({seed for seed in chosen if chosen.count(seed) > 1}):
        where = places.where(("seeds",)) if seeds is None else "--seeds"
        raise ConfigError(f"{where}: seed {duplicates[0]} appears twice")
    if not fields.variants:
        raise ConfigError(f"{places.where(('variants',))}: a study needs variants")
    named = {name: changes or {} for name, changes in fields.variants.items()}
    parts: tuple[str, ...] = ()
    if fields.design == "factorial":
        parts = tuple(named)[1:]
        cross = load_target(crossed_design(f"{places.where(('design',))}: ").cross)
        named = cross(named, fields.tune, places)
    variants = tuple(
        _variant(name, changes, raw, typed, fields.tune, path, places, shown)
        for name, changes in named.items()
    )
    if parts and variants[0].spec.data.folds:
        raise ConfigError(f"{places.where(('design',))}: a factorial study has no data.folds")
    notes = [switch_family(raw, typed)[1]]
    if fields.equal_compute:
        variants, note = _equal_compute(variants, fields.seeds[0], fields.tune, places)
        notes.append(note)
    refuse_equal(variants, places)
    _check_reference(fields.reference, variants, places)
    return Study(
        name=path.stem,
        path=path,
        question=purpose.question,
        hypothesis=purpose.hypothesis,
        seeds=chosen,
        threads=fields.threads,
        tune=fields.tune,
        variants=variants,
        reference=fields.reference,
        equivalence_margin=fields.equivalence_margin,
        parts=parts,
        equal_compute=fields.equal_compute,
        file_seeds=tuple(fields.seeds),
        planned_seeds=fields.planned_seeds or max(MIN_PAIRS, len(fields.seeds)),
        data=typed.get("data.name"),
        note="; ".join(filter(None, notes)),
    )


def _check_fields(raw: dict[str, Any], places: Places) -> StudyFields:
    try:
        return StudyFields.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        problem = describe(first["loc"], first["type"], first)
        raise ConfigError(f"{places.where(first['loc'])}: {problem}") from error


def grid(tune: Mapping[str, list[Any]], places: Places) -> list[dict[str, Any]]:
    settings = [
        dict(zip(tune, values, strict=True)) for values in itertools.product(*tune.values())
    ]
    if len(settings) > MAX_SETTINGS:
        raise ConfigError(
            f"{places.where(('tune',))}: {len(settings)} settings are too many;"
            f" at most {MAX_SETTINGS} are allowed"
        )
    if len({trial_folder("", setting, 0) for setting in settings}) < len(settings):
        raise ConfigError(f"{places.where(('tune',))}: a value or its folder's name appears twice")
    return settings


def _variant(
    name: str,
    changes: dict[str, Any],
    base: Mapping[str, Any],
    typed: dict[str, Any],
    tune: Mapping[str, list[Any]],
    path: Path,
    places: Places,
    shown: Places,
) -> Variant:
    label = f": variant {name!r}"
    place = f"{places.where(('variants', name))}{label}"
    if not NAME.fullmatch(name) or name.lower() in RESERVED:
        raise ConfigError(
            f"{place}: its name becomes a folder; use letters, digits and . _ + - only"
            f" (reserved: {', '.join(RESERVED)})"
        )
    typed_data = typed.keys() & {"data.name"}  # that of every variant
    changes = flatten(changes, whole_options=True)
    changes = {key: value for key, value in changes.items() if key not in typed_data}
    for field in ("seed", "base", "variants"):
        if field in changes:
            raise ConfigError(f"{place}: a variant cannot change {field!r}")
    raw, below = base, places
    if "experiment" in changes:
        raw, below = _other_experiment(changes["experiment"], place, path)
    raw, _ = switch_family(raw, {key: typed[key] for key in typed.keys() - changes.keys()})
    fields = typed | {field: value for field, value in changes.items() if field != "experiment"}
    own = [places.below("tune"), places.below(f"variants.{name}", label)]
    written = Places([*own, *shown.sources, *below.sources], place)
    settings = []
    for setting in grid(tune, places):
        spec = parse_experiment(override(raw, fields | setting), written)
        settings.append((setting, with_teacher(spec, required=False)))
    if divided := tune.keys() & {*(f"data.{name}" for name in SPLITS), "train.limit_batches"}:
        field = min(divided)
        raise ConfigError(f"{place}: 'tune' compares on the same images; leave {field} out of it")
    if tune and not settings[0][1].data.val_split:
        raise ConfigError(f"{place}: 'tune' needs a validation split; set data.val_split")
    if tune.keys() & EVALUATIONS and any(spec.train.early_stopping for _, spec in settings):
        raise ConfigError(f"{place}: train.early_stopping: " + MORE_EVALUATIONS.format("'tune'"))
    return Variant(name=name, changes=changes, settings=tuple(settings))


def _other_experiment(name: Any, place: str, study: Path) -> tuple[Mapping[str, Any], Places]:
    if not isinstance(name, str):
        raise ConfigError(f"{place}: 'experiment' must name one experiment, got {name!r}")
    try:
        path = find_experiment(name, beside=study.parent)
        raw, documents = merge_with_bases(path)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    raw |= load_own_code(documents, str(study)) if "code" in raw else {}
    if "variants" in raw:
        raise ConfigError(f"{place}: {name!r} is a study, not an experiment")
    return raw, in_files(documents)


def _equal_compute(
    variants: Sequence[Variant], seed: int, tune: Mapping[str, list[Any]], places: Places
) -> tuple[tuple[Variant, ...], str]:
    from vitcli.runner.train.flops import epochs_within, whole_training_flops  # needs torch

    if EPOCHS in tune:
        where = places.where(("tune", EPOCHS))
        raise ConfigError(f"{where}: equal_compute sets {EPOCHS}; remove one of the two")
    base, said = variants[0], []
    most, found = 0, []
    for variant in variants:
        place = f"{places.where(('variants', variant.name))}: variant {variant.name!r}"
        if EPOCHS in variant.changes and variant is not base:
            raise ConfigError(f"{place}: equal_compute sets {EPOCHS}; remove one of the two")
        settings, told = [], []
        for setting, spec in variant.settings:
            try:
                most = most or whole_training_flops(with_seed(base.spec, seed), strict=True)
                epochs, flops = spec.train.epochs, most
                if spec is not base.spec:
                    epochs, flops = epochs_within(with_seed(spec, seed), most)
            except UserError as error:
                raise ConfigError(f"{place}: equal_compute: {error}") from error
            if not epochs:
                raise ConfigError(f"{place}: equal_compute needs a baseline with {EPOCHS} above 0")
            settings.append((setting, spec.replace(train=spec.train.replace(epochs=epochs))))
            told.append(f"{quantity(epochs, 'epoch')} ({percent(flops / most, 1)})")
        found.append(dataclasses.replace(variant, settings=tuple(settings)))
        said.append(f"{variant.name} {' or '.join(dict.fromkeys(told))}")
    return tuple(found), f"equal compute, in whole epochs: {', '.join(said)}"


def refuse_equal(variants: Sequence[Variant], places: Places) -> None:
    """Refuse variants that are the same, or whose scores cannot be compared."""
    base = variants[0]
    for i, variant in enumerate(variants):
        where = f"{places.where(('variants', variant.name))}: variant {variant.name!r}"
        for other in variants[:i]:
            if variant.spec == other.spec:
                raise ConfigError(
                    f"{where} is the same as {other.name!r}; change one of its fields"
                )
        changes = differences(base.spec, variant.spec)
        if variant.spec.task.row != TASKS[variant.spec.task.name]:
            raise ConfigError(
                f"{where}: a study compares the accuracy of each image; remove task.headline"
            )
        metrics = [each.spec.task.row.headline for each in (base, variant)]
        if metrics[0] != metrics[1]:
            raise ConfigError(
                f"{where}: its task measures {metrics[1].title}, that of {base.name!r}"
                f" {metrics[0].title}; different metrics cannot be compared"
            )
        for field in (f"data.{name}" for name in SPLITS):
            if field in changes:
                raise ConfigError(
                    f"{where}: {field} differs from that of {base.name!r}; scores on"
                    " different images cannot be compared"
                )


def _check_reference(
    reference: Reference | None, variants: Sequence[Variant], places: Places
) -> None:
    task = variants[0].spec.task
    if reference and task.row.headline.unit != "%":
        raise ConfigError(
            f"{places.where(('reference',))}: a reference has accuracies in percent, but the task"
            f" {task.name!r} measures {task.row.headline.title}; remove the reference"
        )
    names = [variant.name for variant in variants]
    for row in reference.rows if reference else ():
        if row not in names:
            where = places.where(("reference", "rows", row))
            raise ConfigError(f"{where}: no variant is called {row!r}{did_you_mean(row, names)}")
    if reference and reference.experiment:
        load_experiment(reference.experiment)


def is_same_setting(study: Study) -> bool:
    """Return whether the baseline equals the reference's experiment, up to neutral fields."""
    if not (study.reference and study.reference.experiment):
        return False
    source, ours = load_experiment(study.reference.experiment).spec, study.baseline.spec
    return not differences(source.replace(seed=0), ours.replace(seed=0)).keys() - NEUTRAL


def select(study: Study, only: Sequence[str]) -> tuple[str, ...]:
    """Return the requested variants and the baseline, in the study's order."""
    names = [variant.name for variant in study.variants]
    for name in only:
        if name not in names:
            raise ConfigError(
                f"--only {name}: {study.name} has no such variant{did_you_mean(name, names)}"
                f" ({', '.join(names)})"
            )
    return tuple(name for name in names if not only or name in only or name == names[0])


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a text: ``"0-4,7"`` becomes ``[0, 1, 2, 3, 4, 7]``."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < 1000:
            raise ConfigError(
                f"--seeds takes numbers and ranges, such as 0-4 or 0,2,5; got {text!r}"
            )
        seeds += range(first, last + 1)
    return seeds
