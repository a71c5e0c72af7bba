"""A model card for the Hugging Face Hub, with the numbers of a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.core.spec import DATA_SETS, FAMILIES
from vitcli.core.spec.metrics import Metric
from vitcli.runner.errors import InputError
from vitcli.runner.run.folder import headline_key
from vitcli.runner.tables import escape_markdown, markdown_grid
from vitcli.runner.text import one_line, printable, without_folders
from vitcli.runner.weights.convert import tuning_command
from vitcli.runner.weights.trained import TrainedModel

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

TASK_TYPES = {True: "image-classification", False: "image-feature-extraction"}
"""Whether a model classifies -> the Hub's name of its task."""
BODY = """# {name}

{kind}, {parameters:,} parameters, trained on {data} with vitcli.

{table}

## Use

The model takes float32 images (B, {shape}), normalised as `(pixels / 255 - mean) / std`:

```python
mean, std = {mean}, {std}
```

A picture becomes the pixels in this way: {preprocessing}.

The output is `{output}`, (B, {width}).{classes}

## Limits

The numbers are those of one training. They hold for images like those of {data}.
Other images were not measured.
"""


def write_card(model: TrainedModel, path: Path, opset: int) -> dict[str, str]:
    """Write the card of a run."""
    data, metric, value, split = card_data(model)
    try:
        text = f"---\n{data.to_yaml()}\n---\n\n{body(model, metric, value, split)}"
    except (TypeError, ValueError) as error:
        raise InputError(f"{model.run.path}/result.json is damaged: {error}") from error
    path.write_text(text)
    return {"states": f"{split} {metric.label} {metric.text(value)}"}


def card_data(model: TrainedModel) -> tuple["ModelCardData", Metric, float, str]:
    """Return the front matter of a run's card, its metric, the value, and the split."""
    from huggingface_hub import EvalResult, ModelCardData

    try:
        result = model.run.read_result()
    except FileNotFoundError:
        result = {}
    except ValueError as error:
        raise InputError(f"{model.run.path}/result.json is damaged: {error}") from error
    metric = model.spec.task.row.headline
    key = headline_key(result, metric.name)
    if key not in result:
        is_imported = model.run.read("meta.json").get("imported")
        advice = (
            f"train the imported weights first: {tuning_command(model.run)}"
            if is_imported
            else f"finish the training: {model.run.command('train --resume')}"
        )
        raise InputError(
            f"{model.run.path}: no {key!r} in its result.json, which a card states; {advice}"
        )
    split = "validation" if key.startswith("val_") else "test"
    shown = EvalResult(
        task_type=TASK_TYPES[model.classifies],
        dataset_type=data_name(model),
        dataset_name=data_name(model),
        dataset_split=split,
        metric_type=metric.name,
        metric_name=f"{split} {metric.label}",
        metric_value=result[key],
    )
    data = ModelCardData(
        library_name="vitcli",
        pipeline_tag=TASK_TYPES[model.classifies],
        tags=["vitcli", model.spec.model.family, model.spec.task.name],
        model_name=model_name(model),
        eval_results=[shown],
    )
    return data, metric, result[key], split


def model_name(model: TrainedModel) -> str:
    """Return the name of the run without the folders around it."""
    name = model.run.name
    return printable(Path(name).name if Path(name).is_absolute() else name)


def data_name(model: TrainedModel) -> str:
    """Return the name of the data set; of your own pictures, the name of the folder alone."""
    name = model.spec.data.name
    return name if name in DATA_SETS else one_line(Path(name.partition(":")[2]).name, 80)


def body(model: TrainedModel, metric: Metric, value: float, split: str) -> str:
    """Return the text of the card below its front matter."""
    data, names = model.spec.data, model.spec.data.class_names or ()
    with_names = model.classifies and names
    listed = escape_markdown(json.dumps(names, ensure_ascii=False))
    return BODY.format(
        name=escape_markdown(model_name(model)),
        kind=FAMILIES[model.spec.model.family].about,
        parameters=model.run.read("result.json").get("parameters", 0),
        data=escape_markdown(data_name(model)),
        table=markdown_grid(["", ""], facts(model, metric, value, split).items()),
        shape=", ".join(map(str, model.encoder.image_shape)),
        mean=list(data.mean or ()),
        std=list(data.std or ()),
        preprocessing=", ".join(f"{k}: {v}" for k, v in model.preprocessing().items()),
        output=model.output,
        width=model.encoder.num_classes if model.classifies else model.encoder.num_features,
        classes=f" The classes are {listed}." if with_names else "",
    )


def facts(model: TrainedModel, metric: Metric, value: float, split: str) -> dict[str, str]:
    """Return the rows of the card's table; a row is left out if the run does not record it."""
    result, meta = model.run.read("result.json"), model.run.read("meta.json")
    first = model.spec.train.init or (meta.get("pretrained") or {}).get("run")
    count = result.get("num_test") or meta.get("num_val", 0)
    found: dict[str, Any] = {
        f"{split} {metric.label}": f"{metric.text(value)}, {count:,} images",
        "95 % interval": _interval(metric, value, count, split),
        "started from": without_folders(str(first)) if first else None,
        "epochs": result.get("epochs"),
        "random seed": model.spec.seed,
        "commit of vitcli": meta.get("commit"),
        "torch": meta.get("torch"),
        "hardware": meta.get("hardware"),
    }
    rows = {
        name: escape_markdown(str(text)) for name, text in found.items() if text not in (None, "")
    }
    if "command" in meta:
        rows["command"] = _code(without_folders(str(meta["command"])))
    return rows


def _code(text: str) -> str:
    """Return text as code in a cell of a table, unless a backquote in it would end the code."""
    return escape_markdown(text) if "`" in text else f"`{printable(text)}`".replace("|", "\\|")


def _interval(metric: Metric, value: float, count: int, split: str) -> str | None:
    """Return the interval of a share of images; None for another number."""
    from vitcli.core.metrics.classification import wilson_interval  # torch takes a second

    if metric.unit != "%" or not count:
        return None
    if not metric.is_possible(value):
        raise ValueError(f"its {metric.label} is {value}")
    low, high = map(metric.text, wilson_interval(round(value * count), count))
    return f"{low} to {high} (sampling error of the {split} images)"
