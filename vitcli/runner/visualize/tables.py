"""The tables of the distances of attention, for terminal, page and docs."""

from collections.abc import Mapping
from typing import Any

from vitcli.runner.report.tables import PLUS_MINUS, Table, make_table
from vitcli.runner.text import percent, quantity
from vitcli.runner.visualize.claims import LIMITS, describe_untrained
from vitcli.runner.visualize.statistics import plus_minus

Numbers = Mapping[str, Any]


def distance_tables(found: Numbers) -> list[Table]:
    return [distances(found), claims(found)]


def distances(found: Numbers) -> Table:
    header = ["layer", "distance, pixels", "of uniform attention", "nearest to farthest head"]
    header += ["within 3x3 patches", "entropy, nats", "head similarity"]
    rows = [
        [
            str(row["layer"]),
            with_error((row["distance"], row["distance_sd"]), ".2f"),
            f"{row['of_uniform']:.2f}",
            f"{row['nearest_head']:.2f} to {row['farthest_head']:.2f}",
            percent(row["near_share"], 0),
            f"{row['entropy']:.2f}",
            "" if row["head_similarity"] is None else f"{row['head_similarity']:.2f}",
        ]
        for row in found["layers"]
    ]
    note = (
        f"n = {found['n']:,} test images; \u00b1 is the standard deviation over images. Uniform"
        f" attention has a distance of {found['uniform_distance']:.2f} pixels and"
        f" {percent(found['uniform_near_share'], 0)} of its weight within 3x3 patches. Head"
        " similarity is the mean cosine between the maps of two heads."
    )
    return make_table(header, rows, range(len(header)), notes=(note,))


def claims(found: Numbers) -> Table:
    rows = []
    for claim in found["claims"]:
        verdicts = filter(None, [claim["verdict"], claim.get("against_untrained")])
        untrained = describe_untrained(claim)
        rows.append([claim["claim"], "; ".join(verdicts), claim["measured"], untrained])
    notes = [LIMITS]
    if "untrained_seeds" in found:
        seeds = quantity(len(found["untrained_seeds"]), "random seed")
        images = quantity(found["untrained_num_images"], "test image")
        notes.append(
            "Untrained models: the 95 % prediction interval from the initial weights of"
            f" {seeds}, on {images}. If the 95 % interval of the measured number reaches into it,"
            " this model is not distinguishable from an untrained one."
        )
    header = ["claim", "verdict", "measured on this model", "untrained models"]
    return make_table(header, rows, notes=tuple(notes))


def with_error(pair: tuple[float, float | None], form: str) -> str:
    return plus_minus(*pair, form).replace("+-", PLUS_MINUS)
