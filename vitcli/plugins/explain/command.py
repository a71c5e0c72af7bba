"""`vitcli explain`: the theory of the sources, with numbers of a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitcli.cli.chosen import run_and_pictures
from vitcli.cli.console import emit, emit_report, line_width, say
from vitcli.cli.options import Json, RunOf, exclude, output_option, with_code, with_example
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, make_output_folder, require_replaceable
from vitcli.runner.report.report import Report, facts_of
from vitcli.runner.report.tables import make_table, plain
from vitcli.runner.text import did_you_mean

if TYPE_CHECKING:
    from vitcli.plugins.explain.lesson import Lesson
    from vitcli.plugins.explain.subject import Subject
    from vitcli.runner.run.folder import RunDir


Topic = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="Topic to explain.", show_default="list the topics"),
]
Picture = Annotated[
    str | None,
    typer.Argument(
        metavar="PICTURE", help="Picture file to explain with.", show_default="a drawn picture"
    ),
]
FormatOption = Annotated[
    Literal["text", "html", "json"] | None,
    typer.Option("--format", help="Format of the output.", show_default="html with -o, or text"),
]
Output = Annotated[
    Path | None, output_option("FILE", "Page to write, FILE.html.", "explain.html for html")
]


@with_example(
    "vitcli explain scale",
    "vitcli explain scale quickstart photo.jpg",
    "vitcli explain --format html",
)
@with_code
def explain(
    topic: Topic = None,
    run: RunOf = None,
    picture: Picture = None,
    form: FormatOption = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Explain attention, norms and patches with numbers of a model.

    Without a topic, list the topics; with --format html, write a page of all topics.
    """
    from vitcli.plugins.explain.topics import TOPICS

    words = [word for word in (topic, run, picture) if word is not None]
    topic = words.pop(0) if words and words[0] in TOPICS else ""
    run, pictures = run_and_pictures("explain", words, needs_picture=False)
    if len(pictures) > 1:
        raise ConfigError(f"one picture is explained at a time, got {len(pictures)}")
    chosen = None if run is None else find_run_or_topic(run, topic)
    names = [topic] if topic else list(TOPICS)
    json = json or form == "json"
    exclude({"--json": json, "-o": output})
    exclude({"--json": json, "--format html": form == "html"})
    exclude({"--format text": form == "text", "-o": output})
    is_page = form == "html" or output is not None
    if not (topic or is_page or json):
        if words:
            raise ConfigError("name a topic, such as: vitcli explain scale")
        emit(overview())
        return
    from vitcli.plugins.explain.lesson import lesson_of, page
    from vitcli.plugins.explain.subject import load_subject
    from vitcli.runner.evaluate.weights import default_run

    if is_page:
        output = output or Path(f"explain{f'-{topic}' if topic else ''}.html")
        if output.suffix != ".html":
            raise ConfigError(
                f"-o {output}: is a page, so end its name in .html; for a text, type > FILE"
            )
        require_replaceable(output, "page", b'<div class="try">')
        make_output_folder(output.parent)
    chosen = chosen or default_run()
    notes: list[str] = []
    photo = pictures[0] if pictures else None
    subject = load_subject(chosen, photo, notes.append if json else say)
    lessons = {name: lesson_of(name, subject) for name in names}
    if json:
        numbers = {name: lesson.numbers for name, lesson in lessons.items()}
        facts = facts_of(run=str(chosen.path), picture=subject.picture_name, **numbers)
        emit_report(Report(facts=facts, notes=notes), "json")
    elif output is not None:
        commit(output, page(subject, lessons).encode())
        emit(str(output))
    else:
        emit(text(lessons[topic], subject))
    names = [*TOPICS]
    later = names[names.index(topic) + 1 :] if topic else []
    say(f"next  vitcli explain {later[0]}" if later else "next  vitcli attn-map photo.jpg")


def find_run_or_topic(run: str, topic: str) -> "RunDir":
    from vitcli.plugins.explain.topics import TOPICS
    from vitcli.runner.run.folder import find_run

    try:
        return find_run(run)
    except InputError as error:
        if topic:
            raise
        hint = did_you_mean(run, TOPICS) or f"; the topics are {', '.join(TOPICS)}"
        raise ConfigError(f"{run}: no such topic{hint}") from error


def overview() -> str:
    from vitcli.plugins.explain.topics import OVERVIEW, TOPICS

    challenges = OVERVIEW["challenges"].items()
    topics = [[name, row["about"]] for name, row in TOPICS.items()]
    parts = [
        OVERVIEW["transformer"],
        plain(make_table(["topic", "what it shows"], topics), line_width()),
        "What is difficult (course report, section I.C):",
        "\n".join(f"- {challenge}: vitcli explain {name}" for challenge, name in challenges),
        "References:",
        "\n".join(f"- {reference}" for reference in OVERVIEW["references"]),
        f"next  vitcli explain {next(iter(TOPICS))}\npage  vitcli explain --format html",
    ]
    return "\n\n".join(parts).replace(":\n\n- ", ":\n- ")


def text(lesson: "Lesson", subject: "Subject") -> str:
    tables = [plain(table, line_width()) for table in lesson.tables]
    heading = lesson.texts["title"], lesson.texts["idea"]
    facts = "\n".join(f"{name}: {value}" for name, value in subject.facts().items())
    formula = "\n".join(f"    {line}" for line in lesson.formula_text.splitlines())
    findings = "\n".join(f"- {finding}" for finding in lesson.findings)
    tries = "\n".join(f"try  {command}  ({shows})" for command, shows in lesson.texts["tries"])
    return "\n\n".join([*heading, formula, facts, *tables, findings, tries])
