import torch, sys

sys.path.insert(0, "/tmp/w/rows")
torch.manual_seed(0)
torch.set_num_threads(1)
from types import SimpleNamespace as S
from vitcli.core.nn.attention import TokenShape, attention
from vitcli.core.nn.sparse import Strided, Local
from vitcli.core.nn.linformer import Linformer
from vitcli.core.nn.kernel_attention import *

spec = S(
    attn_scale="head_dim",
    num_heads=2,
    attn_drop=0.0,
    attn_window=3,
    attn_clamp=False,
    linformer_rank=64,
    linformer_share="heads",
    performer_features=None,
    performer_redraw=100,
)
for grid in ((4, 4), (3, 5)):
    for p in (0, 1, 3):
        shape = TokenShape(embed_dim=16, grid_size=grid, num_prefix_tokens=p)
        n = shape.num_tokens
        q, k, v = (
            torch.randn(2, 2, n, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)
        )
        for cls in (Strided, Local):
            a = cls(spec, shape).eval()
            out = a(q, k, v, None, True)
            ref = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=a.mask(), scale=8**-0.5
            )
            g1 = torch.autograd.grad(out.square().sum(), (q, k, v))
            g2 = torch.autograd.grad(ref.square().sum(), (q, k, v))
            print(
                cls.__name__,
                grid,
                p,
                (out - ref).abs().max().item(),
                max((x - y).abs().max().item() for x, y in zip(g1, g2)),
            )
        l = Linformer(spec, shape).double()
        print("linf", (l(q, k, v, None, False) - attention(q, k, v)).abs().max().item())
