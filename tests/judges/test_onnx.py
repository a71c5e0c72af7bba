"""Judge: the node tests of onnx. Their numpy operators decide layers and native kernels.

Left out are attributes that no layer here has: grouped or causal attention, soft caps, caches,
rotations of two halves or of a part of a head, GELU by tanh, and norms over several axes.
"""

from functools import cache
from typing import Any
from warnings import catch_warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tests.core.ops.test_simd import FEATURES, NEEDS, as_linear, with_tensors
from tests.core.specs import changed
from tests.judges.conftest import Judge
from vitcli.core.models.layers import make_part
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.pos_embed import Rope2d
from vitcli.core.ops.backend import Backend, attention, merge_heads
from vitcli.runner.machine.device import cpu_kind
from vitcli.runner.machine.kernels import BACKENDS

JUDGE = Judge("onnx", "Apache-2.0", "layers and native kernels", "onnx")
pytestmark = [pytest.mark.judge, pytest.mark.usefixtures("here")]
WITHIN = {"torch": 1e-6, "simd": 1e-6, "half": 0.01, "amx": 0.01}
"""Backend -> largest difference. The last two multiply bf16 numbers, which have 8 bits."""
WHOLE = ("simd", "half")
"""Backends that compute whole branches. The others compute one operator a call."""


@cache
def all_cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with catch_warnings(action="ignore"):  # some cases overflow on purpose
        return collect_testcases(None)


def cases(operator: str, *attributes: str) -> list[tuple[dict[str, Any], list[Tensor]]]:
    """Return attributes, and inputs with the output, of float cases with no other attributes."""
    onnx, found = pytest.importorskip("onnx"), []
    for case in all_cases():
        node, *others = case.model.graph.node
        options = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == operator and not others and options.keys() <= {*attributes}:
            ((inputs, outputs),) = case.data_sets
            if inputs[0].dtype == np.float32:
                arrays = (*inputs, outputs[0])
                found.append((options, [torch.from_numpy(np.asarray(each)) for each in arrays]))
    return found


def attention_cases() -> list[tuple[float, list[Tensor]]]:
    found = []
    for options, (q, k, v, *mask, out) in cases(
        "Attention", "scale", "q_num_heads", "kv_num_heads"
    ):
        heads = options.get("q_num_heads")
        if heads and heads == options["kv_num_heads"]:
            q, k, v, out = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v, out))
        if q.ndim == 4 and q.shape[1] == k.shape[1] and len(mask) < 2:
            found.append((options.get("scale", q.shape[-1] ** -0.5), [q, k, v, *mask, out]))
    return found


@pytest.fixture(params=WITHIN)
def backend(request) -> tuple[str, Backend]:
    name = request.param
    if name == "amx":
        request.getfixturevalue("native_machine")
    kind = {"half": "half", "simd": cpu_kind()}.get(name, "")
    if missing := [each for each in NEEDS.get(kind, ()) if each not in FEATURES]:
        pytest.skip(f"kernels for {name}: this CPU has no {', '.join(missing)}")
    return name, BACKENDS[name]()


def precision(name: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=name in ("half", "amx"))


def flat(pairs: list[tuple[Tensor, Tensor]], side: int) -> Tensor:
    return torch.cat([pair[side].detach().float().flatten() for pair in pairs])


def test_attention_with_masks_and_biases(agree):
    pairs = []
    for scale, (q, k, v, *mask, wanted) in attention_cases():
        bias = mask[0] if mask else None
        if bias is not None and not bias.is_floating_point():
            if not bias.any(-1).all():  # onnx gives zeros to a token that may attend to nothing
                continue
            bias = torch.zeros(bias.shape).masked_fill(~bias, -torch.inf)
        for fused in (True, False):
            pairs.append((attention(q, k, v, scale=scale, bias=bias, fused=fused), wanted))
    agree(f"Attention, {len(pairs) // 2} cases", flat(pairs, 0), flat(pairs, 1), within=1e-6)


def test_attention_of_each_backend(agree, backend):
    """Tokens hold queries, keys and values side by side, and two more queries.

    A branch also gets seven more heads, because its kernels need widths that are multiples of 16,
    and a projection that moves the parts of the tokens into their places.
    """
    (name, native), pairs = backend, []
    place = torch.zeros(3, 80, 80)
    for part in range(3):
        place[part, :24, 24 * part : 24 * (part + 1)] = torch.eye(24)
    layers = as_linear(place.flatten(0, 1), None), as_linear(torch.eye(80), None)
    for scale, (q, k, v, *mask, wanted) in attention_cases():
        if mask or q.shape != (2, 3, 4, 8) or v.shape != k.shape:
            continue
        qkv = torch.cat([merge_heads(part) for part in (pad(q, (0, 0, 0, 2)), k, v)], dim=2)
        with precision(name):
            if name in WHOLE:
                options = (10, scale, False, 4)
                out = native.attention_branch(pad(qkv, (0, 8)), nn.Identity(), *layers, *options)
                assert out is not None
            else:
                out = native.attention(qkv, 3, scale, None, False)[:, :4]
        pairs.append((out[..., :24], merge_heads(wanted)))
    what = f"Attention, {len(pairs)} cases, backend {name}"
    agree(what, flat(pairs, 0), flat(pairs, 1), WITHIN[name])


def test_gelu_of_each_backend(agree, backend):
    (name, native), pairs = backend, []
    eye = as_linear(torch.eye(16), None)
    for _, (x, wanted) in cases("Gelu"):
        with precision(name):
            if name in WHOLE:
                rows = pad(x.flatten(), (0, -x.numel() % 16)).view(-1, 16)
                out = native.ffn_branch(rows, nn.Identity(), eye, eye, False)
                assert out is not None
                out = out.flatten()[: x.numel()]
            else:
                out = native.gelu(x.bfloat16() if name == "amx" else x)
        pairs.append((out, wanted))
    what = f"Gelu, {len(pairs)} cases, backend {name}"
    agree(what, flat(pairs, 0), flat(pairs, 1), WITHIN[name])


@pytest.mark.parametrize("backend", ["torch", "amx"], indirect=True)
def test_layer_norm_of_each_backend(agree, backend):
    """The kernels of whole branches take no width below 16, which all cases have."""
    (name, native), pairs = backend, []
    for options, (x, weight, bias, wanted) in cases("LayerNormalization", "axis", "epsilon"):
        if weight.ndim == 1:
            norm = nn.LayerNorm(len(weight), options.get("epsilon", 1e-5))
            with precision(name):
                out = native.add_norm(x.flatten(0, -2), None, with_tensors(norm, weight, bias))[1]
            pairs.append((out, wanted))
    what = f"LayerNormalization, {len(pairs)} cases, backend {name}"
    agree(what, flat(pairs, 0), flat(pairs, 1), WITHIN[name])


def test_rms_norm(agree):
    pairs = []
    for options, (x, weight, wanted) in cases("RMSNormalization", "axis", "epsilon"):
        if weight.ndim == 1:
            spec = changed(norm="rms_norm", norm_eps=options.get("epsilon", 1e-5))
            norm = make_part(spec, "norm", len(weight))
            norm.weight.data = weight
            pairs.append((norm(x), wanted))
    agree(f"RMSNormalization, {len(pairs)} cases", flat(pairs, 0), flat(pairs, 1), within=1e-6)


def test_rotary_embedding(agree):
    """The layer has angles of its own; here it rotates by those of the cases."""
    rope, pairs = Rope2d(TokenShape(embed_dim=8, grid_size=(1, 3), num_prefix_tokens=0)), []
    for options, (x, cos, sin, *places, wanted) in cases("RotaryEmbedding", "interleaved"):
        if options:
            tables = ((table[places[0]] if places else table)[:, None] for table in (cos, sin))
            rope.cos, rope.sin = tables
            pairs.append((rope(x), wanted))
    agree(f"RotaryEmbedding, {len(pairs)} cases", flat(pairs, 0), flat(pairs, 1), within=1e-6)
