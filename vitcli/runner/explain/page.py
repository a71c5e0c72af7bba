"""The page of topics: one offline HTML file without scripts.

The content-security policy of the page forbids scripts and the network. Names are escaped.
"""

from collections.abc import Mapping

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from vitcli.runner.explain.lesson import Lesson
from vitcli.runner.explain.subject import Subject
from vitcli.runner.explain.topics import CHALLENGES, REFERENCES, TOPICS, TRANSFORMER


def html(subject: Subject, lessons: Mapping[str, Lesson]) -> str:
    """Return the page with these topics, by name."""
    loader = ChoiceLoader([PackageLoader(f"vitcli.runner.{room}") for room in ("explain", "study")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("explain.html").render(
        facts=subject.facts(),
        lessons=lessons,
        about={name: TOPICS[name].about for name in lessons},
        is_whole=len(lessons) == len(TOPICS),
        transformer=TRANSFORMER,
        challenges=[(text, command.rpartition(" ")[2]) for text, command in CHALLENGES],
        references=REFERENCES,
    )
