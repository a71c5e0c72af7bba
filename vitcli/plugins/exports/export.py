"""Export of a trained model as safetensors, ONNX, torch's pt2 or a model card, checked.

Axes: B batch, C channels, H W pixels, K classes, F features.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from vitcli.core.metrics.classification import wilson_interval
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import DATA_SETS, FAMILIES, ExperimentSpec
from vitcli.plugins.exports.recipe import STEPS
from vitcli.plugins.weights import tensors as weights
from vitcli.runner.data.deep import depth_fields
from vitcli.runner.errors import CheckError, ConfigError, InputError, require_packages
from vitcli.runner.evaluate.weights import final_step, load_model
from vitcli.runner.files import (
    commit,
    make_output_folder,
    require_replaceable,
    require_utf8,
    scratch_folder,
)
from vitcli.runner.report.tables import escape_markdown, markdown_grid
from vitcli.runner.run.checkpoint import untie_shared_tensors
from vitcli.runner.run.folder import RESULT, RunDir
from vitcli.runner.run.record import RunRecord, headline_key, read_record
from vitcli.runner.text import ignore_message, one_line, printable, without_folders
from vitcli.version import __version__

Facts = dict[str, str]
"""What an export says about its file: a label and a text for each line."""
Reloaded = Callable[[Tensor], Tensor]
"""A model that was read back: images (B, C, H, W) -> its output."""
INPUT = "images"
TRACED = 2
"""Number of images with which a model is traced. torch treats 0 and 1 as constants."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""Entry of a node in an ONNX model that names folders of this machine."""
ACCEPTED = "for a share in thresholds: softmax(logits) of one class alone is at least its threshold"
"""Which pictures ``vitcli predict --coverage SHARE`` accepts, as the metadata say it."""
BATCH = torch.export.Dim("batch")
OPSET = 18


class Features(nn.Module):
    """Normalised images (B, C, H, W) -> the pooled features (B, F) of an encoder."""

    def __init__(self, encoder: ImageModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder.features(images)


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """The image model of a run in eval mode on the CPU."""

    run: RunDir
    spec: ExperimentSpec
    encoder: ImageModel

    @property
    def classifies(self) -> bool:
        return self.spec.task.row.classifies

    @property
    def output(self) -> str:
        return "logits" if self.classifies else "features"

    def as_output(self, encoder: ImageModel) -> nn.Module:
        return encoder if self.classifies else Features(encoder).eval()

    def state(self) -> dict[str, Tensor]:
        unused = () if self.classifies else self.encoder.head_names
        return {k: v for k, v in self.encoder.state_dict().items() if k not in unused}

    def images(self, count: int) -> Tensor:
        """Return random normalised images (count, C, H, W), the same in every call."""
        generator = torch.Generator().manual_seed(count)
        return torch.randn(count, *self.encoder.image_shape, generator=generator)

    def preprocessing(self) -> dict[str, Any]:
        """Return the steps from a picture file to pixels, as ``recipe.prepare`` does them."""
        channels, height, width = self.encoder.image_shape
        colours = {1: "grey", 3: "RGB"}.get(channels, "not for picture files")
        if (data := self.spec.data).channels is not None:
            colours = "grey" if data.channels == "grey" else "a channel for each page"
        size = {"height": height, "width": width}
        depth = {name: value for name, value in depth_fields(data).items() if value != "grey"}
        return STEPS | {"fit": data.fit, "colours": colours} | depth | size

    def metadata(self) -> dict[str, str]:
        """Return what a program needs to use the file, as texts; lists and the model as JSON."""
        data, record = self.spec.data, read_record(self.run)
        thresholds = record.thresholds or None
        values: dict[str, Any] = {
            "mean": data.mean,
            "std": data.std,
            "preprocessing": self.preprocessing(),
            "temperature": record.temperature,
            "thresholds": thresholds,
            "accepted": thresholds and ACCEPTED,
            "class_names": data.class_names if self.classifies else None,
            "model": self.spec.model.model_dump(mode="json"),
        }
        texts = {name: json.dumps(value) for name, value in values.items() if value is not None}
        about = f"{INPUT}: float32 (B, C, H, W), (pixels / 255 - mean) / std"
        return {"input": about, "output": self.output, "vitcli": __version__} | texts


def write_safetensors(model: TrainedModel, path: Path) -> Facts:
    """Write the weights, those of a plain ViT and of a model of timm with the names of timm."""
    encoder, arguments, state = model.encoder, None, model.state()
    if encoder.library_call:
        kind, arguments = encoder.library_call
        arguments = arguments | ({} if model.classifies else {"num_classes": 0})
        state = {name.removeprefix(encoder.library_prefix): t for name, t in state.items()}
    elif (lacks := weights.not_plain(model.spec.model)) or type(encoder) is not VisionTransformer:
        lacks = lacks or "distillation token"
        names = f"those of vitcli, because timm's VisionTransformer has no {lacks}"
    else:
        kind, spec = "timm.models.VisionTransformer", encoder.spec
        arguments = weights.timm_arguments(spec, encoder.num_classes if model.classifies else 0)
        state = weights.timm_state(encoder, state)
    metadata = model.metadata() | {"format": "pt"}
    if arguments is not None:
        metadata["timm"] = json.dumps(arguments)
        words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        names = f"those of {kind}({words})"
    path.write_bytes(safetensors.torch.save(untie_shared_tensors(state), metadata))
    return {"names": names}


def read_safetensors(path: Path, model: TrainedModel) -> Reloaded:
    """Return the model with the weights in a file; a head that is not in the file stays."""
    other, tensors = copy.deepcopy(model.encoder), weights.read_tensors(path)
    own = other.state_dict()
    state = {} if model.classifies else {name: own[name] for name in other.head_names}
    if other.library_prefix:
        state |= {other.library_prefix + name: tensor for name, tensor in tensors.items()}
    else:
        if weights.POSITIONS not in own:  # constants, of which the file has a table
            tensors.pop(weights.timm_name(weights.POSITIONS), None)
        state = weights.match_tensors(state | tensors, other, path, ignore_message)
    other.load_state_dict(state)
    return model.as_output(other)


def write_pt2(model: TrainedModel, path: Path) -> Facts:
    module = model.as_output(model.encoder)
    try:
        program = torch.export.export(module, (model.images(TRACED),), dynamic_shapes=({0: BATCH},))
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        raise untraceable(model, error) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    torch.export.save(program, path, extra_files={"vitcli.json": json.dumps(model.metadata())})
    return {"torch": torch.__version__}


def write_onnx(model: TrainedModel, path: Path) -> Facts:
    try:
        program = torch.onnx.export(
            model.as_output(model.encoder),
            (model.images(TRACED),),
            dynamo=True,
            dynamic_shapes=({0: BATCH},),
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[model.output],
            external_data=False,
            verbose=False,
        )
    except (RuntimeError, torch.onnx.OnnxExporterError) as error:
        raise untraceable(model, error) from error
    assert program is not None
    for part in (program.model.graph, *program.model.functions.values()):
        for node in part:
            node.metadata_props.pop(STACK_TRACE, None)
    program.model.metadata_props.update(model.metadata())
    program.save(path)
    return {"opset": str(program.model.opset_imports[""])}


def read_onnx(path: Path, model: TrainedModel) -> Reloaded:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([model.output], {INPUT: images.numpy()})[0])


def untraceable(model: TrainedModel, error: Exception) -> InputError:
    reason = str(error).strip().partition("\n")[0]
    return InputError(
        f"{model.run.name}: torch cannot export model.family={model.spec.model.family}: {reason}"
    )


BODY = """# {name}

{kind}, trained on {data} with vitcli.

{table}

The model takes float32 images (B, {shape}), normalised as `(pixels / 255 - mean) / std` with the
mean {mean} and the std {std}. The output is `{output}`. A picture becomes the pixels in this way:

{preprocessing}

The numbers are those of one training. They hold for images like those of {data}.
Other images were not measured.
"""


def write_card(model: TrainedModel, path: Path) -> Facts:
    from huggingface_hub import EvalResult, ModelCardData

    run, spec, record = model.run, model.spec, read_record(model.run)
    number, rows = stated(model, record)
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
        preprocessing="\n".join(f"- {k}: {v}" for k, v in model.preprocessing().items()),
        output=model.output,
    )
    path.write_text(f"---\n{head.to_yaml()}\n---\n\n{body}")
    return {"states": ": ".join(next(iter(rows.items())))}


def stated(model: TrainedModel, record: RunRecord) -> tuple[dict[str, Any], dict[str, str]]:
    metric, result, meta = model.spec.task.row.headline, record.result, record.meta
    key = headline_key(result, metric.name)
    if key not in result:
        raise InputError(
            f"{model.run.path}: no {key!r} in its {RESULT}, which a card states; finish the"
            " training, or train from imported weights"
        )
    value, split = result[key], "validation" if key.startswith("val_") else "test"
    label, count = f"{split} {metric.label}", result.get("num_test") or record.num_val or 0
    rows = {label: f"{metric.text(value)}, {count:,} images"}
    if metric.counts_right and count:
        low, high = map(metric.text, wilson_interval(round(value * count), count))
        rows["95 % interval"] = f"{low} to {high} (sampling error of the {split} images)"
    rows |= {"parameters": f"{record.parameters or 0:,}", "random seed": str(model.spec.seed)}
    rows |= {
        name: without_folders(str(meta[name])) for name in ("commit", "command") if name in meta
    }
    if model.classifies and model.spec.data.class_names:
        rows["classes"] = json.dumps(model.spec.data.class_names, ensure_ascii=False)
    number = {"dataset_split": split, "metric_type": metric.name, "metric_name": label}
    rows = {name: escape_markdown(text) for name, text in rows.items()}
    return number | {"metric_value": value}, rows


LIMIT = 1e-4
"""Largest difference of an output between the trained model and its export."""
BATCHES = (1, 3)
"""Numbers of images at which an export is checked; neither is the number that was traced."""


@dataclass(frozen=True)
class Format:
    suffix: str
    write: Callable[[TrainedModel, Path], Facts]
    read: Callable[[Path, TrainedModel], Reloaded] | None = None
    """Returns the model in a file; None if the file holds no model."""
    extra: str = ""
    packages: tuple[str, ...] = ()


FORMATS = {
    "onnx": Format(".onnx", write_onnx, read_onnx, "export", ("onnx", "onnxscript", "onnxruntime")),
    "safetensors": Format(".safetensors", write_safetensors, read_safetensors),
    "pt2": Format(".pt2", write_pt2, lambda path, _: torch.export.load(path).module()),
    "card": Format(".md", write_card, extra="hub", packages=("huggingface_hub",)),
}


def load_trained(run: RunDir) -> TrainedModel:
    return TrainedModel(run=run, spec=run.spec(), encoder=load_model(run, step=final_step(run)))


def export_run(
    run: RunDir, name: str, file: Path | None = None, *, check: bool = True
) -> dict[str, Any]:
    """Write the model of a run, and return what was written.

    That is the file, its size in bytes, what it computes (``logits`` or ``features``), its largest
    absolute difference from the trained model, and the facts of the format.
    """
    form = FORMATS[name]
    run_name = run.path.name if Path(run.name).is_absolute() else run.name
    path = file or Path(run_name.replace("/", "-") + form.suffix)
    require_packages(f"--format {name}", form.packages, form.extra)
    if path.suffix != form.suffix:
        raise ConfigError(f"-o {path}: the file of --format {name} ends with {form.suffix}")
    require_utf8(path)
    require_replaceable(path, "export", b"library_name: vitcli" if name == "card" else b"vitcli")
    model = load_trained(run)
    make_output_folder(path.parent)
    with scratch_folder() as scratch, torch.no_grad():
        draft = scratch / path.name
        facts = form.write(model, draft)
        difference = compare(model, form.read, draft, path) if check and form.read else None
        content = draft.read_bytes()
    commit(path, content)
    about = {"file": str(path), "bytes": len(content), "output": model.output}
    return about | {"difference": difference} | facts


def compare(
    model: TrainedModel, read: Callable[[Path, TrainedModel], Reloaded], draft: Path, path: Path
) -> float:
    module = model.as_output(model.encoder)
    try:
        reloaded = read(draft, model)
        batches = [model.images(count) for count in BATCHES]
        differences = [(reloaded(images) - module(images)).abs().max() for images in batches]
    except Exception as error:  # each runtime has exceptions of its own
        reason = str(error).strip().partition("\n")[0]
        raise CheckError(f"{path}: not written: it cannot be computed: {reason}") from error
    largest = torch.stack(differences).max().item()
    if not largest <= LIMIT:  # NaN fails, too
        raise CheckError(
            f"{path}: not written: its {model.output} differ by {largest:.1e} from those of the"
            f" trained model, limit {LIMIT:.0e}"
        )
    return largest
