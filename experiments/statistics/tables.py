"""The tables of docs/ about the simulations: how often the statistics of a study are right."""

import json
from collections.abc import Mapping

from experiments.statistics import deciding, factorial, folds, looks, more_pictures
from experiments.statistics import simulation as studies
from vitcli.runner.report.tables import markdown_grid

STUDIES = {
    "interval": "95 % interval holds",
    "joint": "five joint intervals hold",
    "pooled": "five pooled intervals hold",
    "lucky_joint": "small seed share: joint interval holds",
    "lucky_pooled": "small seed share: pooled interval holds",
    "different": "a false better or worse",
    "equivalent": "a false equivalent",
}
FOLDS = {"corrected": "corrected t test", "uncorrected": "t test of independent seeds"}
FACTORIAL = {
    "exists": "an effect exists",
    "interval": "an interval excludes 0",
    "independent": "p at most 0.05, if trainings of a seed were independent",
}


LOOKS = {
    "false": "ever a false better or worse",
    "equivalent": "ever a false equivalent",
    "power": "found at the plan",
    "power_fixed": "found by a single look",
}


def simulation() -> str:
    """Return how often the intervals and the tests of a study are right."""
    more = (
        "; shares with a small seed share only where there are 50 such rows, {images} test images"
    )
    return _shares(studies.RESULT.read_text(), STUDIES, more)


def at_every_look() -> str:
    """Return how often verdicts are false if one looks after each seed, and their power."""
    return _shares(looks.RESULT.read_text(), LOOKS, "; {images} test images, if any")


def deciding_shares() -> str:
    """Return the verdicts of ``vitcli decide`` on random pairs, and how many pairs they took."""
    stored = json.loads(deciding.RESULT.read_text())
    names = ["better", "worse", "equivalent", "unlikely", "not_decided"]
    rows = [
        [name, *(f"{100 * shares[key]:.1f} %" for key in names), f"{shares['pairs']:.1f}"]
        for name, shares in stored["results"].items()
        if "better" in shares
    ]
    heads = ["case", *(name.replace("_", " ") for name in names), "pairs"]
    made = f"{stored['date']}, commit {stored['commit'][:9]}"
    grid = markdown_grid(heads, rows, range(1, 7))
    return f"{grid}\n\n{stored['studies']:,} comparisons a row ({made})."


def deciding_campaigns() -> str:
    """Return what campaigns of random ideas adopt, and how much they train."""
    stored = json.loads(deciding.RESULT.read_text())
    rows = [
        [
            name,
            f"{found['false']:.2f}",
            f"{100 * found['any_false']:.0f} %",
            f"{100 * found['found']:.0f} %" if "found" in found else "",
            f"{found['trainings']:.1f}",
        ]
        for name, found in stored["results"].items()
        if "false" in found
    ]
    heads = ["effects in standard deviations", "false adoptions", "campaigns with one"]
    heads += ["good ideas found", "trainings an idea"]
    count = stored["studies"] // deciding.STUDIES_A_NIGHT
    return f"{markdown_grid(heads, rows, range(1, 5))}\n\n{count:,} campaigns a row."


def levels() -> str:
    """Return how often the tests err in factorial studies without effects."""
    return _shares(factorial.RESULT.read_text(), FACTORIAL)


def fold_levels() -> str:
    """Return how often a study over folds finds a difference although there is none."""
    return _shares(folds.RESULT.read_text(), FOLDS)


def gains_of_more_pictures() -> str:
    """Return how often the interval of ``vitcli choose`` holds the gain of twice the images."""
    stored = json.loads(more_pictures.RESULT.read_text())
    rows = [
        [
            name,
            str(found["draws"]),
            *(f"{100 * found[key]:+.1f}" for key in ("real gain", "predicted gain")),
            f"{100 * found['width']:.1f}",
            f"{100 * found['interval holds']:.0f} %",
        ]
        for name, found in stored["results"].items()
    ]
    heads = ["images", "draws", "real gain, points", "predicted", "width", "interval holds"]
    errs = stored["false differences"]
    shares = ", ".join(f"{100 * share:.1f} % ({name})" for name, share in errs.items())
    return (
        f"{markdown_grid(heads, rows, range(1, len(heads)))}\n\n"
        f"{stored['date']}, commit {stored['commit'][:9]}. Two models of equal accuracy are found"
        f" to differ, at 5 %, in {shares} of {stored['studies']:,} drawn data sets each."
    )


def _shares(text: str, columns: Mapping[str, str], more: str = "") -> str:
    stored = json.loads(text)
    rows = [
        [name, *(f"{100 * shares[key]:.1f} %" if key in shares else "" for key in columns)]
        for name, shares in stored["results"].items()
    ]
    grid = markdown_grid(["studies", *columns.values()], rows, range(1, len(columns) + 1))
    made = f"{stored['date']}, commit {stored['commit'][:9]}"
    return f"{grid}\n\n{stored['studies']:,} studies a row{more.format(**stored)} ({made})."
