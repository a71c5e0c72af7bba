"""Optimisers and their groups: vectors, positions, CLS and registers have no weight decay.

Muon updates all matrices of one shape together. torch.optim.Muon updates matrix by matrix: on a
GPU, that is dozens of small kernels per matrix. It also multiplies in bf16, which CPUs without AMX
or AVX512-BF16 emulate slowly. Axes: K matrices of one shape, R rows, S columns.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import OPTIMIZERS, OptimSpec
from vitcli.core.spec.rows import make, options_of
from vitcli.core.torch_use import without_compiler

Groups = list[dict[str, Any]]


class Trained(NamedTuple):
    """A parameter that is trained."""

    name: str
    parameter: Parameter
    share: float
    """Its learning rate as a share of the optimiser's."""


Named = Sequence[Trained]
POSITIONS = "pos_embed", "inner.position.", "relative"
UNDECAYED = (*POSITIONS, "cls_token", "reg_token", "dist_token", "temperature")
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""State that has the shape of its parameter."""
NUMBERS = {"int": int, "float": float, "bool": bool}
NAMED = "keep an optimiser's state as self.state[p][NAME], NAME a text without ':'"
BACKBONE = "backbone"
"""The value of ``train.freeze`` for all layers before the head."""


def freeze(model: nn.Module, chosen: int | str) -> None:
    """Let no gradient reach the parameters that ``train.freeze`` names."""
    assert isinstance(model, ImageModel), "the spec lets only a classification freeze"
    names = [name for name, _ in model.named_parameters()]
    if isinstance(chosen, int):
        layers = zip(names, model.parameter_layers(), strict=True)
        frozen = {name for name, layer in layers if layer <= chosen}
    elif chosen == BACKBONE:
        frozen = {*names} - model.head_names
    else:
        frozen = {n for n in names if re.search(chosen, n)}
    if not frozen or len(frozen) == len(names):
        which = "no parameter" if not frozen else "every parameter"
        raise ValueError(f"train.freeze: {chosen!r} names {which} of the model")
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)


def is_decayed(name: str, parameter: Parameter) -> bool:
    """Return whether a parameter has weight decay: matrices and filters do, all others do not."""
    return parameter.ndim > 1 and not any(part in name for part in UNDECAYED)


def is_hidden_matrix(name: str, parameter: Parameter) -> bool:
    """Return whether Muon trains a parameter: the matrices inside blocks, not between stages."""
    return ".blocks." in f".{name}" and parameter.ndim == 2 and is_decayed(name, parameter)


def is_filter(name: str, parameter: Parameter) -> bool:
    """Return whether a parameter holds convolution filters that mix channels: (out, in, h, w)."""
    return parameter.ndim == 4 and parameter.shape[1] > 1 and is_decayed(name, parameter)


def param_groups(named: Named, spec: OptimSpec, lr: float) -> Groups:
    """Return groups with and without weight decay; the schedule scales their ``peak_lr``.

    With ``optim.layer_decay`` d, layer i of L has the rate lr d^(L - i), and groups of its own:
    BEiT, Bao et al. 2021, https://arxiv.org/abs/2106.08254
    """
    groups: dict[tuple[float, bool], list[Parameter]] = {}
    for name, parameter, share in named:
        decays = spec.decay_all or is_decayed(name, parameter)
        groups.setdefault((share, not decays), []).append(parameter)
    return [
        {
            "params": params,
            "weight_decay": 0.0 if kept else spec.weight_decay,
            "lr": lr * share,
            "peak_lr": lr * share,
        }
        for (share, kept), params in sorted(groups.items(), key=lambda item: item[0])
    ]


class BatchedMuon(torch.optim.Muon):
    """torch's Muon for all matrices of one shape together; on a CPU, in fp32.

    Filters (out, in, h, w) are matrices (out, in h w). They come by ``add_param_group``.
    The learning rate may be a tensor. A ``torch.amp.GradScaler`` that has found infinite gradients
    leaves matrices and momentum unchanged, without the host.
    """

    _step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        assert closure is None
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)
        return None

    def _update(self, parameters: Sequence[Parameter], group: dict[str, Any]) -> None:
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        lr, overflow = group["lr"], getattr(self, "found_inf", None)
        if overflow is not None:  # along its own momentum and at rate 0, a step changes nothing
            chosen = torch.where(overflow.bool(), torch.stack(buffers), torch.stack(gradients))
            gradients, lr = list(chosen.unbind()), lr * (1 - overflow)
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        updates = buffers
        if group["nesterov"]:
            updates = list(torch._foreach_lerp(gradients, buffers, group["momentum"]))
        matrices = torch.stack(tuple(updates)).flatten(2)
        rows, columns = matrices.shape[1:]
        rate = lr * math.sqrt(max(1, rows / columns))
        options = group["ns_coefficients"], group["ns_steps"], group["eps"]
        if matrices.device.type == "cpu":
            directions = orthogonalize(matrices, *options)
        else:
            found = orthogonalize(matrices.bfloat16(), *options)
            directions = found.to(matrices.dtype, memory_format=torch.contiguous_format)
        if isinstance(rate, Tensor):
            rate, directions = 1, directions * rate
        directions = directions.view(len(parameters), *parameters[0].shape)
        weights: list[Tensor] = list(parameters)
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        torch._foreach_sub_(weights, directions.unbind(), alpha=rate)


def orthogonalize(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return matrices (K, R, S) with singular values near 1, by Newton-Schulz iterations."""
    a, b, c = coefficients
    is_tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.mT if is_tall else matrices
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.mT
        update = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        found = torch.baddbmm(found, update, found, beta=a)
    return found.mT if is_tall else found


AdamW, Adam = without_compiler(torch.optim.AdamW), without_compiler(torch.optim.Adam)
SGD, Muon = without_compiler(torch.optim.SGD), without_compiler(BatchedMuon)


def fill_memory(named: Named) -> bool:
    """Return whether no parameter is a part such as ``w[:, :3]``.

    On a CPU, a fused optimiser sees no strides: it would change other numbers of ``w``.
    """
    return all(p.stride() == torch.empty_like(p).stride() for _, p, _ in named)


def adamw(named: Named, spec: OptimSpec) -> list[Optimizer]:
    """Return AdamW. Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101"""
    groups = param_groups(named, spec, spec.lr)
    return [AdamW(groups, betas=spec.betas, eps=spec.eps, fused=fill_memory(named))]


def adam(named: Named, spec: OptimSpec) -> list[Optimizer]:
    """Return Adam; ``weight_decay`` is an L2 penalty.

    Kingma and Ba 2015, https://arxiv.org/abs/1412.6980
    """
    groups = param_groups(named, spec, spec.lr)
    return [Adam(groups, betas=spec.betas, eps=spec.eps, fused=fill_memory(named))]


def sgd(named: Named, spec: OptimSpec) -> list[Optimizer]:
    """Return SGD with (Nesterov) momentum, in which weight decay is an L2 penalty."""
    groups = param_groups(named, spec, spec.lr)
    nesterov = spec.nesterov and spec.momentum > 0
    fused = fill_memory(named)
    made = SGD(groups, momentum=spec.momentum, nesterov=nesterov, fused=fused)
    made.register_step_pre_hook(begin_momentum)
    return [made]


def begin_momentum(optimizer: Optimizer, *_: object) -> None:
    """Start momentum at zero in fp16: torch does not define it if the first step is skipped."""
    if not hasattr(optimizer, "found_inf"):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            is_missing = "momentum_buffer" not in optimizer.state[parameter]
            if group["momentum"] and parameter.grad is not None and is_missing:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def muon(named: Named, spec: OptimSpec) -> list[Optimizer]:
    """Return Muon for the hidden matrices and AdamW for the other parameters.

    The authors take the "2D parameters of hidden layers", and leave embeddings, head, gains and
    biases to AdamW. Linformer's E and F are linear maps inside a layer, so Muon trains them. The
    fused qkv matrix and the projections of several heads are each orthogonalised as one matrix.

    Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/

    With ``muon_filter_lr`` it trains convolution filters too, as airbench94_muon does
    (https://github.com/KellerJordan/cifar10-airbench). Deviation: the filters keep their norms.
    """
    hidden = [each for each in named if is_hidden_matrix(each.name, each.parameter)]
    with_filters = spec.muon_filter_lr is not None
    filters = [each for each in named if with_filters and is_filter(each.name, each.parameter)]
    taken = {each.name for each in (*hidden, *filters)}
    rest = [each for each in named if each.name not in taken]
    if not hidden:
        raise ValueError(
            "optim.name: muon trains the matrices of transformer blocks, and train.freeze leaves"
            " none of them; take adamw"
        )
    if with_filters and not filters:
        raise ValueError("optim.muon_filter_lr: the model trains no convolution filters; unset it")
    groups = param_groups(hidden, spec, spec.muon_lr)
    made = Muon(groups, momentum=spec.muon_momentum, nesterov=True)
    for group in param_groups(filters, spec, spec.muon_filter_lr or 0):
        made.add_param_group(group)
    return [made, *(adamw(rest, spec) if rest else ())]


def own_optimizer(
    build: Callable[..., Optimizer],
    given: Sequence[str],
    named: Named,
    spec: OptimSpec,
    **options: Any,
) -> list[Optimizer]:
    """Return an optimiser of the user's class, which takes the ``given`` fields of ``spec``."""
    fields = {field: getattr(spec, field) for field in given}
    return [build(param_groups(named, spec, spec.lr), spec.lr, **fields, **options)]


def build_optimizers(model: nn.Module, spec: OptimSpec) -> list[Optimizer]:
    """Return one optimiser, or two if the parameters need different ones."""
    parameters = dict(model.named_parameters())
    depth = model.parameter_layers() if isinstance(model, ImageModel) else [0] * len(parameters)
    named = [
        Trained(name, parameter, spec.layer_decay ** (max(depth) - layer))
        for (name, parameter), layer in zip(parameters.items(), depth, strict=True)
        if parameter.requires_grad
    ]
    row, options = OPTIMIZERS[spec.name], options_of(spec.name)
    optimizers: list[Optimizer] = make(row, named, spec, **options)
    return optimizers


def set_learning_rates(optimizers: Sequence[Optimizer], rates: Sequence[float | Tensor]) -> None:
    groups = [group for o in optimizers for group in o.param_groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate


def update(
    optimizers: Sequence[Optimizer],
    max_grad_norm: float | None,
    scaler: torch.amp.GradScaler | None,
) -> Tensor:
    """Clip the gradient and take a step; return the gradient's norm before clipping."""
    if scaler:
        unscale(scaler, optimizers)
    grad_norm = total_norm(gradients(optimizers))
    if max_grad_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters(optimizers), max_grad_norm, grad_norm)
    for optimizer in optimizers:
        scaler.step(optimizer) if scaler else optimizer.step()
    if scaler:
        scaler.update()
    return grad_norm


def parameters(optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
    return [p for o in optimizers for group in o.param_groups for p in group["params"]]


def gradients(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    return [p.grad for p in parameters(optimizers) if p.grad is not None]


def unscale(scaler: torch.amp.GradScaler, optimizers: Sequence[Optimizer]) -> None:
    """Divide the gradients by the scale. If one is not finite, all optimisers skip the step.

    The scaler alone would skip only the optimiser of that gradient. The decision stays on the
    device, so the host does not wait.
    """
    scaler._per_optimizer_states.clear()  # a CUDA graph that failed may have left some
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    flags = [flag for o in optimizers for flag in scaler._found_inf_per_device(o).values()]
    if len(flags) > 1:
        together = torch.stack(flags).amax()
        for flag in flags:
            flag.copy_(together)


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together.

    On CUDA, torch's ``get_total_norm`` copies a table from the host in every call. This form does
    not, so that a CUDA graph can contain it.
    """
    if gradients[0].device.type != "cuda":
        return nn.utils.get_total_norm(gradients)
    return torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))


def state_tensors(optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return the optimisers' state as ``<optimiser>.<parameter>.<name>`` -> tensor.

    A number of Python becomes a tensor whose name ends in its type, such as ``step:int``.

    Raises:
        TypeError: An optimiser keeps an object that is neither a tensor nor a number.
    """
    tensors = dict[str, Tensor]()
    for i, optimizer in enumerate(optimizers):
        for place, values in optimizer.state_dict()["state"].items():
            if not isinstance(place, int) or not isinstance(values, dict):
                raise TypeError(NAMED)
            for name, value in values.items():
                kind = type(value).__name__
                if not isinstance(name, str) or ":" in name:
                    raise TypeError(NAMED)
                if isinstance(value, Tensor):
                    tensors[f"{i}.{place}.{name}"] = value
                elif kind in NUMBERS:
                    dtype = torch.float64 if kind == "float" else torch.int64
                    tensors[f"{i}.{place}.{name}:{kind}"] = torch.tensor(value, dtype=dtype)
                elif value is not None:
                    raise TypeError(f"the optimiser's state has a {kind}; keep tensors or numbers")
    return tensors


def load_state_tensors(optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]) -> None:
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    for name, tensor in tensors.items():
        i, index, key = name.split(".", 2)
        key, _, kind = key.partition(":")
        value = NUMBERS[kind](tensor.item()) if kind in NUMBERS else tensor
        states[int(i)].setdefault(int(index), {})[key] = value
    for optimizer, state in zip(optimizers, states, strict=True):
        params = parameters([optimizer])
        is_own = not type(optimizer).__module__.startswith(("vitcli.", "torch."))
        for place, entry in state.items():
            sizes = {entry[name].numel() for name in MOMENTS if name in entry}
            if sizes and not is_own and sizes != {params[place].numel()}:
                raise ValueError(f"the optimiser's state {place} belongs to another parameter")
            for key, value in entry.items():
                entry[key] = _in_memory_order(value, params[place])
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
        for place, entry in state.items():
            loaded = optimizer.state[params[place]]
            for key, value in entry.items():  # torch has cast tensors to the parameter's type
                if isinstance(value, Tensor):
                    loaded[key] = value.to(loaded[key].device)


def _in_memory_order(value: Any, parameter: Parameter) -> Any:
    if not isinstance(value, Tensor) or value.shape != parameter.shape or parameter.is_contiguous():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
