import torch, sys

sys.path.insert(0, "/tmp/w/rows")
from tests.core.test_attention_rows import estimate
import math

for seed in range(6):
    torch.manual_seed(seed)
    q, k = (0.25 * torch.randn(16, 32, dtype=torch.float64) for _ in range(2))
    exact = (q @ k.T * 32**-0.5).exp()
    draws = torch.stack([estimate(q, k, 64) for _ in range(400)])
    se = draws.std(dim=0) / math.sqrt(400)
    e = (draws.mean(dim=0) - exact) / se
    print(
        e.square().mean().sqrt().item(),
        e.abs().max().item(),
        ((draws.mean(0) * 1.02 - exact) / se).square().mean().sqrt().item(),
        (draws.std(0) / exact).mean().item(),
    )
