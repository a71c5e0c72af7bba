"""The files of an export: safetensors, ONNX and torch's pt2. Each is written and read back.

Axes: B batch, C channels, H W pixels.
"""

import json
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from vitcli.core.models.image_model import build_model
from vitcli.core.models.timm_model import TimmModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import TokenSpec
from vitcli.core.spec.slots import POS_EMBEDS
from vitcli.runner.errors import InputError
from vitcli.runner.run.checkpoint import apart
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
from vitcli.runner.weights.trained import INPUT, TrainedModel

Facts = dict[str, str]
"""What an export says about its file: a label and a text for each line."""
Reloaded = Callable[[Tensor], Tensor]
"""A model that was read back: images (B, C, H, W) -> its output."""
TRACED = 2
"""Number of images with which a model is traced. torch treats 0 and 1 as constants."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""Entry of a node in an ONNX model that names folders of this machine."""
BATCH = torch.export.Dim("batch")
OPSET = 18
"""Version of the operators of ONNX."""


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
        kind, arguments = "timm.models.VisionTransformer", timm_arguments(model)
        state = timm_state(model)
    metadata = model.metadata() | {"format": "pt"}
    if arguments is not None:
        metadata["timm"] = json.dumps(arguments)
        words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        names = f"those of {kind}({words})"
    path.write_bytes(safetensors.torch.save(apart(state), metadata))
    return {"names": names}


def read_safetensors(path: Path, model: TrainedModel) -> Reloaded:
    """Return the model that the weights in a file make.

    Positions come from the file, also if they are constants of the model. A head that is not in the
    file does not change the output.
    """
    tensors, spec = read_tensors(path), model.encoder.spec
    if isinstance(spec, TokenSpec) and timm_name(POSITIONS) in tensors:
        is_constant = POS_EMBEDS[spec.pos_embed].build is not None
        spec = spec.replace(pos_embed="learned") if is_constant else spec
    if isinstance(model.encoder, VisionTransformer):  # perhaps with a distillation token
        other = type(model.encoder)(spec).initialise(0).eval()
    else:
        other = build_model(spec, seed=0).eval()
    state = {} if model.classifies else {k: other.state_dict()[k] for k in other.head_names}
    if isinstance(other, TimmModel):
        other.load_state_dict(state | {NET + name: tensor for name, tensor in tensors.items()})
    else:
        other.load_state_dict(match_tensors(state | tensors, other, path))
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
