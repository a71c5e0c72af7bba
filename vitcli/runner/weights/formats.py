"""A trained model, and the files of its export: safetensors, ONNX and torch's pt2.

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

from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.timm_model import TimmModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import InputError
from vitcli.runner.run.checkpoint import apart
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights.names import (
    POSITIONS,
    match_tensors,
    not_plain,
    timm_arguments,
    timm_name,
    timm_state,
)
from vitcli.runner.weights.read import read_tensors
from vitcli.runner.weights.timm_start import NET
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
BATCH = torch.export.Dim("batch")
OPSET = 18
"""Version of the operators of ONNX."""


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
        """Return the name of the output: ``logits`` (B, K) or ``features`` (B, F)."""
        return "logits" if self.classifies else "features"

    def as_output(self, encoder: ImageModel) -> nn.Module:
        """Return the module that computes the output of an encoder like that of the run."""
        return encoder if self.classifies else Features(encoder).eval()

    def state(self) -> dict[str, Tensor]:
        unused = () if self.classifies else self.encoder.head_names
        return {k: v for k, v in self.encoder.state_dict().items() if k not in unused}

    def images(self, count: int) -> Tensor:
        """Return random normalised images (count, C, H, W), the same in every call."""
        generator = torch.Generator().manual_seed(count)
        return torch.randn(count, *self.encoder.image_shape, generator=generator)

    def preprocessing(self) -> dict[str, Any]:
        """Return how ``predict`` makes the input of a picture file, before the normalisation."""
        channels, height, width = self.encoder.image_shape
        return {
            "orientation": "turned upright as the EXIF data say",
            "transparent": "on white",
            "filter": "bilinear with antialiasing",
            "shape": self.spec.data.fit,
            "colours": {1: "grey", 3: "RGB"}.get(channels, "not for picture files"),
            "height": height,
            "width": width,
        }

    def metadata(self) -> dict[str, str]:
        """Return what a program needs to use the file, as texts; lists and the model as JSON."""
        data = self.spec.data
        values: dict[str, Any] = {
            "mean": data.mean,
            "std": data.std,
            "preprocessing": self.preprocessing(),
            "temperature": self.run.read("result.json").get("temperature"),
            "class_names": data.class_names if self.classifies else None,
            "model": self.spec.model.model_dump(mode="json"),
        }
        texts = {name: json.dumps(value) for name, value in values.items() if value is not None}
        about = f"{INPUT}: float32 (B, C, H, W), (pixels / 255 - mean) / std"
        return {"input": about, "output": self.output, "vitcli": __version__} | texts


def write_safetensors(model: TrainedModel, path: Path) -> Facts:
    """Write the weights: a plain ViT and a model of timm with timm's names, others with their own.

    The metadata ``timm`` are the arguments of timm's ``VisionTransformer`` or ``create_model``.
    """
    encoder, arguments, state = model.encoder, None, model.state()
    if isinstance(encoder, TimmModel):
        kind = "timm.create_model"
        arguments = encoder.net.arguments | ({} if model.classifies else {"num_classes": 0})
        state = {name.removeprefix(NET): tensor for name, tensor in state.items()}
    elif (lacks := not_plain(model.spec.model)) or type(encoder) is not VisionTransformer:
        lacks = lacks or "distillation token"
        names = f"those of vitcli, because timm's VisionTransformer has no {lacks}"
    else:
        kind, spec = "timm.models.VisionTransformer", encoder.spec
        arguments = timm_arguments(spec, encoder.num_classes if model.classifies else 0)
        state = timm_state(encoder, state)
    metadata = model.metadata() | {"format": "pt"}
    if arguments is not None:
        metadata["timm"] = json.dumps(arguments)
        words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        names = f"those of {kind}({words})"
    path.write_bytes(safetensors.torch.save(apart(state), metadata))
    return {"names": names}


def read_safetensors(path: Path, model: TrainedModel) -> Reloaded:
    """Return the model with the weights in a file; a head that is not in the file stays."""
    other, tensors = copy.deepcopy(model.encoder), read_tensors(path)
    own = other.state_dict()
    state = {} if model.classifies else {name: own[name] for name in other.head_names}
    if isinstance(other, TimmModel):
        state |= {NET + name: tensor for name, tensor in tensors.items()}
    else:
        if POSITIONS not in own:  # constants, of which the file has a table
            tensors.pop(timm_name(POSITIONS), None)
        state = match_tensors(state | tensors, other, path)
    other.load_state_dict(state)
    return model.as_output(other)


def write_pt2(model: TrainedModel, path: Path) -> Facts:
    """Write a program of ``torch.export``, for any number of images."""
    module = model.as_output(model.encoder)
    try:
        program = torch.export.export(module, (model.images(TRACED),), dynamic_shapes=({0: BATCH},))
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        raise untraceable(model, error) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    torch.export.save(program, path, extra_files={"vitcli.json": json.dumps(model.metadata())})
    return {"torch": torch.__version__}


def read_pt2(path: Path, model: TrainedModel) -> Reloaded:
    return torch.export.load(path).module()


def write_onnx(model: TrainedModel, path: Path) -> Facts:
    """Write an ONNX model for any number of images."""
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
    """Return the model in a file, computed by ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([model.output], {INPUT: images.numpy()})[0])


def untraceable(model: TrainedModel, error: Exception) -> InputError:
    """Return the error for a model that torch cannot export."""
    reason = str(error).strip().partition("\n")[0]
    return InputError(
        f"{model.run.name}: torch cannot export model.family={model.spec.model.family}: {reason}"
    )
