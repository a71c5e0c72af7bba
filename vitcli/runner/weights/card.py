"""A model card for the Hugging Face Hub, with the numbers of a run."""

import json
from pathlib import Path
from typing import Any

from vitcli.core.spec import DATA_SETS, FAMILIES
from vitcli.runner.errors import InputError
from vitcli.runner.run.folder import headline_key
from vitcli.runner.tables import escape_markdown, markdown_grid
from vitcli.runner.text import one_line, printable, without_folders
from vitcli.runner.weights.formats import TrainedModel

BODY = """# {name}

{kind}, trained on {data} with vitcli.

{table}

The model takes float32 images (B, {shape}), normalised as `(pixels / 255 - mean) / std` with the
mean {mean} and the std {std}. A picture becomes the pixels in this way: {preprocessing}.
The output is `{output}`.

The numbers are those of one training. They hold for images like those of {data}.
Other images were not measured.
"""


def write_card(model: TrainedModel, path: Path) -> dict[str, str]:
    """Write the card of a run."""
    from huggingface_hub import EvalResult, ModelCardData

    run, spec = model.run, model.spec
    try:
        result = run.read_result() if (run.path / "result.json").exists() else {}
        number, rows = stated(model, result)
    except (TypeError, ValueError) as error:
        raise InputError(f"{run.path}/result.json is damaged: {error}") from error
    data = spec.data.name  # of own pictures, the name of the folder alone
    data = data if data in DATA_SETS else one_line(Path(data.partition(":")[2]).name, 80)
    name = printable(run.path.name if Path(run.name).is_absolute() else run.name)
    kind = "image-classification" if model.classifies else "image-feature-extraction"
    about: dict[str, Any] = {"task_type": kind, "dataset_type": data, "dataset_name": data}
    head = ModelCardData(
        library_name="vitcli",
        pipeline_tag=kind,
        tags=["vitcli", spec.model.family, spec.task.name],
        model_name=name,
        eval_results=[EvalResult(**about, **number)],
    )
    body = BODY.format(
        name=escape_markdown(name),
        kind=FAMILIES[spec.model.family].about,
        data=escape_markdown(data),
        table=markdown_grid(["", ""], rows.items()),
        shape=", ".join(map(str, model.encoder.image_shape)),
        mean=list(spec.data.mean or ()),
        std=list(spec.data.std or ()),
        preprocessing=", ".join(f"{k}: {v}" for k, v in model.preprocessing().items()),
        output=model.output,
    )
    path.write_text(f"---\n{head.to_yaml()}\n---\n\n{body}")
    return {"states": ": ".join(next(iter(rows.items())))}


def stated(model: TrainedModel, result: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the number that the Hub reads, and the rows of the card's table."""
    from vitcli.core.metrics.classification import wilson_interval  # torch takes a second

    metric, meta = model.spec.task.row.headline, model.run.read("meta.json")
    key = headline_key(result, metric.name)
    if key not in result:
        raise InputError(
            f"{model.run.path}: no {key!r} in its result.json, which a card states; finish the"
            " training, or train from imported weights"
        )
    value, split = result[key], "validation" if key.startswith("val_") else "test"
    label, count = f"{split} {metric.label}", result.get("num_test") or meta.get("num_val", 0)
    rows = {label: f"{metric.text(value)}, {count:,} images"}
    if metric.unit == "%" and count:
        if not metric.is_possible(value):
            raise ValueError(f"its {metric.label} is {value}")
        low, high = map(metric.text, wilson_interval(round(value * count), count))
        rows["95 % interval"] = f"{low} to {high} (sampling error of the {split} images)"
    rows |= {"parameters": f"{result.get('parameters', 0):,}", "random seed": str(model.spec.seed)}
    rows |= {
        name: without_folders(str(meta[name])) for name in ("commit", "command") if name in meta
    }
    if model.classifies and model.spec.data.class_names:
        rows["classes"] = json.dumps(model.spec.data.class_names, ensure_ascii=False)
    number = {"dataset_split": split, "metric_type": metric.name, "metric_name": label}
    rows = {name: escape_markdown(text) for name, text in rows.items()}
    return number | {"metric_value": value}, rows
