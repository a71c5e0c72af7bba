"""The tables of the figure, for terminal, page and docs."""

from vitcli.runner.report.tables import Table, make_table
from vitcli.runner.text import quantity
from vitcli.runner.visualize.distance_figure import Numbers, with_error


def faithfulness_tables(found: Numbers) -> list[Table]:
    return [faithfulness(found), randomisation(found["randomisation"])]


def faithfulness(found: Numbers) -> Table:
    header = ["map", "deletion (low is good)", "insertion (high is good)", "insertion - deletion"]
    header += ["against random", "against centre"]
    rows = [
        [
            row["method"],
            f"{row['deletion_area']:.3f}",
            f"{row['insertion_area']:.3f}",
            f"{row['gap']:+.3f}",
            *(
                "" if row["method"] == other else with_error(row[f"against_{other}"], "+.3f")
                for other in ("random", "centre")
            ),
        ]
        for row in found["methods"]
    ]
    note = (
        "Areas under the curves of the predicted class's probability. Differences are paired by"
        f" image; \u00b1 is half the 95 % interval. n = {found['n']:,} test images."
    )
    return make_table(header, rows, range(1, 6), notes=(note,))


def randomisation(found: Numbers) -> Table:
    methods = found["methods"]
    rows = [
        [part, *(with_error(row["correlation"][step], "z.2f") for row in methods)]
        for step, part in enumerate(found["parts"])
    ]
    note = (
        "Spearman's rank correlation with the trained model's map, mean of"
        f" {quantity(found['n'], 'test image')} and {len(found['seeds'])} draws of initial weights;"
        ' \u00b1 is half the 95 % interval over draws. Adebayo et al. 2018, "Sanity Checks for'
        ' Saliency Maps".'
    )
    header = ["re-initialised down to", *(row["method"] for row in methods)]
    return make_table(header, rows, range(1, len(header)), notes=(note, found["sentence"]))
