"""Write the generated tables of README.md and docs/*.md. With --check, only compare them.

Each table is between <!-- NAME --> and <!-- /NAME --> on exactly one page. Results come from
experiments/results, verdicts from experiments/claims. Choices and questions come from the commands
that print them.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments" / "speed"))

import benchmark_tables as speed
import study_tables as studies
from accuracy_points import accuracy_table, pilots_table, stopped_pilots_table
from factorial_tables import beside, interactions
from figures import SEARCH, draw_all
from judge_tables import figures_table, judges_table
from notebooks import COURSE, FIRST_MODEL, PAGE, colab, filled_course, first_model, minutes
from reference import commands, fields
from sentences import study_sentences
from slot_tables import slots
from study_tables import COMPARED, RESULTS, ROOT, listed

from experiments.claims.claims import TABLES as CLAIMS
from experiments.gates.tables import TUNINGS, gates, rejection, tunings
from experiments.night import tables as night
from experiments.search.tables import samplers, samplers_say
from experiments.statistics.tables import (
    at_every_look,
    deciding_campaigns,
    deciding_shares,
    fold_levels,
    gains_of_more_pictures,
    levels,
    simulation,
)
from vitcli.runner.report.tables import markdown_grid, to_markdown
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document, render
from vitcli.runner.text import percent
from vitcli.runner.visualize.render import tables_of

LLMS = ROOT / "llms.txt"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SAID = (
    *("ablation-quickstart", "ablation-cifar10-tiny"),
    *("ablation-cifar10-full", "study-architectures-tiny"),
)
"""Studies with a table and sentences of their own."""
WHOLE = (*SAID, "ablation-factorial", "classification-cifar10-short")
CIFAR10 = ("cifar10-tiny", "cifar10-tiny-native", "cifar10-tiny-fast")
QUICKSTARTS = ("quickstart-avx512", "quickstart-avx2")


def numbers(name: str, figure: str, *places: int) -> str:
    """Return some of the tables that ``vitcli visualize NAME`` shows with a figure."""
    found = json.loads((RESULTS / f"visualize-{name}.json").read_text())
    made = (
        f"`{name}`, {percent(found['test_accuracy'])} on the test set; `{found['command']}`;"
        f" {found['hardware']}; commit {found['commit'][:9]}."
    )
    tables = tables_of(figure, found[figure])
    return "\n\n".join([*(to_markdown(tables[i]) for i in places), made])


def search() -> str:
    """Return the best trials of a search with the notes on them."""
    doc = read_document(SEARCH.with_suffix(".json").read_text())
    return render(doc.replace(rows=doc.rows[:5]), "md")


def final() -> str:
    """Return the table of the study that tested the best of a search, and what it shows."""
    doc = read_document(SEARCH.with_name(f"{SEARCH.name}-final.json").read_text())
    said = study_sentences(compare(doc), same_setting=False)
    return f"{render(doc, 'md')}\n\n{listed(said)}"


@cache
def printed(*words: str) -> Any:
    """Return the JSON document that a vitcli command prints."""
    command = [sys.executable, "-m", "vitcli", *words]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def questions(kind: str) -> str:
    """Return all shipped experiments or studies with their questions."""
    rows = printed("experiments", "ls", "--json")["experiments"]
    cells = [[f"`{row['name']}`", row["question"]] for row in rows if row["kind"] == kind]
    return markdown_grid([kind, "question"], cells)


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "fields": lambda: fields(printed("experiments", "schema")),
    "first-model-colab": partial(colab, "first-model"),
    "first-model-minutes": partial(minutes, "first-model"),
    "quickstart": partial(studies.trainings, *QUICKSTARTS),
    "quickstart-times": partial(studies.trainings, *QUICKSTARTS),
    "experiments": partial(
        studies.trainings, "cifar10-tiny", "cifar10-tiny-native", "cifar10-tiny-fast"
    ),
    **{name: partial(studies.study, name) for name in WHOLE},
    **{f"{name}-says": partial(studies.study_says, name) for name in SAID},
    "ablation-cifar10-full-details": partial(studies.study_details, "ablation-cifar10-full"),
    "ablation-cifar10-full-short": partial(studies.study_short, "ablation-cifar10-full"),
    "ablation-cifar10-full-tutorial": partial(studies.study_short, "ablation-cifar10-full"),
    "ablation-length-5": partial(studies.study_brief, "ablation-length-5"),
    "ablation-length-says": studies.lengths_say,
    "ablation-two-data-sets": partial(
        studies.on_two_data_sets, "ablation-length-15", "ablation-length-15-fashion"
    ),
    "gpu": speed.gpu,
    **{name: partial(studies.study_brief, name) for name in COMPARED},
    "ablation-factorial-interactions": partial(interactions, "ablation-factorial"),
    "ablation-factorial-layernorm": partial(beside, "ablation-factorial", "no-layernorm"),
    "factorial-levels": levels,
    "fold-levels": fold_levels,
    "more-pictures": gains_of_more_pictures,
    "looks": at_every_look,
    "deciding": deciding_shares,
    "deciding-campaigns": deciding_campaigns,
    "night": night.ideas,
    "night-claim": night.claim,
    "night-planted": night.planted,
    "samplers": samplers,
    "samplers-say": samplers_say,
    "search-tiny": search,
    "search-tiny-final": final,
    "attention-growth-says": speed.growth_says,
    "pocket": partial(studies.trainings, "cifar10-pocket"),
    "reach-pocket": partial(numbers, "cifar10-pocket", "distance", 0, 1),
    "reach-cls": partial(numbers, "cifar10-report-narrow", "distance", 0, 1),
    **{
        name: partial(speed.peers, name)
        for kind in ("amx", "avx512", "avx2")
        for name in (f"peers-{kind}", f"peers-{kind}-compiled")
    },
    "faults": speed.faults,
    "checkpoint-cost": speed.checkpoints,
    "attention-growth": speed.attention_growth,
    "launches": speed.launches,
    "sizes": speed.sizes,
    "faithfulness": partial(numbers, "cifar10-pocket", "faithfulness", 0),
    "randomisation": partial(numbers, "cifar10-pocket", "faithfulness", 1),
    **CLAIMS,
    "gates": gates,
    "rejection": rejection,
    "tunings": lambda: f"{tunings()}\n\n{studies.costs(*TUNINGS)}",
    "pretraining": studies.pretraining,
    "accuracy-per-compute": accuracy_table,
    "study-distil": partial(studies.study_brief, "study-distil"),
    "pilots": pilots_table,
    "stopped-pilots": stopped_pilots_table,
    "simulation": simulation,
    "judges": judges_table,
    "judged-figures": figures_table,
    "slots": slots,
    "list-of-experiments": partial(questions, "experiment"),
    "list-of-studies": partial(questions, "study"),
}


def fill(page: str, tables: dict[str, str]) -> str:
    """Return the text of a page, with each marked block replaced by its table."""
    for name in re.findall(r"^<!-- ([\w-]+) -->$", page, re.MULTILINE):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if name not in tables or page.count(begin) != 1 or page.count(end) != 1:
            raise SystemExit(f"no table {name!r}, or no single <!-- /{name} -->")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{tables[name]}\n{end}{rest.partition(end)[2]}"
    return page


def check_places(pages: dict[Path, str]) -> None:
    """Check that each table has exactly one place in the pages."""
    for name in TABLES:
        places = sum(text.count(f"<!-- {name} -->\n") for text in pages.values())
        if places != 1:
            raise SystemExit(f"the table {name!r} has {places} places in README.md and docs/")


def llms() -> str:
    """Return the index of the pages for language models: llmstxt.org."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    lines = ["# vitcli", "", "> An experiment runner for small Vision Transformers.", ""]
    lines += ["Programs begin with [AGENTS.md](AGENTS.md)."]
    lines += ["In the site of these pages, names end in `.html` instead of `.md`.", ""]
    for section in nav[1:]:
        ((title, pages),) = section.items()
        lines += [f"## {title}", ""]
        for page in pages:
            ((name, path),) = page.items()
            text = (ROOT / path).read_text().partition("\n\n")[2]
            about = re.split(r"(?<=\.)\s|\n", re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text))[0]
            about = re.sub(r"^This (page|tutorial) is ", "", about)
            lines.append(f"- [{name}]({path}): {about}")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    before = {path: path.read_text() for path in [*PAGES, LLMS, COURSE, FIRST_MODEL]}
    check_places(before)
    tables = {name: table() for name, table in TABLES.items()}
    made = {path: fill(before[path], tables) for path in PAGES} | {LLMS: llms()}
    made |= {COURSE: filled_course(before[COURSE], fill), FIRST_MODEL: first_model(made[PAGE])}
    stale = {path: text for path, text in made.items() if text != before[path]}
    if "--check" in sys.argv:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            raise SystemExit(f"stale: {names}; run: python .ci/docs.py")
        return
    for path, text in stale.items():
        path.write_text(text)
    draw_all()


if __name__ == "__main__":
    main()
