"""`vitcli explain`: the theory of the sources, with numbers of a model."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitcli.cli.chosen import run_and_pictures
from vitcli.cli.console import emit, emit_json, say, table, text_of
from vitcli.cli.options import Json, RunOf

if TYPE_CHECKING:
    from vitcli.runner.explain.lesson import Lesson
    from vitcli.runner.explain.subject import Subject
    from vitcli.runner.run.folder import RunDir


class Format(StrEnum):
    """The formats of the output."""

    text = "text"
    html = "html"
    json = "json"


Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC",
        help="Topic to explain.",
        show_default="list the topics",
    ),
]
Picture = Annotated[
    str | None,
    typer.Argument(
        metavar="PICTURE", help="Picture file to explain with.", show_default="a drawn picture"
    ),
]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="Format of the output.", show_default="suffix of -o, or text"),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="File to write.",
        show_default="explain.html for html",
    ),
]


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

    \b
    Example:
      vitcli explain scale
      vitcli explain scale quickstart photo.jpg
      vitcli explain --format html
    """
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.explain.topics import TOPICS

    words = [each for each in (topic, run, picture) if each is not None]
    topic = words.pop(0) if words and words[0] in TOPICS else ""
    run, pictures = run_and_pictures("explain", words, needs_picture=False)
    if len(pictures) > 1:
        raise ConfigError(f"one picture is explained at a time, got {len(pictures)}")
    chosen = None if run is None else find_run_or_topic(run, topic)
    names = [topic] if topic else list(TOPICS)
    json = json or form is Format.json
    if json and (form is Format.html or output is not None):
        raise ConfigError("--json prints numbers, not a file; leave out --format html and -o")
    form = Format.json if json else format_of(form, output, topic)
    if form is Format.text and not topic:
        if words:
            raise ConfigError(f"name a topic, such as: vitcli explain scale {shlex.join(words)}")
        emit(overview())
        return
    from vitcli.runner.evaluate.weights import default_run
    from vitcli.runner.explain.lesson import lesson_of, page
    from vitcli.runner.explain.subject import load_subject
    from vitcli.runner.files import commit, make_output_folder

    if form is Format.html and output is None:
        output = Path(f"explain{f'-{topic}' if topic else ''}.html")
    chosen = chosen or default_run()
    subject = load_subject(chosen, *pictures)
    if output is not None:
        make_output_folder(output.parent)
    lessons = {name: lesson_of(name, subject) for name in names}
    if json:
        numbers = {name: lesson.numbers for name, lesson in lessons.items()}
        emit_json({"run": str(chosen.path), "picture": subject.picture_name, **numbers})
    else:
        is_page = form is Format.html
        found = page(subject, lessons) if is_page else text(lessons[topic], subject)
        if output is not None:
            commit(output, (found if is_page else f"{found}\n").encode())
        emit(found if output is None else str(output))
    say(next_command(topic))


def find_run_or_topic(run: str, topic: str) -> "RunDir":
    """Return a run; without a topic before it, an unknown name is an unknown topic."""
    from vitcli.runner.errors import InputError
    from vitcli.runner.explain.topics import check_topic
    from vitcli.runner.run.folder import find_run

    try:
        return find_run(run)
    except InputError:
        if not topic:
            check_topic(run)
        raise


def format_of(form: Format | None, output: Path | None, topic: str) -> Format:
    """Return the format: ``--format``, else html if ``-o`` ends in .html, else text."""
    from vitcli.runner.errors import ConfigError

    if output == Path("-"):
        raise ConfigError("-o -: text goes to standard output without -o; a page needs a file")
    is_page = output is not None and output.suffix.lower() in (".html", ".htm")
    form = form or (Format.html if is_page else Format.text)
    if output is not None and is_page != (form is Format.html):
        raise ConfigError(
            f"-o {output}: the name does not fit --format {form}; a page ends in .html"
        )
    if form is Format.text and output is not None and not topic:
        raise ConfigError(f"-o {output}: name a topic, or write a page of all with -o explain.html")
    return form


def overview() -> str:
    """Return what a Vision Transformer is, and the topics with their commands."""
    from vitcli.runner.explain.topics import OVERVIEW, TOPICS

    challenges = OVERVIEW["challenges"].items()
    parts = [
        OVERVIEW["transformer"],
        table(["topic", "what it shows"], [[name, each["about"]] for name, each in TOPICS.items()]),
        "What is difficult (course report, section I.C):",
        "\n".join(f"- {challenge}: vitcli explain {name}" for challenge, name in challenges),
        "References:",
        "\n".join(f"- {reference}" for reference in OVERVIEW["references"]),
        f"next  vitcli explain {next(iter(TOPICS))}\npage  vitcli explain --format html",
    ]
    return "\n\n".join(parts).replace(":\n\n- ", ":\n- ")


def text(lesson: "Lesson", subject: "Subject") -> str:
    """Return a topic for a terminal."""
    tables = map(text_of, lesson.tables)
    heading = lesson.texts["title"], lesson.texts["idea"]
    facts = "\n".join(f"{name}: {value}" for name, value in subject.facts().items())
    formula = "\n".join(f"    {line}" for line in lesson.formula_text.splitlines())
    findings = "\n".join(f"- {finding}" for finding in lesson.findings)
    tries = "\n".join(f"try  {command}  ({shows})" for command, shows in lesson.texts["tries"])
    return "\n\n".join([*heading, formula, facts, *tables, findings, tries])


def next_command(topic: str) -> str:
    """Return the command of the topic after this one, or of the picture of a model."""
    from vitcli.runner.explain.topics import TOPICS

    names = [*TOPICS]
    later = names[names.index(topic) + 1 :] if topic else []
    return f"next  vitcli explain {later[0]}" if later else "next  vitcli attn-map photo.jpg"
