"""Study documents made without a training, for tables and figures."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from hypothesis import strategies as st

from vitcli.runner.run.record import RunRecord, State
from vitcli.runner.study.result import Reference, ReferenceRow, StudyResult, VariantResult
from vitcli.runner.study.table import build

HOSTILE = (
    "50%_a&b#c$d~e^f\\g{h}",
    "[x]",
    "*",
    "{",
    "\\end{table}",
    "<script>alert('1')</script>",
    'a"b',
    "a|b",
    "\x1b[31mred\r\nnew line\u2028",
    "Andr\u00e9 \u00d8 \u2212 \u00b1 \u65e5",
    "--- ``x''",
    "&amp;",
    "=1+1",
    "",
)


def make_study(rows: Mapping[str, Sequence[float | str]], /, **changes: Any) -> StudyResult:
    """Return a study from variant -> a test accuracy (a share) or a state for each seed.

    The first variant is the baseline. ``changes`` replace fields of the document.
    """
    fields: dict[str, Any] = {
        "name": "made-up",
        "question": "what does each part contribute?",
        "command": "vitcli ablate made-up",
        "commits": ("c" * 40,),
        "date": "2026-11-21",
        "hardware": ("AMD EPYC, 2 threads",),
        "torch": ("2.15.0",),
        "precision": ("fp32",),
        "data": "shapes",
        "data_hash": "d" * 64,
        "num_train": 10000,
        "num_test": 2000,
        "epochs": 6,
        "num_comparisons": len(rows) - 1,
        "base_config": {"model.depth": 4},
        "rows": tuple(make_row(variant, results) for variant, results in rows.items()),
    }
    return StudyResult(**(fields | changes))


def make_row(variant: str, results: Sequence[float | str], **changes: Any) -> VariantResult:
    trials = tuple(make_trial(seed, result) for seed, result in enumerate(results))
    row = VariantResult(variant=variant, parameters=305002, trials=trials)
    return row.replace(**changes)


def make_trial(seed: int, result: float | str, /, **changes: Any) -> RunRecord:
    fields: dict[str, Any] = {"seed": seed, "state": "finished", "config_hash": "a" * 64}
    if isinstance(result, str):
        fields |= {"state": result, "reason": "it broke"}
        return RunRecord(**(fields | changes))
    numbers = {
        "test_accuracy": float(result),
        "test_loss": 0.5,
        "train_loss": 0.25,
        "train_seconds": 30.5 + seed,
        "images_per_second": 1500.0,
    }
    curve = tuple((epoch, result * epoch / 6) for epoch in range(1, 7))
    return RunRecord(**(fields | {"epochs": 6, "result": numbers, "curve": curve} | changes))


def make_reference(accuracies: Mapping[str, float], **fields: float) -> Reference:
    """Return a source from variant -> percent; ``fields`` (parameters, hours) are in every row."""
    rows = {name: ReferenceRow(accuracy=value, **fields) for name, value in accuracies.items()}
    return Reference(source="A. Author, A Report, section 5", rows=rows)


def make_hostile_study() -> StudyResult:
    text = " ".join(HOSTILE)
    return make_study(
        dict.fromkeys(HOSTILE, (0.5, 0.25)),
        name=text,
        question=text,
        command=text,
        hardware=(text,),
        reference=make_reference(dict.fromkeys(HOSTILE, 50.0)).replace(source=text),
    )


def cells(doc: StudyResult) -> list[dict[str, str]]:
    table = build(doc)
    heads = [column.header for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def cell(doc: StudyResult, variant: str, header: str) -> str:
    return next(row[header] for row in cells(doc) if row["variant"] == variant)


@st.composite
def studies(draw):
    """Draw studies with any names and states; numbers of unfinished trials must not count."""
    names = draw(st.lists(st.text(max_size=8), unique=True, min_size=1, max_size=4))
    num_seeds = draw(st.integers(0, 9))
    score = st.integers(0, 2000).map(lambda right: right / 2000)
    ended = {"finished", "damaged", "saved"}  # the last two are of no trial in a document
    result = score | st.sampled_from(sorted({*get_args(State)} - ended))
    poison = {"result": {"test_accuracy": 0.123456789, "train_seconds": 1e9}, "epochs": 77}
    rows = []
    for name in names:
        values = draw(st.lists(result, min_size=num_seeds, max_size=num_seeds))
        trials = [
            make_trial(seed, value, **(poison if isinstance(value, str) else {}))
            for seed, value in enumerate(values)
        ]
        rows.append(make_row(name, [], trials=tuple(trials)))
    chosen = draw(st.lists(st.sampled_from(names), unique=True))
    reference = make_reference({name: draw(st.integers(0, 1000)) / 10 for name in chosen})
    return make_study(
        {},
        rows=tuple(rows),
        reference=draw(st.sampled_from([None, reference])),
        same_setting=draw(st.booleans()),
        num_comparisons=len(names) - 1 + draw(st.integers(0, 3)),
    )
