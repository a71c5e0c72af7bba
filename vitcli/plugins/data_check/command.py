"""`vitcli data check`: the problems of one's own pictures."""

import itertools
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from vitcli.cli import complete
from vitcli.cli.chosen import adopt_fields
from vitcli.cli.console import emit_report, say
from vitcli.cli.data import class_counts, size_of
from vitcli.cli.options import Format, Sets, SkipBad, with_code, with_example
from vitcli.runner.errors import CheckError, ConfigError
from vitcli.runner.report.report import SHARE, DataTable, Fact, Field, Report, facts_of, hidden
from vitcli.runner.text import printable, quantity

if TYPE_CHECKING:
    from vitcli.plugins.data_check.check import FolderCheck

NUM_LISTED = 20
SEEN = "Held-out pictures that the run was trained on"


@with_example("vitcli data check pictures --page check.html --leave-out copies.csv")
@with_code
def check(
    folder: Annotated[
        str,
        Argument(
            metavar="FOLDER",
            help="Folder of pictures, with a folder for each class, or another form of"
            " 'vitcli data ls', such as csv:labels.csv.",
        ),
    ],
    page: Annotated[
        Path | None,
        Option(
            metavar="FILE.html",
            help="Write a page with the pictures that are the same or look alike.",
        ),
    ] = None,
    leave_out: Annotated[
        Path | None,
        Option(
            metavar="FILE.csv",
            help="Write the copies into a file for data.corrections, which leaves them out.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        Option(
            metavar="RUN",
            help="Name which pictures this run was trained on, and check a training from it.",
            autocompletion=complete.run,
        ),
    ] = None,
    changes: Sets = None,
    skip_bad: SkipBad = False,
    form: Format = "text",
) -> None:
    """Look for problems of your own pictures before a training.

    It finds damaged files, pictures in two classes, classes without a test picture, and test
    pictures that are copies of training pictures: equal, turned, mirrored, resized, cut or saved
    again. With --against, also test pictures that the run was trained on. If there are some, the
    exit code is 6.
    """
    from vitcli.core.spec.data import DEPTH_FIELDS, LABEL_FIELDS
    from vitcli.plugins.data_check import check as checked
    from vitcli.runner import files
    from vitcli.runner.data.find import check_name, own_path
    from vitcli.runner.data.picture_reader import list_pictures, read_as
    from vitcli.runner.experiment.config import load_experiment, parse_sets
    from vitcli.runner.run.folder import find_run

    for path in filter(None, (page, leave_out)):
        files.require_folder(path)
    checked.refuse_other_files(page, leave_out)
    if not Path(folder).is_dir() and (":" in folder or Path(folder).is_file()):
        check_name(folder, takes_code=True)
    name = folder if own_path(folder) else f"imagefolder:{folder}"
    kept = {} if against is None else checked.sides_of(against)
    fields, taken = parse_sets(changes), (*DEPTH_FIELDS, *LABEL_FIELDS)
    if strange := sorted(fields.keys() - {f"data.{field}" for field in taken}):
        raise ConfigError(f"-s {strange[0]}: data check takes data.{', data.'.join(taken)}")
    given = {"data.name": name, "data.skip_bad": skip_bad}
    spec = load_experiment("finetune", given | fields).spec.data
    if against is not None:
        run = find_run(against)
        fields = adopt_fields(taken, spec, run, fields) | fields
        spec = load_experiment("finetune", given | fields).spec.data
        theirs = run.spec()
        spec = spec.replace(resize=theirs.model.img_size, fit=theirs.data.fit)
    found = checked.check_folder(read_as(spec, list_pictures(name)), say, kept)
    if page is not None:
        with files.errors_name(page):
            files.commit(page, checked.page(found).encode())
    if leave_out is not None and found.left_out:
        with files.errors_name(leave_out):
            files.commit(leave_out, checked.corrections(found, leave_out).encode())
    elif leave_out is not None:
        why = "there is nothing to leave out"
        if found.has_copies:
            why = (
                "without the copies, a class or a split would have no pictures; add other ones, or"
                " move a folder of copies away"
            )
        say(f"{leave_out} is not written: {why}")
    following = command_after(folder, name, found, leave_out, against, fields)
    written = [path for path in (page, leave_out if found.left_out else None) if path]
    report = check_report(found, against)
    emit_report(replace(report, files=written, next=[following]), form)
    if found.num_problems:
        hint = "" if page else "; --page check.html shows the pictures"
        raise CheckError(f"{folder}: {quantity(found.num_problems, 'problem')}{hint}")


def command_after(
    folder: str,
    name: str,
    found: "FolderCheck",
    leave_out: Path | None,
    against: str | None,
    fields: Mapping[str, Any],
) -> str:
    from vitcli.plugins.data_check.check import experiment_for
    from vitcli.runner.data.extras import column_of
    from vitcli.runner.experiment.config import typed_changes, typed_command

    changes = {**fields, **found.fields}
    more = ["--against", against] if against else []
    more += ["--skip-bad"] if found.folder.data.skip_bad else []
    if found.fields or (found.left_out and leave_out is None):
        numbered = (f"copies-{number}.csv" for number in itertools.count(2))
        files_of_copies = itertools.chain(["copies.csv"], numbered)
        new = next(file for file in files_of_copies if not Path(file).exists())
        left = [] if found.fields else ["--leave-out", new]
        words = typed_command("data check", folder, *left)
        return shlex.join([*words, *typed_changes(changes), *more])
    column = column_of(found.folder.extra)
    changes |= {"task.name": column.task} if column else {}
    changes |= {"data.corrections": str(leave_out)} if found.left_out else {}
    preset = experiment_for(found.folder)
    words = [*typed_command("train", preset, "--data", name), *typed_changes(changes)]
    words += ["--init", against] if against else []
    words += ["--skip-bad"] if found.unreadable else []
    words += ["--allow-leaks"] if found.leaks else []
    return shlex.join(words)


def tables_of_run(found: "FolderCheck") -> list[DataTable]:
    counts = Counter((now, then or "new") for _, now, then in found.sides)
    kinds = ("train", "val", "test")
    rows = [{"now": now} | {then: counts[now, then] for then in (*kinds, "new")} for now in kinds]
    of_run = [Field(then, f"{then} of the run") for then in kinds]
    pictures = [{"picture": name, "now": now, "then": then} for name, now, then in found.sides]
    return [
        DataTable("against", ["now", *of_run, "new"], rows),
        DataTable("pictures", ["picture", "now", "then"], pictures, is_shown=False),
    ]


def check_report(found: "FolderCheck", against: str | None) -> Report:
    from vitcli.plugins.data_check.check import GROUPS, experiment_for
    from vitcli.runner.data.picture_reader import kept_area, notes_on_fifth, parts_of

    read_at = f"{size_of(found.img_size)} in {experiment_for(found.folder)}"
    kept = kept_area(found.sizes, found.img_size) if found.folder.data.fit == "crop" else 1.0
    pairs = [
        {"kind": kind, "picture": first, "other": second}
        for kind in GROUPS
        for first, second in found.pairs[kind]
    ]
    unreadable = [{"problem": problem} for problem in found.unreadable]
    not_read = [{"problem": note.removeprefix("note: ")} for note in found.notes]
    unlisted = {"alike": found.num_unlisted}
    stay = {name for name, _ in found.pairs["near"]} - {*found.left_out}
    notes = {
        f"{len(stay):,} of the test pictures that look alike stay in any case: they look like a"
        " picture of another class, or too few would be left.": bool(stay),
        "There are too many pictures to search for those that look alike.": not found.is_compared,
        f"Not listed: {quantity(found.num_unlisted, 'more pair')} of training pictures that look"
        " alike; to see others, check a folder without some of these.": bool(found.num_unlisted),
        "--fit pad keeps the whole area of the pictures.": kept < 1,
    }
    if found.folder.num_test is None:
        sides = parts_of(found.images, found.train, found.test, [])[:2]
        on_fifth = notes_on_fifth(found.folder.class_names, *sides, found.unlinked)
        notes |= dict.fromkeys(on_fifth, True)
    groups = Counter(found.groups.values())
    for name, n in groups.most_common(1):
        largest = f"the largest is {printable(name)!r} with {quantity(n, 'picture')}"
        notes[f"{quantity(len(groups), 'group')}; {largest}"] = True
    sizes = [{"height": h, "width": w, "pictures": n} for (h, w), n in found.sizes.most_common()]
    return Report(
        facts=[
            Fact("folder", str(found.folder.root)),
            *facts_of(num_train=len(found.train), num_test=len(found.test)),
            Fact("img_size", list(found.img_size), text=read_at),
            Fact("kept_area", kept, metric=SHARE),
            Fact("num_unreadable", len(found.unreadable), label="unreadable pictures"),
            Fact("untested", found.untested, label="classes without test pictures"),
            *facts_of(names_alike=found.names_alike),
            *(
                Fact(f"num_{kind}", len(found.pairs[kind]) + unlisted.get(kind, 0), label=heading)
                for kind, heading in GROUPS.items()
            ),
            *([Fact("num_seen", len(found.seen), label=SEEN)] if against else []),
            *hidden(is_compared=found.is_compared),
            *facts_of(num_problems=found.num_problems),
        ],
        tables=[
            DataTable("pairs", ["kind", "picture", "other"], pairs, most=NUM_LISTED),
            DataTable("unreadable", ["problem"], unreadable, most=NUM_LISTED),
            DataTable("not_read", ["problem"], not_read),
            class_counts(found.counts(), "held out" if found.folder.num_test is None else "test"),
            DataTable("sizes", ["height", "width", "pictures"], sizes, most=NUM_LISTED),
            *(tables_of_run(found) if against else []),
        ],
        notes=[note for note, holds in notes.items() if holds],
    )
