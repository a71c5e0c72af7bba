"""The files of an export: safetensors, ONNX and torch's pt2. Each is written and read back.

Axes: B batch, C channels, H W pixels.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from vitcli.core.models.image_model import build_model
from vitcli.core.models.timm_model import TimmModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import DataSpec, ExperimentSpec, TimmSpec, TokenSpec, VitSpec
from vitcli.core.spec.slots import POS_EMBEDS
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.run.checkpoint import apart
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights.match import match_tensors
from vitcli.runner.weights.names import naming_of
from vitcli.runner.weights.read import read_tensors
from vitcli.runner.weights.timm_names import not_plain, timm_arguments, timm_state
from vitcli.runner.weights.timm_start import NET
from vitcli.runner.weights.timm_weights import TimmWeights
from vitcli.runner.weights.trained import INPUT, TrainedModel, as_output

Facts = dict[str, str]
"""What an export says about its file: a label and a text for each line."""
Reloaded = Callable[[Tensor], Tensor]
"""A model that was read back: images (B, C, H, W) -> its output."""
TRACED = 2
"""Number of images with which a model is traced. torch treats 0 and 1 as constants."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""Entry of a node in an ONNX model that names folders of this machine."""
BATCH = torch.export.Dim("batch")


def write_safetensors(model: TrainedModel, path: Path, opset: int) -> Facts:
    """Write the weights: a plain ViT and a model of timm with timm's names, others with their own.

    The metadata ``timm`` are the arguments of timm's ``VisionTransformer`` or ``create_model``.
    """
    metadata = model.metadata() | {"format": "pt"}
    if isinstance(model.encoder, TimmModel):
        return write_timm(model.encoder, model, path, metadata)
    reason = not_plain(model.spec.model)
    if reason is None and type(model.encoder) is not VisionTransformer:
        reason = "distillation token"
    if reason is None:
        arguments = timm_arguments(model)
        metadata["timm"] = json.dumps(arguments)
        names = f"those of timm.models.VisionTransformer({_call(arguments)})"
    else:
        names = f"those of vitcli, because timm's VisionTransformer has no {reason}"
    state = timm_state(model) if reason is None else model.state()
    path.write_bytes(safetensors.torch.save(apart(state), metadata))
    return {"names": names}


def write_timm(encoder: TimmModel, model: TrainedModel, path: Path, metadata: Facts) -> Facts:
    """Write the weights of a model of timm."""
    arguments = encoder.net.arguments | ({} if model.classifies else {"num_classes": 0})
    tensors = apart({name.removeprefix(NET): each for name, each in model.state().items()})
    metadata = metadata | {"timm": json.dumps(arguments)}
    path.write_bytes(safetensors.torch.save(tensors, metadata))
    return {"names": f"those of timm.create_model({_call(arguments)})"}


def _call(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def read_safetensors(path: Path, model: TrainedModel) -> Reloaded:
    """Return the model that the weights in a file make.

    Positions come from the file, also if they are constants of the model.
    """
    tensors, spec = read_tensors(path), model.encoder.spec
    if isinstance(spec, TimmSpec):
        timm = build_model(spec, seed=0).eval()
        own = {name: timm.state_dict()[name] for name in timm.head_names}
        state = {NET + name: tensor for name, tensor in tensors.items()}
        timm.load_state_dict(state if model.classifies else own | state)
        return as_output(timm, model.classifies)
    naming = naming_of(tensors)
    is_constant = isinstance(spec, TokenSpec) and POS_EMBEDS[spec.pos_embed].build is not None
    if naming.is_timm and is_constant:
        spec = spec.replace(pos_embed="learned")
    is_vit = isinstance(model.encoder, VisionTransformer)  # perhaps with a distillation token
    other = type(model.encoder)(spec).initialise(0) if is_vit else build_model(spec, seed=0)
    other.eval()
    if not model.classifies:  # its head is not in the file, and its output does not depend on it
        head = {k: v for k, v in other.state_dict().items() if k in other.head_names}
        tensors |= {naming.to_file(name): tensor for name, tensor in head.items()}
    other.load_state_dict(match_tensors(tensors, other, path))
    return as_output(other, model.classifies)


def write_pt2(model: TrainedModel, path: Path, opset: int) -> Facts:
    """Write a program of ``torch.export``, for any number of images."""
    try:
        program = torch.export.export(
            model.module, (model.images(TRACED),), dynamic_shapes=({0: BATCH},)
        )
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        raise untraceable(model, error) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    torch.export.save(program, path, extra_files={"vitcli.json": json.dumps(model.metadata())})
    return {"torch": torch.__version__}


def read_pt2(path: Path, model: TrainedModel) -> Reloaded:
    return torch.export.load(path).module()


def write_onnx(model: TrainedModel, path: Path, opset: int) -> Facts:
    """Write an ONNX model for any number of images."""
    try:
        program = torch.onnx.export(
            model.module,
            (model.images(TRACED),),
            dynamo=True,
            dynamic_shapes=({0: BATCH},),
            opset_version=opset,
            input_names=[INPUT],
            output_names=[model.output],
            external_data=False,
            verbose=False,
        )
    except (RuntimeError, torch.onnx.OnnxExporterError) as error:
        raise untraceable(model, error) from error
    assert program is not None
    for tensor in (*program.model.graph.inputs, *program.model.graph.outputs):
        if tensor.shape is None or isinstance(tensor.shape[0], int):
            raise InputError(
                f"{model.run.name}: the tensor {tensor.name!r} of the ONNX model has a fixed"
                f" number of images: {tensor.shape}"
            )
    used = program.model.opset_imports[""]
    if used != opset:
        raise InputError(f"{model.run.name}: torch wrote opset {used}, not {opset}; try --opset 18")
    for part in (program.model.graph, *program.model.functions.values()):
        for node in part:
            node.metadata_props.pop(STACK_TRACE, None)
    program.model.metadata_props.update(model.metadata())
    program.save(path)
    return {"opset": str(used)}


def read_onnx(path: Path, model: TrainedModel) -> Reloaded:
    """Return the model in a file, computed by ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def compute(images: Tensor) -> Tensor:
        (output,) = session.run([model.output], {INPUT: images.numpy()})
        return torch.from_numpy(output)

    return compute


def untraceable(model: TrainedModel, error: Exception) -> InputError:
    """Return the error for a model that torch cannot export."""
    reason = str(error).strip().partition("\n")[0]
    return InputError(
        f"{model.run.name}: torch cannot export model.family={model.spec.model.family}: {reason}"
    )


def timm_predictor(
    weights: TimmWeights, device: str = "auto", *, on_message: Callable[[str], None]
) -> Predictor:
    """Return weights of timm as a model for pictures of the model's own size.

    Classes have names if timm knows them. A model without names of classes does not classify, and
    its head is not used.
    """
    count = weights.num_classes or 1
    names = weights.class_names
    model = build_model(VitSpec(**weights.fields, num_classes=count), seed=0).eval()
    state = weights.state_for(model, on_message)
    model.load_state_dict(state, strict=weights.num_classes > 0)
    if names is None:
        on_message("note: timm has no names for the classes of this model, so none is shown")
    data = DataSpec(mean=weights.mean, std=weights.std, class_names=names)
    spec = ExperimentSpec(model=model.spec, data=data)
    return Predictor(RunDir(Path(weights.file)), device, (spec, model))
