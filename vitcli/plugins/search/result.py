"""The document of a search, as of a study, and the study that confirms its best trial."""

import shlex
from collections import Counter

from vitcli.plugins.search.document import PRUNED, Searched, SearchResult, validation_score
from vitcli.plugins.search.trials import Trials
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import (
    override,
    parse_experiment,
    typed_changes,
    typed_command,
    typed_name,
)
from vitcli.runner.experiment.yaml_text import dump
from vitcli.runner.files import commit
from vitcli.runner.study.collect import study_result
from vitcli.runner.study.result import VariantResult
from vitcli.runner.text import portable, portable_fields

NUM_SEEDS = 6
"""Number of seeds of the study that confirms: two variants need six for a p-value."""


def make_document(trials: Trials) -> SearchResult:
    """Return the document of a search as its folder has it now; the best trial is its first row."""
    search, asked = trials.search, trials.asked()
    if not asked:
        reasons = "; ".join(f"{rule} ({count:,})" for rule, count in trials.skipped().items())
        where = search.places.where(("search", "space"))
        raise ConfigError(f"{where}: search.space: no trial was begun ({reasons})")
    records = {folder: trials.record(folder) for folder in asked}
    parameters = trials.read_plan()["parameters"]
    points = [trials.trial(dict(question.params)) for question in asked.values()]
    kinds = (PRUNED if r.reason.startswith(PRUNED) else r.state for r in records.values())
    study = study_result(
        {point.variant: [records[point.folder]] for point in points},
        rows={
            point.variant: {
                "changes": portable_fields(point.setting),
                "parameters": parameters.get(point.variant),
            }
            for point in points
        },
        spec=search.base,
        where=trials.root,
        name=search.name,
        question=search.purpose.question,
        hypothesis=search.purpose.hypothesis,
        command=shlex.join(
            [
                *map(str, map(portable, typed_command("search", typed_name(search.path)))),
                *typed_changes(search.typed),
            ]
        ),
        threads=search.threads,
        num_comparisons=len(points),
    )
    doc = SearchResult(
        **dict(study),
        searched=Searched(
            sampler=search.fields.sampler,
            seed=search.fields.seed,
            pruning=search.fields.pruning,
            num_trials=search.num_trials,
            space={field: values.text for field, values in search.fields.space.items()},
            skipped=trials.skipped(),
            states=dict(sorted(Counter(kinds).items())),
        ),
    )
    sign = -1 if doc.headline.higher_is_better else 1

    def rank(row: VariantResult) -> tuple[bool, float, int]:
        score = validation_score(row)
        return score is None, sign * (score or 0.0), row.parameters or 0

    return doc.replace(rows=tuple(sorted(doc.rows, key=rank)))  # of equals, the smaller model first


def write_confirmation(trials: Trials, doc: SearchResult) -> str:
    """Write the study of the best trial against the default; return the command that trains it.

    Both are trained on the training and validation images, with seeds that the search has not used.
    The command is empty if no trial is better than the default.
    """
    search, options = trials.search, trials.options
    point = {field: doc.rows[0].changes[field] for field in search.fields.space}
    if validation_score(doc.rows[0]) is None or search.spec(point) == search.base:
        return ""
    fields = override(search.raw, {"data.val_split": 0})
    try:
        parse_experiment(fields, search.places)
    except ConfigError:  # such as early stopping, which needs validation images
        fields = dict(search.raw)
    study = {
        "question": f"is the best of the search {search.name} better than its default?",
        **{name: value for name, value in fields.items() if name != "seed"},
        "seeds": [seed for seed in range(10, 17) if seed != search.base.seed][:NUM_SEEDS],
        "threads": search.threads,
        "variants": {"default": {}, "best": point},
    }
    path = trials.root / f"{search.name}-confirm.yaml"
    commit(path, dump(study).encode())
    words = typed_command("ablate", str(path))
    words += ["--data-dir", str(options.data_dir)] if options.data_dir else []
    words += ["--device", options.device] if options.device != "auto" else []
    return shlex.join(words)
