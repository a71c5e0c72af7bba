"""The document of a study as data: the schema of ``experiments/results/<study>.json``.

Table, figures, page and README are made from this document alone.
"""

import json
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from vitcli.core.metric import Metric, metric_of
from vitcli.core.spec import Spec
from vitcli.core.spec.rows import AcceptsList
from vitcli.core.spec.task import DEFAULT_TASK, TASKS
from vitcli.plugin import Registry, Target
from vitcli.runner.run.record import RunRecord, as_record

if TYPE_CHECKING:
    from vitcli.runner.report.tables import Table

MIN_PAIRS = 3
"""Fewest pairs with an interval. Two give intervals that hardly mean anything."""
EXACT_LOOKS = 64
"""Number of looks whose dependence is computed. A longer plan has no looks before it, and each
look after so many has the part of alpha that it spends as its level, which is smaller."""
FIGURE_FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class FigureRow:
    caption: str
    """``{name}`` is the label of the headline number, ``{seeds}`` what is drawn."""
    draw: Target
    """Takes the document."""


FIGURES = Registry[FigureRow]("study.figure")
FIGURES |= {
    "forest": FigureRow(
        "Difference of each variant from the baseline, paired by seed. Circles are single seeds,"
        " squares are their mean, bars are the 95 % interval, not adjusted for the number of rows."
        " The table's column effect says which differences exist.",
        "vitcli.runner.study.figures:forest",
    ),
    "curves": FigureRow("{name} after each epoch: {seeds}.", "vitcli.runner.study.figures:curves"),
}
EARLY_STOPPING = "train.early_stopping"
"""A field that a note below the table names for each row."""


def _is_empty(value: object) -> bool:
    return not value


class Candidate(Spec):
    """One setting of a tuned variant and its result on the validation split."""

    measured: dict[str, float] = Field(default_factory=dict, exclude_if=_is_empty)
    """The headline number of a task that has no accuracy; omitted from files if empty."""
    setting: dict[str, Any]
    val_accuracy: float | None = None
    """Mean share over the seeds. None if a trial diverged or is not finished."""
    num_diverged: int = 0

    def number(self, name: str) -> float | None:
        return self.val_accuracy if name == "val_accuracy" else self.measured.get(name)


TrialEntry = Annotated[RunRecord, BeforeValidator(as_record), PlainSerializer(RunRecord.entry)]
"""The training of one variant with one seed."""


class Crossed(Spec):
    """Mean and mean squares of the scores of S seeds on I test images, in the unit of the table.

    All seeds are measured on the same images. The model is score = mean + seed + image +
    interaction; the last three are random and independent.
    """

    num_seeds: int
    num_images: int
    mean: float
    ms_seeds: float
    ms_images: float
    ms_residual: float

    @property
    def variance(self) -> float:
        """Return the variance of the mean, for new seeds and new images.

        It is (MS seeds + MS images - MS residual) / (S I). The expected value is at least that of
        MS residual / (S I), which is the smallest value returned.
        """
        total = self.ms_seeds + self.ms_images - self.ms_residual
        return max(total, self.ms_residual) / (self.num_seeds * self.num_images)

    @property
    def error(self) -> float:
        return math.sqrt(self.variance)

    @property
    def freedom(self) -> float:
        """Return Satterthwaite's degrees of freedom of the variance, at least S - 1.

        Source: Satterthwaite 1946, https://doi.org/10.2307/3002019
        """
        rows, columns = self.num_seeds - 1, self.num_images - 1
        squares = (self.ms_seeds**2 / rows, self.ms_images**2 / columns)
        below = sum(squares) + self.ms_residual**2 / (rows * columns)
        total = self.variance * self.num_seeds * self.num_images
        return max(float(rows), total**2 / below) if below else float(rows)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the t interval of the mean at level 1 - alpha, for new seeds and new images."""
        from scipy import special

        half = -float(special.stdtrit(self.freedom, alpha / 2)) * self.error
        return self.mean - half, self.mean + half


class Contrast(Spec):
    """The differences from the baseline, image by image, over the seeds of both."""

    crossed: Crossed
    """Mean squares of the differences, seeds by test images, in the unit of the table."""
    looks: Annotated[tuple[Crossed, ...], AcceptsList] = ()
    """The same of the first seeds only, for each look before the present one; empty in documents
    from before 1.1.0."""
    by_class: Annotated[tuple[float, ...], AcceptsList] = ()
    """Mean difference on the images of each class; empty for a task without labels."""
    only_baseline: int = 0
    """Number of images that every seed of the baseline gets right and every seed here wrong."""
    only_variant: int = 0
    examples: Annotated[tuple[int, ...], AcceptsList] = ()
    """Numbers of the images at which the variant loses most, in the order of the test set."""

    def at(self, pairs: int) -> Crossed | None:
        return next((e for e in (self.crossed, *self.looks) if e.num_seeds == pairs), None)


Version = Annotated[dict[str, str], Field(min_length=1)]
"""Row -> hash of its configuration, empty if not known; the baseline first."""


class Plan(Spec):
    """What a study planned before its first result, and which rows and seeds it had since."""

    seeds: int = Field(ge=MIN_PAIRS)
    """Number of random seeds. The looks at the study depend on it."""
    versions: Annotated[tuple[Version, ...], AcceptsList] = ()
    """The planned rows, and those of each later version of the study; empty if not known."""
    date: str = ""
    """Day on which it was recorded, YYYY-MM-DD; empty if there were results by then."""
    order: Annotated[tuple[int, ...], AcceptsList] = ()
    """Seeds in the order in which the study first asked for them, which is that of the looks."""

    @property
    def baselines(self) -> list[str]:
        return [next(iter(version.values())) for version in self.versions]

    @property
    def num_comparisons(self) -> int:
        """Return how many pairs of configurations the rows of all versions have compared."""
        pairs = {
            frozenset((base, key or name))
            for base, version in zip(self.baselines, self.versions, strict=True)
            for name, key in [*version.items()][1:]
        }
        return len(pairs)

    @property
    def num_effects(self) -> int:
        """Return how many effects the parts of all versions of a factorial study have had."""
        terms: set[tuple[str, frozenset[str]]] = set()
        for base, version in zip(self.baselines, self.versions, strict=True):
            parts = [key or name for name, key in [*version.items()][1:] if "+" not in name]
            for size in (1, 2):
                terms |= {(base, frozenset(term)) for term in combinations(parts, size)}
        return len(terms)

    @property
    def edited(self) -> set[str]:
        """Return the rows that had another configuration in another version."""
        hashes = {row for version in self.versions for row in version.items() if row[1]}
        names = [name for name, _ in hashes]
        return {name for name in names if names.count(name) > 1}

    @property
    def advice(self) -> str:
        """Return how to plan anew if the baseline is not the planned one; else an empty text."""
        if len({*self.baselines}) < 2:
            return ""
        return (
            "The baseline was changed after the first result, and the first plan stays; for a new"
            " study, give its file another name."
        )

    def left_out(self, seeds: Container[int]) -> list[int]:
        """Return the other seeds that the study asked for before the last of ``seeds``."""
        last = max((i for i, seed in enumerate(self.order) if seed in seeds), default=0)
        return [seed for seed in self.order[:last] if seed not in seeds]

    def extended(self, rows: Mapping[str, str], seeds: Iterable[int]) -> "Plan":
        """Return the plan with a version of its rows, and with seeds that come later."""
        planned, *later = self.versions or (dict(rows),)
        # A file with the names of the planned rows alone learns their hashes here.
        planned = {name: key or rows.get(name, "") for name, key in planned.items()}
        versions = [planned, *later]
        if [*rows.items()] not in [[*version.items()] for version in versions]:
            versions.append(dict(rows))
        order = tuple(dict.fromkeys([*self.order, *seeds]))
        return self.replace(versions=tuple(versions), order=order)


def sort_seeds(seeds: Iterable[int], plan: Plan | None) -> list[int]:
    """Return seeds in the order of the looks: as the study first asked for them, then by number."""
    places = {seed: place for place, seed in enumerate(plan.order if plan else ())}
    return sorted(seeds, key=lambda seed: (places.get(seed, len(places)), seed))


class VariantResult(Spec):
    """One row: a variant and its trials, in the order of the study's seeds."""

    variant: str
    changes: dict[str, Any] = Field(default_factory=dict)
    """Dotted field -> value that differs from the baseline. The key ``experiment`` names another
    experiment."""
    parameters: int | None = None
    forward_flops: int | None = None
    """FLOPs of one image; a multiply-add counts as two. None in older results."""
    kernels: Annotated[tuple[str, ...], AcceptsList, Field(exclude_if=_is_empty)] = ()
    """Kernels that trained the trials, if those of the study's rows differ; else omitted from
    files."""
    trials: Annotated[tuple[TrialEntry, ...], AcceptsList]
    candidates: Annotated[tuple[Candidate, ...], AcceptsList] = ()
    """Empty unless the study tunes. ``trials`` are those of ``chosen``."""
    chosen: dict[str, Any] | None = None
    """Setting with the best mean headline number on the validation split. None until every
    candidate has its results."""
    images: Crossed | None = Field(None, exclude_if=_is_empty)
    """Mean squares of the scores, seeds by test images. None without predictions."""
    contrast: Contrast | None = Field(None, exclude_if=_is_empty)
    """Comparison with the baseline on each test image. None without predictions."""

    @property
    def flops(self) -> float | None:
        """Return the operations of a finished trial: the mean; None if one does not know them."""
        costs = [trial.flops for trial in self.trials if trial.state == "finished"]
        known = [cost for cost in costs if cost is not None]
        return fmean(known) if known and len(known) == len(costs) else None


class ReferenceRow(Spec):
    """A source's numbers for one variant."""

    accuracy: float = Field(ge=0, le=100)
    """The source's headline number in percent. Only tasks measured in percent have a reference."""
    parameters: float | None = Field(None, gt=0)
    """Number of parameters that the source states."""
    hours: float | None = Field(None, gt=0)
    """Training time that the source states, in hours."""


class Reference(Spec):
    """The numbers of a source, for comparison."""

    source: str
    """Citation: title, section and table."""
    experiment: str | None = None
    """The experiment with the source's model and length of training."""
    rows: dict[str, ReferenceRow]
    """Variant of the study -> the source's numbers for it."""


class Origin(Spec):
    """The file with the scores of a document whose trials vitcli did not train."""

    file: str
    sha256: str
    score: str
    """Name of the score; a row of the table of metrics, or any other name."""
    unit: Literal["%", ""]
    """With %, scores are stored as shares and shown in percent."""
    digits: int = Field(ge=0)
    higher_is_better: bool
    reading: str
    """How the file was read: one sentence about everything that it does not say itself."""

    @property
    def metric(self) -> Metric:
        return replace(
            metric_of(self.score) or Metric(name=self.score, label=self.score),
            scale=100 if self.unit else 1,
            unit=self.unit,
            digits=self.digits,
            higher_is_better=self.higher_is_better,
        )


class StudyResult(Spec):
    """The document of a study. The first row is the baseline of all differences."""

    compares: ClassVar[bool] = True
    """Whether rows are compared with the first; without, the document makes its own table."""
    baseline: ClassVar[str] = "baseline"
    changes: ClassVar[str] = "Fields that each variant changes"
    """Title of ``changed`` on its page."""

    name: str
    question: str = ""
    hypothesis: str = Field("", exclude_if=_is_empty)
    """Expected result, as the study file states it; omitted from files if empty."""
    command: str
    commits: Annotated[tuple[str, ...], AcceptsList] = ()
    """Commits of the code that trained the trials; several if vitcli was updated in between."""
    dirty: bool = False
    date: str = ""
    """Date of the last trial, YYYY-MM-DD."""
    hardware: Annotated[tuple[str, ...], AcceptsList] = ()
    torch: Annotated[tuple[str, ...], AcceptsList] = ()
    precision: Annotated[tuple[str, ...], AcceptsList] = ()
    kernels: Annotated[tuple[str, ...], AcceptsList] = ()
    """Kernels that trained the trials: native, torch or both."""
    inexact: Annotated[tuple[str, ...], AcceptsList] = ()
    """Trials that were continued in another environment or with other settings, so their bits
    differ."""
    threads: int = 1
    data: str
    data_hash: str = ""
    num_train: int | None = None
    num_test: int | None = None
    epochs: int
    """Epochs of the baseline."""
    num_comparisons: int
    """Number of variants besides the baseline, shown or not; m in Holm's correction."""
    base_config: dict[str, Any]
    """Fields of the baseline that differ from vitcli's defaults, dotted."""
    reference: Reference | None = None
    task: str = Field(DEFAULT_TASK, exclude_if=DEFAULT_TASK.__eq__)
    """Row of the table of tasks; omitted from files if it is the default."""
    parts: Annotated[tuple[str, ...], AcceptsList, Field(exclude_if=_is_empty)] = ()
    """The crossed variants of a factorial study; ``+`` joins them in the names of rows. Omitted
    from files if empty."""
    equal_compute: bool = Field(False, exclude_if=_is_empty)
    """Whether epochs were set so that no trial takes more operations than the baseline; omitted
    from files if not."""
    same_setting: bool = False
    """Whether model, data and epochs are those of ``reference.experiment``."""
    margin: float | None = Field(None, exclude_if=_is_empty)
    """Declared margin of equivalence, in the unit of the table; omitted from files if none."""
    plan: Plan | None = Field(None, exclude_if=_is_empty)
    """Omitted from files if none is recorded, as in documents from before 1.1.0."""
    other_plan: int | None = Field(None, exclude_if=_is_empty)
    """Number of planned seeds that the study file has now, if it is not that of the plan."""
    origin: Origin | None = Field(None, exclude_if=_is_empty)
    """Where the scores come from; omitted from files if a study has trained the trials."""
    written: dict[str, str] = Field(default_factory=dict, exclude_if=_is_empty)
    """File beside this document -> SHA-256 of what was written, to see what a person changed."""
    rows: Annotated[tuple[VariantResult, ...], AcceptsList]

    @model_validator(mode="before")
    @classmethod
    def _take_last_margin(cls, data: Any) -> Any:
        """Take the margin in force from ``margins``, which documents before 1.1.0 hold."""
        match data:
            case {"margins": [*_, {"points": points}], **others}:
                return {**others, "margin": points}
        return data

    def own_table(self) -> "Table | None":
        """Return the table, if it is not the comparison of the rows."""
        return None

    @property
    def changed(self) -> dict[str, str]:
        """Return what its page says of each variant's changes."""
        return {
            row.variant: "; ".join(
                f"{field}: {json.dumps(value, ensure_ascii=False)}"
                for field, value in row.changes.items()
            )
            for row in self.rows[1:]
        }

    @property
    def planned_seeds(self) -> int:
        """Return the planned number of seeds: those of the table, if no plan is recorded."""
        seeds = {trial.seed for row in self.rows for trial in row.trials}
        return self.plan.seeds if self.plan else max(MIN_PAIRS, len(seeds))

    @property
    def folds(self) -> int | None:
        return self.base_config.get("data.folds")

    @property
    def figures(self) -> tuple[str, ...]:
        if self.origin:
            return ("forest",)
        return ("effects" if self.parts else "forest", "curves")

    @property
    def headline(self) -> Metric:
        return self.origin.metric if self.origin else TASKS[self.task].headline

    @property
    def compares_compute(self) -> bool:
        costs = [row.flops for row in self.rows if row.flops is not None]
        return bool(costs) and max(costs) > 1.01 * min(costs)

    @property
    def compares_models(self) -> bool:
        model_fields = {
            "experiment", "model.family", "model.attention", "model.patch_size",
            "model.patch_embed",
        }  # fmt: skip
        return any(model_fields & row.changes.keys() for row in self.rows)


DOCUMENTS = Registry[type[StudyResult]]("document")
"""Field that only the documents of a kind have -> their class."""
