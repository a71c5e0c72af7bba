"""The effects of a factorial study: scores of its cells, and the table."""

from collections.abc import Mapping

from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.study.combinations import Cell
from vitcli.runner.study.factorial import (
    Effect,
    FTest,
    Scores,
    alone,
    effects,
    higher_interactions,
)
from vitcli.runner.study.notes import plan_note
from vitcli.runner.study.result import StudyResult, VariantResult
from vitcli.runner.study.statistics import scores
from vitcli.runner.tables import Column, Table
from vitcli.runner.text import interval, p_text, quantity, signed


def cell_scores(doc: StudyResult, *, with_diverged: bool = True) -> Scores:
    """Return cell -> seed -> score. A diverged trial counts as chance, if chance is known.

    Without ``with_diverged``, cells with a diverged trial are left out.
    """
    chance = chance_score(doc)
    found: dict[Cell, Mapping[int, float]] = {}
    for row in doc.rows:
        diverged = [trial.seed for trial in row.trials if trial.state == "diverged"]
        if diverged and (chance is None or not with_diverged):
            continue
        found[cell_of(row, doc)] = scores(row, doc.headline) | dict.fromkeys(diverged, chance or 0)
    return found


def cell_of(row: VariantResult, doc: StudyResult) -> Cell:
    return frozenset() if row is doc.rows[0] else frozenset(row.variant.split("+"))


def chance_score(doc: StudyResult) -> float | None:
    """Return the accuracy of guessing in percent; None if the number of classes is not known."""
    classes = doc.base_config.get("model.num_classes")
    if classes is None and doc.data in CATALOGUE:
        classes = len(CATALOGUE[doc.data].info.class_names)
    is_share = doc.headline.unit == "%" and doc.headline.higher_is_better
    return 100 / classes if classes and is_share else None


def has_diverged(doc: StudyResult) -> bool:
    return any(trial.state == "diverged" for row in doc.rows for trial in row.trials)


def effect_name(effect: Effect) -> str:
    return " x ".join(effect.parts)


def effects_of(doc: StudyResult) -> tuple[Effect, ...]:
    """Return the effects of a study; those of the last one are kept for its figure and page."""
    if not (_LATEST and _LATEST[0][0] is doc):
        _LATEST[:] = [(doc, effects(doc.parts, cell_scores(doc), doc.planned_seeds))]
    return _LATEST[0][1]


_LATEST: list[tuple[StudyResult, tuple[Effect, ...]]] = []


def build_effects(doc: StudyResult) -> Table:
    """Return the main effects and the two-way interactions as a table of words."""
    found = effects_of(doc)
    digits = doc.headline.digits
    columns = [
        Column("effect", "l"),
        Column("points [95 % CI]", "r"),
        Column("p (Holm)", "r"),
        Column("verdict", "l"),
    ]
    rows = [[effect_name(e), effect_text(e, digits), p_text(e.p_holm), _verdict(e)] for e in found]
    if has_diverged(doc):
        other = {
            each.parts: effect_text(each, digits)
            for each in effects(doc.parts, cell_scores(doc, with_diverged=False), doc.planned_seeds)
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


def _verdict(effect: Effect) -> str:
    if effect.decided_at is None:
        return "undecided"
    return f"exists (at {quantity(effect.decided_at, 'seed')})"


def f_text(test: FTest) -> str:
    """Return an F test in words, such as ``F(2.9, 3.2) = 3.6, p = 0.150``."""
    freedoms = ", ".join(f"{freedom:.1f}" for freedom in test.freedoms)
    p = p_text(test.p)
    return f"F({freedoms}) = {test.ratio:.1f}, p {p if p.startswith('<') else f'= {p}'}"


def _notes(doc: StudyResult, found: tuple[Effect, ...]) -> list[str]:
    if not found:
        if has_diverged(doc) and chance_score(doc) is None:
            return ["No effect can be estimated: cells with a diverged trial are left out."]
        return ["No effect can be estimated yet: it needs two seeds in the cells."]
    unit = doc.headline.difference_unit
    notes = [
        f"Effect of one part: mean change in {unit} over all cells. Effect of two parts: the"
        " effect of the first where the second is changed, minus its effect where the second is"
        " unchanged.",
        f"Intervals: t with {_freedom(found)} degrees of freedom (Satterthwaite), from the spread"
        " of each cell's own scores around cells and seeds; they hold at every look, and are not"
        " adjusted. They include the chance of the seeds, not that of the test images. p: adjusted"
        f" by Holm's method over {len(found)} effects. It exists: p is at most the level of a look,"
        " which is a whole seed.",
        plan_note(doc),
        *_higher_note(doc),
        *_alone_note(doc),
    ]
    if has_diverged(doc):
        chance = chance_score(doc)
        counted = "left out" if chance is None else f"counted as chance ({chance:g} %)"
        notes.append(
            f"Diverged trials are {counted}; the last column leaves their cells out, and then"
            " assumes that no three parts interact."
        )
    return notes


def _freedom(found: tuple[Effect, ...]) -> str:
    texts = sorted({f"{each.freedom:.1f}" for each in found}, key=float)
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def _higher_note(doc: StudyResult) -> list[str]:
    test = higher_interactions(doc.parts, cell_scores(doc))
    if test is None:
        return []
    return [
        f"Interactions of three or more parts: {f_text(test)}, which allows cells of unequal"
        " variance. If they are not 0, the size of an effect depends on the other parts."
    ]


def _alone_note(doc: StudyResult) -> list[str]:
    count = alone(cell_scores(doc))
    if not count:
        return []
    return [
        f"Left out: {quantity(count, 'trial')} without a second one in its cell or of its seed."
    ]
