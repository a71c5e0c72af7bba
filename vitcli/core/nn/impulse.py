"""Initial weights with which each head of a Vision Transformer attends to one neighbouring patch.

Zheng et al. 2025, https://arxiv.org/abs/2505.19985. Axes: P patches of the grid, D embed_dim,
d width of a head, r directions of the positions.
"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from vitcli.core.nn.attention import SelfAttention
from vitcli.core.nn.init import mimetic_values, trunc_normal
from vitcli.core.nn.pos_embed import Learned, grid_positions
from vitcli.core.randomness import Draws

SIDE = 3
"""Side of the filter that a head is an impulse of."""
POSITION_FACTOR = 18.0
"""Factor of the learned positions, so that they outweigh the embedded pixels."""
NORM = 7.0
"""Frobenius norm of a head's W_q and W_k, which sets how sharp the attention is."""
NOISE = 0.0018
"""Standard deviation of the noise on the wanted scores. It decides between equal directions."""
MIN_SPREAD = 0.5
"""A direction of the positions is used if its singular value is this share of their RMS or more."""

Shift = tuple[int, int]


def impulse(model: nn.Module, draws: Draws) -> None:
    """Make the attention between positions a random impulse filter in each head.

    Each head has an offset of a 3x3 neighbourhood. W_q and W_k are factors of a matrix A for which
    the scores P A P^T of the normalised positions P approximate 1 at this offset and 0 elsewhere.
    W_v and W_proj start as in ``mimetic``, learned positions are 18 times as large as in
    ``trunc_normal``, and all other tensors start as in ``trunc_normal``.

    Zheng et al. 2025, https://arxiv.org/abs/2505.19985; factors, norms and noise are those of the
    authors' code. Deviations: the offsets are drawn for each layer, all nine before one repeats;
    the authors' code takes them in one fixed order. The authors project the scores onto the d
    strongest directions of the positions and factor the result. On small grids with narrow heads
    this loses the offset, so here the scores are projected onto all directions that are not weak
    (``MIN_SPREAD``), and then the best factors of rank d are taken. Rows of W_q and W_k beyond this
    rank stay as in ``trunc_normal``. Scores from and to CLS and registers are not shaped.
    """
    trunc_normal(model, draws)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, SelfAttention)}
    for module in model.modules():
        if isinstance(module, Learned):
            module.table.data.mul_(POSITION_FACTOR)
    for name, layer in layers.items():
        table = model.pos_embed()[0].detach()  # type: ignore[operator]
        grid: tuple[int, int] = model.grid_size  # type: ignore[assignment]
        shape_scores(layer, table[-grid[0] * grid[1] :], grid, draws(f"{name}.qkv.weight"))
        mimetic_values(layer, draws(f"{name}.proj.weight"))


@torch.no_grad()
def shape_scores(layer: SelfAttention, table: Tensor, grid: tuple[int, int], g: Generator) -> None:
    """Fill the q and k parts of qkv for the positions of the patches, (P, D), and new offsets."""
    q, k, _ = layer.qkv.weight.chunk(3)
    dim = q.shape[0] // layer.num_heads
    positions = F.layer_norm(table, table.shape[-1:])
    for head, shift in enumerate(draw_shifts(layer.num_heads, g)):
        noise = NOISE * torch.randn(len(table), len(table), generator=g)
        found = factor(positions, moves(grid, shift) + noise, dim)
        for weight, part in zip((q, k), found, strict=True):
            weight[head * dim : head * dim + len(part)] = NORM * part / part.norm()


def draw_shifts(count: int, g: Generator) -> list[Shift]:
    """Return an offset (rows, columns) for each head: all of a filter before one repeats."""
    cells: list[int] = []
    while len(cells) < count:
        cells += torch.randperm(SIDE**2, generator=g).tolist()
    return [(cell // SIDE - SIDE // 2, cell % SIDE - SIDE // 2) for cell in cells[:count]]


def moves(grid: tuple[int, int], shift: Shift) -> Tensor:
    """Return a matrix (P, P) of 1 where the column's patch is the row's patch plus the shift.

    The row of a patch whose neighbour lies outside the grid is 0.
    """
    rows, columns = grid_positions(grid)
    down, right = rows[None] - rows[:, None], columns[None] - columns[:, None]
    return ((down == shift[0]) & (right == shift[1])).float()


def factor(positions: Tensor, scores: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return W_q and W_k, each (r, D) with r <= rank: P W_q^T W_k P^T approximates the scores.

    The positions P are (P, D), the scores (P, P). In the directions of the positions that are not
    weak, the approximation is the best of this rank (Eckart and Young 1936).
    """
    left, values, right = torch.linalg.svd(positions, full_matrices=False)
    strong = values >= MIN_SPREAD * values.square().mean().sqrt()
    left, inverse = left[:, strong], right[strong].mT / values[strong]  # (P, s), (D, s)
    out, gains, into = torch.linalg.svd(left.mT @ scores @ left)
    roots = gains[:rank].sqrt()
    return (inverse @ out[:, :rank] * roots).mT, (inverse @ into[:rank].mT * roots).mT
