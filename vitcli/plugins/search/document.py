"""The document of a search: that of a study whose rows are trials, the best score first."""

from typing import Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from vitcli.core.spec import Spec
from vitcli.runner.experiment.yaml_text import format_value
from vitcli.runner.report.tables import Table, make_table
from vitcli.runner.study.notes import environment_note, training_note
from vitcli.runner.study.result import FigureRow, StudyResult, VariantResult
from vitcli.runner.study.table import caption_of, count_text, mflop_text
from vitcli.runner.text import quantity, rough_duration

PRUNED = "pruned"
"""The beginning of the reason of a trial that a search stopped early."""
PARETO = FigureRow(
    "Validation score and number of parameters of each trial. No smaller trial beats one of the"
    " front.",
    "vitcli.plugins.search.pareto:pareto",
)


def validation_score(row: VariantResult) -> float | None:
    """Return the last score of the one trial of a row; None if it is not finished."""
    trial = row.trials[0]
    return trial.curve[-1][1] if trial.state == "finished" and trial.curve else None


class Searched(Spec):
    """What a document of a search says of it; each row is a trial, the best score first."""

    sampler: str
    seed: int
    pruning: str
    num_trials: int
    space: dict[str, str]
    skipped: dict[str, int] = Field(default_factory=dict)
    """Rule -> number of points that broke it, so that they were not trained."""
    states: dict[str, int]
    """State -> number of trials; ``pruned`` is one of them."""


class SearchResult(StudyResult):
    compares: ClassVar[bool] = False
    baseline: ClassVar[str] = "default"
    changes: ClassVar[str] = "Fields that the search varies"

    searched: Searched

    @model_serializer(mode="wrap")
    def _put_rows_last(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return fields | {"rows": fields.pop("rows")}

    @property
    def changed(self) -> dict[str, str]:
        return self.searched.space

    @property
    def figures(self) -> tuple[str, ...]:
        return ("pareto",)

    @property
    def front(self) -> list[VariantResult]:
        """Return the rows that no smaller model beats, the best score first."""
        front: list[VariantResult] = []
        for row in self.rows:
            size = row.parameters or 0
            is_smaller = not front or size < (front[-1].parameters or 0)
            if validation_score(row) is not None and is_smaller:
                front.append(row)
        return front

    def own_table(self) -> Table:
        return build_table(self)


def build_table(doc: SearchResult) -> Table:
    """Return the table of a search: a trial a row, the best score first, without a comparison."""
    scale, digits = doc.headline.scale, doc.headline.digits
    fields, front = tuple(doc.searched.space), {row.variant for row in doc.front}
    ends = [field.rpartition(".")[2] for field in fields]
    names = [e if ends.count(e) == 1 else f for e, f in zip(ends, fields, strict=True)]
    has_states = {*doc.searched.states} != {"finished"}
    rows = [
        (
            row.variant,
            "" if score is None else f"{scale * score:.{digits}f}",
            count_text(row.parameters),
            mflop_text(row),
            "*" if row.variant in front else "",
            *(_value(row.changes.get(field)) for field in fields),
            *(PRUNED if t.reason.startswith(PRUNED) else t.state for t in row.trials if has_states),
            rough_duration(row.trials[0].train_seconds),
        )
        for row, score in zip(doc.rows, map(validation_score, doc.rows), strict=True)
    ]
    header = ["trial", f"validation {doc.headline.title}", "parameters", "MFLOP", "front", *names]
    header += ["state"] * has_states + ["training time"]
    numeric, sentences = (1, 2, 3, len(header) - 1), tuple(_notes(doc))
    return make_table(
        header, rows, numeric, name=doc.name, caption=caption_of(doc), notes=sentences
    )


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)


def _notes(doc: SearchResult) -> list[str]:
    searched = doc.searched
    states = ", ".join(f"{count} {state}" for state, count in searched.states.items())
    total = sum(searched.states.values())
    skipped = "; ".join(f"{rule} ({count:,})" for rule, count in searched.skipped.items())
    every = [
        f"{quantity(total, 'trial')} of {searched.num_trials} ({states}); sampler"
        f" {searched.sampler}, seed {searched.seed}; pruning {searched.pruning}.",
        f"Score: {doc.headline.label} on the validation split after the last epoch, one training"
        " each. The search reads no test image.",
        "The best of many scores is too high: chance is part of why it was chosen.",
        "Front: * has the best score of all models that are not larger (Pareto front).",
        f"Points that were not trained, and do not count: {skipped}." if skipped else "",
        training_note(doc),
        environment_note(doc),
        f"Command: {doc.command}",
    ]
    return [note for note in every if note]
