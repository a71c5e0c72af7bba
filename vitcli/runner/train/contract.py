"""What vitcli requires of own code, checked on a batch before a training begins.

Axes: B batch, N tokens, D embed_dim, h heads, d head_dim, K classes.
"""

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.core import ranks
from vitcli.core.data.batches import Batch
from vitcli.core.data.source import Images
from vitcli.core.metrics.classification import logits_and_labels
from vitcli.core.models.own import CLOSE, OwnModel
from vitcli.core.nn.norm import FrozenBuffers
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.randomness import seed_step
from vitcli.core.spec import OPTIMIZERS, ExperimentSpec, OptimSpec
from vitcli.core.torch_use import evaluating
from vitcli.core.train.training import Training
from vitcli.runner.errors import OwnCodeError
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.own_code import locate_in_own_code, place_of
from vitcli.runner.experiment.torch_state import unchanged
from vitcli.runner.files import sha256
from vitcli.runner.text import Listener

Shape = tuple[int, ...]
LONG = 20
UNREADABLE = "an object that cannot be read"
SAME_BATCHES = 4
"""Number of times that the first batch is made, to see whether it is always the same."""
FEW = 8
"""Images of a part of a batch whose losses are compared."""
OF_GROUP = ("params", "lr", "initial_lr")
"""Entries of the groups of optimizers that vitcli sets or restores."""


def _like_input(task: Task, inputs: tuple[Tensor, ...]) -> Shape:
    return tuple(inputs[0].shape)


def _table(task: Task, inputs: tuple[Tensor, ...]) -> Shape:
    model: Any = task.encoder(task.module)
    has_prefix = getattr(model.spec, "pos_embed_prefix", False)
    length = model.token_shape.num_tokens if has_prefix else model.num_patches
    return (1, length, model.spec.embed_dim)


def _tokens(task: Task, inputs: tuple[Tensor, ...]) -> Shape:
    model: Any = task.encoder(task.module)
    height, width = (side // model.spec.patch_size for side in inputs[0].shape[-2:])
    return (len(inputs[0]), height * width, model.spec.embed_dim)


SHAPES: dict[str, Callable[[Task, tuple[Tensor, ...]], Shape]] = {
    "attention": lambda task, inputs: (*inputs[0].shape[:3], inputs[2].shape[3]),
    "ffn": _like_input,
    "norm": _like_input,
    "pos_embed": _table,
    "position": _like_input,
    "patch_embed": _tokens,
    "pool": lambda task, inputs: (inputs[0].shape[0], inputs[0].shape[2]),
    "model": lambda task, inputs: (len(inputs[0]), task.encoder(task.module).num_classes),
}
"""Slot -> function that returns the shape which a part must return for its inputs."""


def own_parts(task: Task) -> Iterator[tuple[str, type, nn.Module]]:
    for part in task.module.modules():
        if own_part := getattr(part, "own_part", None):
            yield *own_part, part


def state_outside(training: Training) -> dict[str, str]:
    """Return what own parts keep outside of a checkpoint: name -> value, or the hash of a long one.

    These are attributes of own modules, optimizers and objectives, entries in the groups of
    optimizers, and buffers that are not persistent.
    """
    task, owners = training.task, list[tuple[str, dict[str, Any], Collection[str]]]()
    of_module = {"own_part", *vars(nn.Module())}
    of_optimizer = vars(torch.optim.SGD([torch.zeros(1)], 1.0))
    for _, kind, part in own_parts(task):
        for name, module in part.named_modules(prefix=kind.__name__):
            outside = module._non_persistent_buffers_set
            buffers = {name: module._buffers[name] for name in outside}
            owners.append((name, vars(module) | buffers, of_module))
    for optimizer in training.optimizers:
        if not _is_own(optimizer, "torch"):
            continue
        name = type(optimizer).__name__
        owners.append((name, vars(optimizer), of_optimizer))
        for number, group in enumerate(optimizer.param_groups):
            owners.append((f"{name}.group{number}", group, OF_GROUP))
    if _is_own(task):
        owners.append((type(task).__name__, vars(task), ()))
    tensors = task.module.state_dict(keep_vars=True).values()
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    parts = (task, *task.module.modules(), *training.optimizers)
    restored = {*map(id, (*parts, *tensors, *groups))}
    return {
        f"{owner}.{name}": describe_value(value, restored)
        for owner, values, known in owners
        for name, value in values.items()
        if name not in known
    }


def describe_value(value: Any, restored: Collection[int] = ()) -> str:
    """Return a short text that is the same for equal values; ``restored`` are ids to leave out."""
    try:
        text = _as_text(value, restored)
    except Exception:  # own code, or an object such as an iterator
        return UNREADABLE
    return text if len(text) <= LONG else sha256(text.encode())[:8]


def _is_own(value: Any, *others: str) -> bool:
    return type(value).__module__.partition(".")[0] not in ("vitcli", *others)


def _as_text(value: Any, known: Collection[int]) -> str:
    """Return a text that is the same for equal values; raise an error for what cannot be read.

    ``known`` are the ids of what a checkpoint restores, and of the objects that hold the value.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, (type, ModuleType, FunctionType, BuiltinFunctionType)):
        return str(getattr(value, "__qualname__", value.__name__))
    if id(value) in known or not _is_own(value):
        return "..."
    as_text = partial(_as_text, known={*known, id(value)})
    if isinstance(value, torch.Generator):
        value = value.get_state()
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.numpy() if value.dtype != torch.bfloat16 else value.float().numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype}{value.shape}{sha256(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(as_text, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_text, value))}]"
    if isinstance(value, dict):
        return as_text([part for item in value.items() for part in item])
    reduced = value.__reduce_ex__(4)  # what copy and pickle take: arguments, attributes, items
    parts = [] if isinstance(reduced, str) else reduced[1:3]
    items = [] if isinstance(reduced, str) else [list(each or ()) for each in reduced[3:5]]
    return f"{type(value).__qualname__}{as_text([*parts, *items])}"


@contextmanager
def watched(task: Task, seen: list[Tensor]) -> Iterator[None]:
    """Check the output of each own part in the block, and append it to ``seen``.

    An error of the block without a line of own code in it, as a wrong signature, names the files.
    """
    with ExitStack() as stack:
        for slot, part_class, part in own_parts(task):
            check = partial(_check_output, task, seen, slot, part_class)
            stack.callback(part.register_forward_hook(check).remove)
        try:
            with unchanged(_files(task)):
                yield
        except (TypeError, ValueError, RuntimeError) as error:
            if locate_in_own_code(error) or "memory" in str(error):
                raise
            raise OwnCodeError(f"{_files(task)}: {error}") from error


def _files(task: Task) -> str:
    return ", ".join(sorted(task.spec.code))


def _check_output(
    task: Task,
    seen: list[Tensor],
    slot: str,
    part_class: type,
    module: nn.Module,
    inputs: tuple[Any, ...],
    out: Any,
) -> None:
    wanted, device = SHAPES[slot](task, inputs), next(task.module.parameters()).device
    problem = ""
    if not isinstance(out, Tensor):
        problem = f"{type(out).__name__}, not a tensor"
    elif tuple(out.shape) != wanted:
        problem = f"the shape {tuple(out.shape)}, needed {wanted}"
    elif out.device != device:
        problem = f"a tensor on {out.device}, not {device}"
    elif out.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        problem = f"{out.dtype}, needed torch.float32"
    elif not out.isfinite().all():
        problem = "NaN or infinity for the first batch"
    if problem:
        raise OwnCodeError(f"{place_of(part_class)}: {part_class.__name__} returned {problem}")
    seen.append(out.detach().float())


def tolerance_on(device: torch.device) -> float:
    """Return how much equal computations may differ; a GPU adds up in any order."""
    return 0.0 if device.type == "cpu" else 1e-2


@torch.no_grad()
def are_same(task: Task, one: nn.Module, other: nn.Module, images: Images, draws: int = 0) -> bool:
    """Return whether two modules give the same outputs for some images, but for rounding.

    With ``draws``, the other one draws other random numbers, as a dropout does that is never off.
    """
    passes = []
    for step, module in ((0, one), (draws, other)):
        seed_step(images.pixels.device, 0, step)
        passes.append([value.float() for value in task.outputs(module, images).values()])
    return all(
        torch.allclose(ours, theirs, rtol=0, atol=CLOSE * float(ours.abs().max()), equal_nan=True)
        for ours, theirs in zip(*passes, strict=True)
    )


def checked_batch(training: Training) -> Batch:
    """Return the first batch; refuse own code that makes another one at each call."""
    first, *others = (next(iter(training.batches(0))) for _ in range(SAME_BATCHES))
    tolerance = tolerance_on(training.device)
    for batch in others:
        for name, value in first.items():
            again = batch[name]
            is_alike = (again.shape, again.dtype) == (value.shape, value.dtype)
            close = partial(torch.allclose, rtol=tolerance, atol=tolerance, equal_nan=True)
            if not (is_alike and close(again, value)):
                raise OwnCodeError(
                    f"{_files(training.task)}: the {name} of the same batch were others the second"
                    " time, so a resumed training would differ; an augmentation takes all"
                    " randomness from its draws, an objective draws in losses"
                )
    return first


@contextmanager
def undrawn(task: Task) -> Iterator[None]:
    """Refuse own code that draws from Python's or NumPy's generator, which vitcli does not seed."""
    before = describe_value([random.getstate(), np.random.get_state()])
    try:
        yield
    finally:  # whatever else failed may follow from this
        if describe_value([random.getstate(), np.random.get_state()]) != before:
            raise OwnCodeError(
                f"{_files(task)}: draws from Python's random or numpy.random in training, so the"
                " same seed gives other numbers each time; take random numbers from torch, whose"
                " generator vitcli seeds before each step"
            )


@contextmanager
def _unseeded(files: str) -> Iterator[None]:
    seed = torch.initial_seed()
    yield
    if torch.initial_seed() != seed:
        raise OwnCodeError(
            f"{files}: calls torch.manual_seed, so runs with other seeds draw the same numbers;"
            " leave that out, because vitcli seeds torch"
        )


@torch.no_grad()
def check_parts(task: Task, batch: Batch, seed: int) -> None:
    """Pass a batch through the module twice, in evaluation mode, and check each own part."""
    was_training, files, images = task.module.training, _files(task), batch["images"]
    state = task.module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.is_complex():
            kind = "complex" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise OwnCodeError(f"{files}: {name} is {kind}; keep state in buffers of real numbers")
    task.module.eval()
    passes: list[list[Tensor]] = []
    for model in task.module.modules():
        if isinstance(model, OwnModel) and images.shape[1:2] == (model.spec.in_chans,):
            with undrawn(task), watched(task, []):
                model.check_head(images[:2].float())
    for _ in range(2):
        seed_step(images.device, seed, 0)
        seen: list[Tensor] = []
        with _unseeded(files), watched(task, seen), FrozenBuffers(task.module):
            numbers = task.losses(batch)
        _check_losses(task, numbers)
        passes.append([*seen, *(value.detach().float() for value in numbers.values())])
    task.module.train(was_training)
    if built := sorted(task.module.state_dict().keys() - state.keys()):
        raise OwnCodeError(
            f"{files}: {built[0]} is built in the first forward, so that no optimiser knows it;"
            " build it in __init__"
        )
    tolerance = tolerance_on(images.device)
    for one, other in zip(*passes, strict=True):
        if not torch.allclose(one, other, rtol=tolerance, atol=tolerance):
            raise OwnCodeError(
                f"{files}: the same batch gave other numbers the second time; take random numbers"
                " from torch, whose generator vitcli seeds before each step"
            )


def check_build(spec: ExperimentSpec) -> None:
    """Refuse own code that draws its initial weights elsewhere than from torch, or seeds torch."""
    files = ", ".join(sorted(spec.code))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed + 1)  # own code may seed with spec.seed
        with _unseeded(files):
            task_class(spec).make_module(spec)
    first, second = (new_module(spec).state_dict() for _ in range(2))
    for name, value in first.items():
        if not torch.allclose(value, second[name], rtol=0, atol=0, equal_nan=True):
            raise OwnCodeError(
                f"{files}: {name} has other initial values the second time; draw them from torch,"
                " whose generator vitcli seeds"
            )


@torch.no_grad()
def check_outputs(task: Task, images: Images) -> None:
    """Refuse an own classification that measures another classifier than its model."""
    row = task.spec.task.row
    if not (row.source and row.classifies):
        return
    encoder = task.encoder(task.module)

    def spread(head: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
        return logits + torch.linspace(-1, 1, logits.shape[-1]).to(logits)  # a new head may be 0

    handle = encoder.head.register_forward_hook(spread)
    try:
        with watched(task, []), evaluating(task.module):
            measured = task.outputs(task.module, images).get("logits", torch.empty(0))
            answered, _ = logits_and_labels(encoder, images, task.spec)
    finally:
        handle.remove()
    limit = CLOSE * float(answered.abs().max())
    ours, theirs = (logits.to(answered).log_softmax(-1) for logits in (measured, answered))
    if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=0, atol=limit):
        raise OwnCodeError(
            f"{row.source}: {task.spec.task.name}.outputs returns other logits than the model, with"
            " which predict and export answer; change them in the model's head, not in outputs"
        )


@torch.no_grad()
def warn_of_parts(task: Task, batch: Batch, on_message: Listener) -> None:
    """Say that an own loss is not the mean of those of the parts of a batch, unless it draws."""
    row, count = task.spec.task.row, task.spec.train.accumulate
    if not row.source or count * ranks.size() == 1:
        return
    batch = {name: value[: FEW * count] for name, value in batch.items()}  # less than a step takes
    chunks = zip(*(value.chunk(count) for value in batch.values()), strict=True)
    whole = {name: ranks.gather(value) for name, value in batch.items()}
    with evaluating(task.module), FrozenBuffers(task.module):
        parts = [task.losses(dict(zip(batch, chunk, strict=True)))["loss"] for chunk in chunks]
        mean = ranks.mean(torch.stack(parts).mean())
        with ranks.together(False):
            loss, again = (task.losses(whole)["loss"] for _ in range(2))
    if loss.isclose(again) and not mean.isclose(loss, rtol=1e-4):
        on_message(
            f"warning: {row.source}: the loss of a batch is {loss:.5g}, but the mean of its parts"
            f" {mean:.5g}, so the parts train for another loss; return a mean over images, or take"
            " one process and train.accumulate=1"
        )


def warn_of_defaults(spec: OptimSpec, on_message: Listener) -> None:
    """Say which defaults of an own optimiser the experiment replaces."""
    for name, default in OPTIMIZERS[spec.name].defaults.items():
        value, own = getattr(spec, name), tuple(default) if isinstance(default, list) else default
        if value != own:
            on_message(f"note: {spec.name} gets optim.{name} {value}, not its own default {own}")


def _check_losses(task: Task, numbers: Any) -> None:
    row = task.spec.task.row
    if not row.source:
        return
    where = f"{row.source}: {task.spec.task.name}"
    if not isinstance(numbers, dict) or set(numbers) != set(row.reports):
        raise OwnCodeError(f"{where}: losses must return {', '.join(row.reports)}")
    for name, value in numbers.items():
        if not isinstance(value, Tensor) or value.ndim or not value.isfinite():
            shown = tuple(value.shape) if isinstance(value, Tensor) and value.ndim else value
            raise OwnCodeError(f"{where}: {name} must be a finite scalar tensor, got {shown}")
