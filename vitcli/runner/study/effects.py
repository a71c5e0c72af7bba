"""The effects of a factorial study: scores of its cells, and the table."""

from collections.abc import Mapping

from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.study.cells import interval, p_text, signed
from vitcli.runner.study.combinations import Cell
from vitcli.runner.study.factorial import Effect, effects
from vitcli.runner.study.formats import Column, Table
from vitcli.runner.study.result import StudyResult, VariantResult
from vitcli.runner.study.statistics import scores

Scores = dict[Cell, Mapping[int, float]]


def cell_scores(doc: StudyResult, *, with_diverged: bool = True) -> Scores:
    """Return cell -> seed -> score. A diverged trial counts as chance, if chance is known.

    Without ``with_diverged``, cells with a diverged trial are left out.
    """
    chance = chance_score(doc)
    found: Scores = {}
    for row in doc.rows:
        diverged = [trial.seed for trial in row.trials if trial.state == "diverged"]
        if diverged and (chance is None or not with_diverged):
            continue
        found[cell_of(row, doc)] = scores(row, doc.headline) | dict.fromkeys(diverged, chance or 0)
    return found


def cell_of(row: VariantResult, doc: StudyResult) -> Cell:
    """Return the parts that a row changes."""
    return frozenset() if row is doc.rows[0] else frozenset(row.variant.split("+"))


def chance_score(doc: StudyResult) -> float | None:
    """Return the accuracy of guessing in percent; None if the number of classes is not known."""
    classes = doc.base_config.get("model.num_classes")
    if classes is None and doc.data in CATALOGUE:
        classes = len(CATALOGUE[doc.data].info.class_names)
    return 100 / classes if classes and doc.headline.unit == "%" else None


def has_diverged(doc: StudyResult) -> bool:
    return any(trial.state == "diverged" for row in doc.rows for trial in row.trials)


def effect_name(effect: Effect) -> str:
    return " x ".join(effect.parts)


def build_effects(doc: StudyResult) -> Table:
    """Return the main effects and the two-way interactions as a table of words."""
    found = effects(doc.parts, cell_scores(doc))
    digits = doc.headline.digits
    columns = [Column("effect", "l"), Column("points [95 % CI]", "r"), Column("p (Holm)", "r")]
    rows = [[effect_name(each), effect_text(each, digits), p_text(each.p_holm)] for each in found]
    if has_diverged(doc):
        other = {
            each.parts: effect_text(each, digits)
            for each in effects(doc.parts, cell_scores(doc, with_diverged=False))
        }
        columns.append(Column("without diverged cells", "r"))
        rows = [
            [*row, other.get(each.parts, "not known")]
            for row, each in zip(rows, found, strict=True)
        ]
    return Table(
        name=f"{doc.name}-effects",
        caption=f"{doc.name}: main effects and interactions.",
        columns=tuple(columns),
        rows=tuple(map(tuple, rows)),
        notes=tuple(_notes(doc, found)),
    )


def effect_text(effect: Effect, digits: int) -> str:
    return f"{signed(effect.value, digits)} {interval(effect.low, effect.high, digits)}"


def _notes(doc: StudyResult, found: tuple[Effect, ...]) -> list[str]:
    if not found:
        return ["No effect can be estimated yet: it needs two seeds in the cells."]
    unit = doc.headline.difference_unit
    notes = [
        f"Effect of one part: mean change in {unit} over all cells. Effect of two parts: the"
        " effect of the first where the second is changed, minus its effect where the second is"
        " unchanged.",
        "Intervals: t, from the scores around the means of cells and seeds, which assumes equal"
        " variance in all cells; not adjusted. They include the chance of the seeds, not that of"
        f" the test images. p: adjusted by Holm's method over {len(found)} effects.",
    ]
    if has_diverged(doc):
        chance = chance_score(doc)
        counted = "left out" if chance is None else f"counted as chance ({chance:g} %)"
        notes.append(
            f"Diverged trials are {counted}; the last column leaves their cells out, and then"
            " assumes that no three parts interact."
        )
    return notes
