"""Results of other programs: tables, exports of W&B and MLflow, mistakes."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.fabricated_study import cell
from vitcli.plugins.table.results_file import Choices, read_text
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.report.tables import csv_text
from vitcli.runner.study.collect import read_results as read_study
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.looks import level
from vitcli.runner.study.page import publish_outside
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.states import trial_states
from vitcli.runner.study.statistics import compare, sampling_error
from vitcli.runner.study.table import trials_csv

PUBLISHED = Path(__file__).parents[2] / "judges" / "published"
"""Tables of others, with the numbers that they have published from them:

* student-1908.csv: hours of sleep gained. Student, The probable error of a mean, Biometrika 6
  (1908), section IX, table of Cushny and Peebles. Its differences in R's help page ``sleep``:
  mean 1.58, 95 % interval 0.7001142 to 2.4598858.
* darwin-1876.csv: heights in eighths of an inch. Darwin, The effects of cross and self
  fertilisation in the vegetable kingdom (1876), chapter VI, table XCVII. Fisher, The design of
  experiments (1935), sections 17 and 21: mean difference 20.93, and 1,726 of the 32,768 ways to
  give the differences their signs have a sum as large.
* demsar-2006.csv: AUC on 14 data sets. Demšar, Statistical comparisons of classifiers over
  multiple data sets, JMLR 7 (2006), table 6, and section 3.1.4: C4.5+m is better on 11 of 14 data
  sets, one of two ties counted.
"""
ROWS = [(variant, seed) for variant in "ab" for seed in range(3)]


def text_of(scores, head="variant,seed,score"):
    lines = [f"{a},{seed},{score}\n" for (a, seed), score in zip(ROWS, scores, strict=True)]
    return "".join([f"{head}\n", *lines])


def document(text, name="r.csv", **choices):
    return read_text(text, str(name), Choices.of(**choices), "vitcli table r.csv")[0]


def published(name, **choices):
    return compare(document(csv_text(PUBLISHED / name), **choices))


def test_the_sleep_of_student_has_the_published_interval():
    _, row = published("student-1908.csv")
    assert row.difference == 1.58
    # The published interval is that of one look. Ours holds at every look, so it is 3 % wider.
    ours = [1.58 + sign * (row.ci_high - 1.58) for sign in (-1, 1)]
    assert [row.ci_low, row.ci_high] == pytest.approx(ours)
    limits = [stats.t.isf(alpha / 2, 9) for alpha in (0.05, level(10, 10))]
    shrunk = (row.ci_high - 1.58) * limits[0] / limits[1]
    assert [1.58 - shrunk, 1.58 + shrunk] == pytest.approx([0.7001142, 2.4598858], abs=5e-8)
    assert row.effect == "better"


def test_the_plants_of_darwin_have_the_p_of_fisher():
    first, row = published("darwin-1876.csv")
    assert round(row.difference, 2) == 20.93
    assert row.p == 1726 / 32768
    assert first.score_mean / 8 == pytest.approx(17.57, abs=0.01)
    assert row.effect == "undecided"


def test_the_classifiers_of_demsar_are_paired_by_data_set():
    rows = {row.variant: row for row in published("demsar-2006.csv")}
    assert 14 * (1 - rows["C4.5+m"].below) == pytest.approx(11, abs=1e-6)
    assert {row.n for row in rows.values()} == {14}


def test_the_flagship_comes_back_from_its_trials_to_the_last_digit(tmp_path):
    study = load_study("ablation-cifar10-full", seeds=(0, 1, 2, 3))
    saved = SavedTrials(SAVED)
    states = trial_states(study, tmp_path / "none", (), saved)
    ours = read_study(study, tmp_path / "none", (), saved, states=states)
    header, *lines = trials_csv(ours, states).splitlines()
    for order in (lines, sorted(lines, key=lambda line: line.rpartition(",")[2])):
        text = "\n".join([header, *order])
        choices = Choices.of(margin=ours.margin, baseline=ours.rows[0].variant)
        theirs, unused, _ = read_text(text, "trials.csv", choices, "")
        assert unused == []
        rows = {row.variant: row for row in compare(theirs)}
        for row in compare(ours):
            kept = {k: v for k, v in vars(row).items() if not k.startswith(("seconds", "source"))}
            del kept["verdict"]
            assert kept == {name: getattr(rows[row.variant], name) for name in kept}
    assert rows[ours.rows[1].variant].effect == "worse"
    chosen = ours.replace(plan=ours.plan.replace(order=(99, *ours.plan.order)))
    cells = trials_csv(chosen, states).splitlines()[1].split(",")
    assert cells[3:5] == ["", ""], "no plan holds for seeds that are a choice"


LABELS = np.arange(40) % 4


@pytest.fixture
def trials(tmp_path):
    """A function that writes predictions and returns the table, in which a file may differ."""

    def write(kind, last=lambda columns: columns, ids=None, score=None):
        lines = ["variant,seed,score,predictions"]
        for i, (variant, seed) in enumerate(ROWS):
            predicted = np.where(np.arange(40) % 9 <= i, (LABELS + 1) % 4, LABELS)
            right = round((predicted == LABELS).mean(), 2)
            columns = {"Label": LABELS, "predicted": predicted}
            if kind in ("npy", "flags"):
                columns = {"correct": predicted == LABELS}
            columns |= {} if ids is None else {"id": ids, "confidence": np.arange(40) / (i + 1)}
            columns = last(columns) if i == 5 else columns
            file = tmp_path / f"{i}.{'csv' if kind == 'flags' else kind}"
            if kind == "npz":
                np.savez(file, **columns)
            elif kind == "npy":
                np.save(file, columns["correct"])
            else:
                cells = zip(*columns.values(), strict=True)
                rows = [",".join(map(str, row)) for row in cells]
                file.write_text("\n".join([",".join(columns), *rows]))
            right = score if score is not None and i == 5 else right
            lines.append(f"{variant},{seed},{right},{file.name}")
        return document("\n".join(lines), tmp_path / "t.csv")

    return write


def turned(columns):
    return {name: column[::-1] for name, column in columns.items()}


@pytest.mark.parametrize("kind", ["npz", "npy", "csv", "TSV", "flags"])
def test_predictions_add_the_chance_of_the_images(trials, tmp_path, kind):
    doc = trials(kind)
    assert compare(doc)[1].with_images
    assert doc.rows[0].trials[0].number("test_score") == 0.875, "the file has it rounded"
    assert (doc.num_test, doc.headline.unit) == (40, "%")
    assert len(doc.rows[1].contrast.by_class) == (0 if kind in ("npy", "flags") else 4)
    for score in ("0.99", "0"):
        with pytest.raises(InputError, match=f"line 7: the score is {score}"):
            trials(kind, score=score)
    (tmp_path / f"5.{'csv' if kind == 'flags' else kind}").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"5\..*"):
        document(f"variant,seed,score,predictions\na,0,0.4,5.{kind}", tmp_path / "t.csv")


def with_predictions(folder, column, scores):
    """Return a table whose files say that 3, 3, 2 and 1 of 4 answers are right."""
    lines = [f"variant,seed,{column},predictions"]
    for i, (wrong, score) in enumerate(zip((1, 1, 2, 3), scores, strict=True)):
        right = np.arange(4) >= wrong
        np.savez(folder / f"{i}.npz", label=[0, 1, 0, 1], prediction=[0, 1, 0, 1] ^ ~right)
        np.save(folder / f"{i}.npy", right)
        lines.append(f"{'ab'[i // 2]},{i % 2},{score},{i}.npz")
    return "\n".join(lines)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_predictions_give_the_share_of_right_answers_and_no_error(tmp_path, suffix):
    for column in ("accuracy", "score"):
        text = with_predictions(tmp_path, column, (0.75, 0.75, 0.5, 0.25)).replace("npz", suffix)
        assert document(text, tmp_path / "t.csv").rows[1].contrast
    text = with_predictions(tmp_path, "error", (0.25, 0.25, 0.5, 0.75)).replace("npz", suffix)
    with pytest.raises(InputError, match=r"gives 0.75; .* leave out the column predictions"):
        document(text, tmp_path / "t.csv")


def test_a_share_that_is_not_in_percent_has_no_sampling_error_in_points(tmp_path):
    text = with_predictions(tmp_path, "accuracy", (0.75, 0.75, 0.5, 0.25))
    units = ("fraction", "none")
    errors = [sampling_error(document(text, tmp_path / "t.csv", unit=unit)) for unit in units]
    assert errors == [pytest.approx(196 * (0.75 * 0.25 / 4) ** 0.5, rel=1e-4), None]


def test_errors_of_images_are_in_their_own_unit(tmp_path):
    np.save(tmp_path / "x.npy", [0.25, 0.75])
    doc = document("variant,seed,mse,predictions\na,0,0.5,x.npy", tmp_path / "t.csv")
    assert (doc.headline.unit, doc.rows[0].trials[0].number("test_mse")) == ("", 0.5)


def test_predictions_that_cannot_be_used_are_named(trials):
    with pytest.raises(InputError, match=r"'id' .*\.astype\(str\)"):
        trials("npz", ids=np.array(["x.png"] * 40, object))
    with pytest.raises(InputError, match="only y_true, y_pred"):
        trials("npz", lambda columns: {"y_true": LABELS, "y_pred": LABELS})


@pytest.mark.parametrize("ids", [np.arange(40)[::-1], [f"{i % 7}/{i}.png" for i in range(40)]])
@pytest.mark.parametrize("kind", ["csv", "flags"])
def test_images_are_named_by_a_column_and_another_order_is_refused(trials, kind, ids):
    assert trials(kind, ids=ids).rows[1].contrast
    with pytest.raises(InputError, match="another order"):
        trials(kind, turned, ids=ids)


@pytest.mark.parametrize(
    "last",
    [
        turned,
        lambda columns: {name: column[:20] for name, column in columns.items()},
        lambda columns: columns | {"id": np.arange(40)},
    ],
)
@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_other_images_than_those_of_the_first_file_are_refused(trials, kind, last):
    with pytest.raises(InputError, match="'id'"):
        trials(kind, last)


def test_missing_and_diverged_trials_are_those_of_a_study():
    text = "variant,seed,score,state\na,0,1,ok\na,1,2,ok\nb,0,nan,diverged\nb,2,3,finished\n"
    text += "b,1,,Crashed\nb,3,,PRUNED\n"
    doc = document(text)
    assert [t.state for t in doc.rows[0].trials] == ["finished", "finished", "missing", "missing"]
    states = ["diverged", "failed", "finished", "interrupted"]
    assert [t.state for t in doc.rows[1].trials] == states
    assert cell(doc, "b", "difference [95 % CI]") == "no pair"
    assert compare(doc)[1].effect == "diverged"


@pytest.mark.parametrize(
    ("column", "scores", "choices", "stored", "shown"),
    [
        ("accuracy", [0.9] * 6, {}, 0.9, "90.00"),
        ("accuracy", [90, 0.9] * 3, {"unit": "percent"}, 0.009, "60.30"),  # one rule for all rows
        ("accuracy", [0.905] * 6, {"unit": "none"}, 0.905, "0.9050"),
        ("nll", [0.5, 82.5] * 3, {}, 82.5, "27.83"),  # a loss is no share
        ("accuracy", [*[0.3] * 5, 0.30000000000000004], {}, 0.3, "30.00"),  # a rounding error
        ("wer_%", [0.5] * 6, {"lower_is_better": True}, 0.005, "0.50"),
        ("acc (%)", [0.5, 1.5] * 3, {}, 0.015, "0.83"),
        ("acc (%)", ["0.5 %"] * 6, {}, 0.005, "0.50"),
        ("acc_pct", [0.5] * 6, {"unit": "percent"}, 0.005, "0.50"),
        ("err_pct", [0.5] * 6, {"lower_is_better": True}, 0.005, "0.50"),
        ("wer", [0.5] * 6, {"lower_is_better": True}, 0.5, "50.00"),
        ("score (fraction)", [0.5] * 6, {"lower_is_better": False}, 0.5, "50.00"),
        ("Test Error [%]", [0.5] * 6, {}, 0.005, "0.50"),
        ('"accuracy, %"', [2.5] * 6, {}, 0.025, "2.50"),
        ("ejection_fraction_mae", [0.5] * 6, {"lower_is_better": True}, 0.5, "0.50"),
    ],
)
def test_the_unit_holds_for_the_whole_file(column, scores, choices, stored, shown):
    doc = document(text_of(scores, f"variant,seed,{column}"), **choices)
    assert doc.rows[0].trials[1].number(f"test_{doc.headline.name}") == stored
    assert cell(doc, "a", doc.headline.title).split()[0] == shown
    assert doc.headline.title.count("%") <= 1


LOWER = "loss eval_loss val/loss Val~Loss metrics.loss err error_rate Top-1~error nll mse RMSE"
LOWER += " dice_loss nll_loss min_val_loss"
HIGHER = "accuracy val/acc acc@1 top-1-acc best_acc Accuracy~(%) f1 auroc mAP mIoU R2 reward score"
HIGHER += " accuracy_percent acc_pct acc_fraction AUC-ROC pr_auc max_val_acc macro~avg~f1-score"
ASKED = "x accuracy_drop neg_accuracy 1-acc -loss test/1~-~accuracy inverse_mse rank time seed_loss"
ASKED += " reward~(s) accuracy~(loss) RMSE~(negated) RMSE~(cm) mae~[\u00b0C] max"


@pytest.mark.parametrize(("names", "expected"), [(LOWER, False), (HIGHER, True), (ASKED, None)])
def test_the_direction_is_that_of_the_whole_name_or_chosen(names, expected):
    for name in (word.replace("~", " ") for word in names.split()):
        text = text_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], f"variant,seed,{name}")
        for lower in (False, True):
            chosen = document(text, lower_is_better=lower, unit="none")
            assert chosen.headline.higher_is_better != lower
        if expected is None:
            with pytest.raises(ConfigError, match="--higher-is-better or --lower-is-better"):
                document(text)
        else:
            assert document(text, unit="none").headline.higher_is_better == expected, name


@pytest.mark.parametrize("column", ["metric", "Metric_name", ".metric", "config.metric"])
def test_what_a_score_measures_may_stand_in_a_column(column):
    def read(name, score="score", names=None, **choices):
        text = with_column(column, names or [name] * 6).replace("seed,score", f"seed,{score}")
        return document(text, score=score, **choices).headline

    assert (read("val_loss").name, read("val_loss").higher_is_better) == ("loss", False)
    assert read("bleu").higher_is_better
    assert read("loss", names=["loss"] * 5 + [""]).name == "loss"
    with pytest.raises(InputError, match="of several metrics"):
        read("loss", names=["loss"] * 5 + ["accuracy"])
    assert read("val_loss", "reward").name == "reward", "the name of the column itself is known"
    with pytest.raises(ConfigError, match="a lower score better"):
        read("euclidean")
    chosen = read("euclidean", lower_is_better=True)
    assert (chosen.name, chosen.higher_is_better) == ("score", False)


@pytest.mark.parametrize("column", ["rmse", "metrics.rmse", "mse", "nll", "val/loss", "brier"])
def test_a_negative_loss_may_be_a_negated_one_so_the_direction_is_asked(column):
    text = text_of([-0.1, -0.2, 0.3, -0.4, -0.5, 0.6], f"variant,seed,{column}")
    with pytest.raises(ConfigError, match=r"negated; .*--higher-is-better or --lower-is-better"):
        document(text)
    for lower in (False, True):
        assert document(text, lower_is_better=lower).headline.higher_is_better != lower


PLAIN = "variant,seed,accuracy\na,0,0.81\na,1,0.83\nb,0,0.85\nb,1,0.88\n"
WANDB = (
    "Name,State,Group,seed,val_acc,loss\nrun,finished,a,0,0.81,1\nrun,finished,a,1,0.83,1\n"
    "run,finished,b,0,0.85,1\nrun,finished,b,1,0.88,1\n"
)
MLFLOW = (
    "run_id,status,metrics.accuracy,params.seed,params.variant\nx,FINISHED,0.81,0,a\n"
    "x,FINISHED,0.83,1,a\nx,FINISHED,0.85,0,b\nx,FINISHED,0.88,1,b\n"
)
WITH_INDEX = PLAIN.replace("a,", "7,a,").replace("b,", "8,b,")
WITH_STATE = PLAIN.replace("\n", ",finished\n").replace("y,finished", "y,state")
NOTE = "note (a, b, c, d, e)"
SKLEARN = "variant,level_1,fit_time,score_time,test_score\na,0,1,1,1\na,1,1,1,1\n"
ORDERED = "variant,seed,score,planned_order\na,0,1,{}\na,1,1,{}\nb,0,1,{}\nb,1,1,{}\n"
BOTH = {"variant": "variant", "score": "accuracy"}


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        (f"sep=;\n{PLAIN.replace(',', ';').replace('.', ',')}", {}),
        (f"# made, by a script\n\n{PLAIN}", {}),
        (f"SEP=;\n{PLAIN.replace(',', ';')}", {}),
        (WITH_STATE.replace(",", "\t").replace("state", NOTE), {"score": "accuracy"}),
        (PLAIN.replace("0.8", "8").replace("\n", " %\n").replace("y %", "y"), {}),
        (PLAIN.replace("0.8", "8").replace("\n", "\u202f%\n").replace("y\u202f%", "y"), {}),
        (PLAIN.replace("\n", "\r\n , ,\r\n"), {}),
        (WITH_INDEX.replace("variant", "Unnamed: 0,variant"), {}),
        (PLAIN.replace("variant", "Variant").replace("accuracy", "val/acc"), {}),
        (WITH_INDEX.replace("variant", "config.variant,variant"), BOTH),
        (WITH_STATE.replace("finished", "Done"), {"baseline": "a"}),
        (WANDB, {"score": "val_acc", "variant": "Group"}),
        (MLFLOW, {"score": "accuracy"}),
    ],
)
def test_a_table_as_another_program_writes_it_gives_the_same_numbers(text, choices):
    tables = (
        {
            row.variant: [(trial.seed, trial.number("test_accuracy")) for trial in row.trials]
            for row in doc.rows
        }
        for doc in (document(text, **choices), document(PLAIN))
    )
    assert next(tables) == next(tables)


@pytest.mark.parametrize(
    ("text", "choices", "message"),
    [
        (SKLEARN, {"seed": "level_1", "score": "test_score"}, "call the column level_1 fold"),
        ("varient,seed,score\na,0,1\n", {}, "--variant .*'varient'"),
        ("variant,score\na,1\n", {}, "--pairs"),
        ("seed,a,b\n0,0.8,0.9\n", {}, "one trial a row"),
        ("Group,seed,score\na,0,1\n", {}, "0 columns 'variant'.* --variant"),
        ("variant,seed,score\na,0,1\na,1,2\na,00,1\n", {}, "line 2 and line 4"),
        ("variant,seed,score\na,0,1e999\n", {}, "line 2: .*1e999"),
        (f"variant,seed,score\na,0,{'1' * 200_000}\n", {}, "line 2: not a row"),
        ('variant,seed,score\na,0,"810,000"\n', {}, "line 2: .*decimal point"),
        ("variant;seed;acc\na;0;81,2\na;1;12. Mai\n", {}, "line 3: .*'12. Mai' is no number"),
        ("variant,seed,accuracy\na,0,0.8\nb,0,80\n", {}, "line 2: .*--unit percent"),
        (text_of([0.81, 0.83, 1, 81.5, 79, 84], "variant,seed,score"), {}, "percent.*--unit none"),
        (text_of([0.11, 0.12, 0.1, 9.9, 11, 10], "variant,seed,mape"), {}, "line 2: .*--unit none"),
        (
            text_of([0.2, 0.3, 0.2, 3, 4, 3], "variant,seed,fpr"),
            {"lower_is_better": True},
            "line 3: .* 0.3 .* such as 3,",
        ),
        (
            text_of([0.0049, 0.005, 0.0048, 0.37, 0.36, 0.41], "variant,seed,test error"),
            {},
            "line 3: .* 0.005 .* such as 0.36,.*--unit fraction",
        ),
        ("variant,seed,score,state\na,0,1,finishd\n", {}, "line 2: state 'finishd'.*'finished'"),
        ("variant,seed,score\n,0,1\n", {}, "line 2: .*'variant' is empty"),
        ("variant,run,score\na,1,1\na,,2\n", {"seed": "run"}, "line 3: .*'run' is empty"),
        ("variant,seed,score,Status\na,0,1,ok\na,1,2,\n", {}, "line 3: .*'Status' is empty; write"),
        ("variant,seed,score,State,status\na,0,1,ok,ok\n", {}, "one of 'State', 'status'"),
        ('{\n  "rows": "x"\n}', {}, "not JSON"),
        ("", {}, "no text"),
        (text_of([0.4, 0.5, 0.6, 0.7, 0.8, 1], "variant,seed,accuracy (%)"), {}, "--unit"),
        (text_of([0.4, 0.5, 0.6, 0.7, 0.8, 1], "variant,seed,f1_pct"), {}, "--unit"),
        (text_of([0.002, 0.00201] * 3, "variant,seed,loss"), {}, "smaller unit"),
        ("variant,seed,score\n", {}, "only a header"),
        ("variant,seed,score\na,0,1\na,1,2\na,mean (8),1.5\n", {}, "no whole number"),
        ("variant,epoch,score\na,0,1\na,1,2\n", {"seed": "epoch"}, "no independent training"),
        ("variant,seed,score,predictions\na,0,1,no.npz\n", {}, "no.npz"),
        (f"variant,seed,score,predictions\na,0,1,{'x' * 300}\n", {}, "line 2: .*name too long"),
        ("variant,seed,score,planned_seeds\na,0,1,2\n", {}, "line 2: planned_seeds '2'"),
        ("variant,seed,score,planned_seeds\na,0,1,8\na,1,1,9\n", {}, "8 and 9"),
        (ORDERED.format(0, 1, 1, 0), {}, "each seed one place of its own"),
        (ORDERED.format(0, 0, 0, 0), {}, "each seed one place of its own"),
        (ORDERED.format("", 3, 2, 2), {}, "each seed one place of its own"),
        (ORDERED.format(1, 0, 1, 0), {}, "planned_order needs .* planned_seeds"),
        ("variant,seed,score\na,0,1\n", {"baseline": "c"}, "choose one of a"),
        ("variant,seed,score\na,0,1\n", {"margin": 0}, "margin 0"),
    ],
    ids=lambda value: value[-30:] if isinstance(value, str) else "",
)
def test_damage_and_contradictions_are_refused(text, choices, message):
    with pytest.raises(UserError, match=message) as error:
        document(text, **choices)
    assert "\n" not in str(error.value)


def with_column(name, cells):
    head, *lines = text_of([1.0, 2.0, 4.0, 3.0, 4.5, 6.1]).splitlines()
    cells = [*cells] * (len(lines) // len(cells))
    rows = [f"{line},{text}" for line, text in zip(lines, cells, strict=True)]
    return "\n".join([f"{head},{name}", *rows])


@pytest.mark.parametrize("cells", [("5.0", "5"), ("5", ""), ("5.0", "")])
def test_a_number_of_the_study_may_be_written_in_some_rows_or_as_pandas_does(cells):
    assert document(with_column("planned_seeds", cells)).plan.seeds == 5
    assert document(with_column("comparisons", cells)).num_comparisons == 5
    assert document(with_column("planned_seeds", cells), plan=np.int64(5)).plan.seeds == 5


def test_a_name_has_two_forms_in_unicode_and_seeds_that_are_names_have_their_own_order():
    doc = document("variant,seed,score\ncaf\u00e9,0,1\nb,0,1\ncafe\u0301,1,2\nb,1,2\n")
    assert [row.variant for row in doc.rows] == ["caf\u00e9", "b"]
    names = enumerate(("wine", "iris", "set10", "set9"))
    doc = document("\n".join(["variant,seed,score", *(f"a,{seed},{i}" for i, seed in names)]))
    assert [trial.number("test_score") for trial in doc.rows[0].trials] == [1, 3, 2, 0]


def test_a_byte_order_mark_is_read_and_a_workbook_is_no_csv_file(tmp_path):
    (tmp_path / "r.csv").write_text("\ufeff" + text_of(range(6)))
    assert len(document(csv_text(tmp_path / "r.csv")).rows) == 2
    (tmp_path / "r.csv").write_bytes(b"PK\3\4\xff\0")
    with pytest.raises(InputError, match="export it as CSV"):
        csv_text(tmp_path / "r.csv")


def test_the_folder_of_a_study_takes_no_other_results(tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ConfigError):
        publish_outside(document(text_of([1, 2, 4, 2, 3, 6])), tmp_path)


@pytest.mark.parametrize(
    ("scores", "delimiter"),
    [
        (("987", "1,234", "1,100", "1,187"), "\t"),
        (("987", "1.234", "1.100", "1.187"), ";"),
        (("1,788", "1,802", "1,694", "1,701"), ";"),
        (("8.034", "8.122", "7.996", "8.001"), ";"),
    ],
)
def test_a_sign_between_thousands_is_not_taken_for_a_decimal_one(scores, delimiter):
    rows = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    lines = [delimiter.join([v, str(s), x]) for (v, s), x in zip(rows, scores, strict=True)]
    text = "\n".join([delimiter.join(["variant", "seed", "reward"]), *lines])
    with pytest.raises(InputError, match="thousands"):
        document(text)
    assert document(text, unit="none").rows[0].trials[1].number("test_reward") < 9
    if "." in text:
        document(text.replace(delimiter, ","))


FOLDS = "kfold OuterFold foldId FoldNo foldnum cvIdx cvidx nestedCV LOSO cross_validation"
FOLDS += " held_out heldout heldOutSubject left_out group_out SiteOut Partition"
FOLDS += " test_subject testSite val_domain outer outer_loop LOPO lodoCV test_env target_domain"


@pytest.mark.parametrize(
    ("column", "seed", "message"),
    [
        *((name, "{}", None) for name in FOLDS.split()),
        ("fold", "{}.0", None),
        ("run", "fold {} of 5", None),
        ("cv", "5-fold/{}", None),
        ("run", "{}/5 fold", None),
        ("run", "fold_{}", None),
        ("run", "xval{}", None),
        ("site", "cv{}", None),
        ("Resample", "Fold0{}", None),
        ("fold", "rep{0}_fold{0}", "repeated"),
        *(
            (name, "{}", "independent")
            for name in ("holdout", "hold_out", "bootstrap", "trainstep", "mccv")
        ),
        ("variable", "split{}_test_score", "independent"),
    ],
)
def test_folds_and_steps_are_known_by_any_name(column, seed, message):
    scores = {"a": (2, 3, 5), "b": (1, 3, 2)}
    lines = [f"{v},{seed.format(i)},{x}" for v, xs in scores.items() for i, x in enumerate(xs)]
    text = "\n".join([f"variant,{column},reward", *lines])
    if message:
        with pytest.raises(ConfigError, match=message):
            document(text, seed=column)
    else:
        assert document(text, seed=column).base_config == {"data.folds": 3}
        assert document(text, seed=column, plan=5).folds == 5, "two of them are not there yet"
        rows = "\n".join([f"variant,{column},reward,predictions", *(f"{x},no.npz" for x in lines)])
        assert document(rows, seed=column).rows[0].images is None, "folds have other images"


@pytest.mark.parametrize(
    ("seeds", "folds", "advice"),
    [
        ("012", "012", "--pairs 'outer fold'"),
        ("000", "012", "--pairs 'outer fold'"),
        ("678", ("5.0", "4.0", "1.0"), "--pairs 'outer fold'"),
        ("678", ("site A", "site B", "site C"), "--pairs 'outer fold'"),
        ("012", "001", "one repetition"),
        ("001", "010", "one repetition"),
        ("678", ("r0f1", "r1f0", "r0f0"), "one repetition"),
        ("012", ("0", "1", ""), "one repetition"),
        ("012", "000", None),
        ("012", ("0.81", "0.83", "0.9"), None),
    ],
)
def test_folds_beside_a_seed_are_refused_and_the_advice_works(seeds, folds, advice):
    scores = {"a": (2, 3, 5), "b": (1, 3, 2)}
    lines = ["variant,seed,outer fold,score"]
    for variant, row in scores.items():
        cells = zip(seeds, folds, row, strict=True)
        lines += [f"{variant},{seed},{fold},{score}" for seed, fold, score in cells]
    text = "\n".join(lines)
    if advice is None:
        assert document(text, lower_is_better=True).base_config == {}
        return
    with pytest.raises(UserError, match=advice):
        document(text)
    if "--pairs" in advice:
        assert document(text, seed="outer fold").base_config == {"data.folds": 3}


def test_a_column_whose_cells_are_folds_is_refused_beside_a_seed():
    cells = [f"fold {i} of 3" for i in range(3)]
    with pytest.raises(UserError, match="--pairs note"):
        document(with_column("note", cells))
    names = [f"ViT-{variant}_fold{i}" for variant in (16, 32) for i in range(3)]
    with pytest.raises(UserError, match="write the number of each fold into a column fold"):
        document(with_column("Name", names))
    for name in ("drop_out", "slurm_partition", "best_epoch", "folder"):
        assert document(with_column(name, "123")).base_config == {}


@pytest.mark.parametrize(
    "name", ["split", "split_id", "trainSplit", "bootstrap", "hold_out", "mccv", "test_subject"]
)
def test_images_that_each_row_has_alone_are_refused_beside_a_seed(name):
    with pytest.raises(InputError, match=name):
        document(with_column(name, "123"))
    for cells in ("111", ("0.81", "0.82", "0.83"), ("81.5%", "82 %", "83%")):
        assert document(with_column(name, cells)).base_config == {}


def test_what_pairs_trials_is_said_unless_it_is_a_seed():
    for column in ("run", "patient"):
        text = text_of(range(6), f"variant,{column},reward")
        reading = document(text, seed=column).origin.reading
        assert f"Each {column} counts as an independent training; call the column fold" in reading
    for column in ("seed", "random_state"):
        doc = document(SKLEARN.replace("level_1", column), seed=column, score="test_score")
        assert not doc.folds, "each row is the mean of a cross-validation of its own"
        assert "independent" not in doc.origin.reading


NAMES = ("OpenFold", "Split-CIFAR", "cvlab1", "ImageNet", "CV")
ONE_FOLD = [f"seed{i}_fold0" for i in range(5)]


@pytest.mark.parametrize(
    ("column", "names"),
    [
        *((name, NAMES) for name in ("folder", "openfolder", "site", "cvpr", "router")),
        *((name, NAMES) for name in ("scaffoldId", "Manifold", "unfold")),
        ("seed", ONE_FOLD),
    ],
)
def test_names_that_only_contain_such_a_word_are_no_folds(column, names):
    lines = [f"{variant},{name},{i % 3}" for variant in "ab" for i, name in enumerate(names)]
    text = "\n".join([f"variant,{column},reward", *lines])
    assert document(text, seed=column).base_config == {}


@pytest.mark.parametrize("first", [-9, 10**30])
def test_seeds_may_be_any_whole_numbers(first):
    lines = [f"{variant},{first + i},{i % 3}" for variant in "ab" for i in range(5)]
    doc = document("\n".join(["variant,seed,reward", *lines]))
    assert [trial.seed for trial in doc.rows[0].trials] == [*range(first, first + 5)]
    assert [trial.state for trial in doc.rows[0].trials] == ["finished"] * 5
