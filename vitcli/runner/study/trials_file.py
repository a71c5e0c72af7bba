"""The trials of a study as a CSV file, one trial a row, with the score in the last column."""

from collections.abc import Mapping

from vitcli.runner.report.tables import to_csv
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.result import StudyResult, sort_seeds
from vitcli.runner.study.statistics import num_tests

COLUMNS = (
    *("variant", "seed", "state", "planned_seeds", "planned_order", "comparisons", "predictions"),
)


def trials_csv(doc: StudyResult, states: Mapping[str, RunRecord]) -> str:
    """Return the trials of a study as ``vitcli table`` reads them, with predictions of classes."""
    order = sort_seeds({trial.seed for row in doc.rows for trial in row.trials}, doc.plan)
    shown = states.values() if doc.headline.unit == "%" else ()
    files = {(record.config_hash, record.seed): record.stored_predictions for record in shown}
    score = f"test_{doc.headline.name}"
    rows = [
        (
            *(row.variant, trial.seed, trial.state, doc.planned_seeds, order.index(trial.seed)),
            *(num_tests(doc), files.get((trial.config_hash, trial.seed)), trial.number(score)),
        )
        for row in doc.rows
        for trial in row.trials
    ]
    return to_csv([(*COLUMNS, score), *rows]).rstrip("\n")
