"""Shallow classifiers that see no two-dimensional structure, to measure how far such clues lead.

Axes: N images, C channels, H W pixels, F features, P probes trained side by side, K patches.
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from vitcli.core.data.source import Images

NUM_CLASSES = 10
RIDGE = 1.0
"""Weight of the squared coefficients, for standardised features."""


def quantities(pixels: Tensor) -> dict[str, Tensor]:
    """Return saturation, grey level and each channel as (N, H, W), from 0 to 1."""
    colors = pixels.float() / 255
    high, low = colors.amax(1), colors.amin(1)
    saturation = (high - low) / high.clamp(min=1e-6)
    names = ("red", "green", "blue")
    return {
        "saturation": saturation,
        "grey": colors.mean(1),
        **{name: colors[:, channel] for channel, name in enumerate(names)},
    }


def profiles(pixels: Tensor) -> dict[str, Tensor]:
    """Return mean and variance of each row and of each column, of every quantity: (N, 64) each."""
    return {
        f"{name} of {axis}": torch.cat([values.mean(dim), values.var(dim)], 1)
        for name, values in quantities(pixels).items()
        for axis, dim in (("rows", 2), ("columns", 1))
    }


def color_statistics(pixels: Tensor) -> dict[str, Tensor]:
    """Return histograms and moments of the colours of whole images."""
    colors = pixels.float() / 255
    flat = colors.flatten(2)
    fine = (flat * 15.999).long() + 16 * torch.arange(3)[:, None]
    joint = (flat * 4.999).long()
    cube = joint[:, 0] * 25 + joint[:, 1] * 5 + joint[:, 2]
    centred = flat - flat.mean(2, keepdim=True)
    products = torch.einsum("ncp,ndp->ncd", centred, centred) / flat.shape[2]
    moments = [flat.mean(2), products.flatten(1), (centred**3).mean(2), (centred**4).mean(2)]
    levels = torch.stack([quantities(pixels)[name] for name in ("saturation", "grey")], 1)
    level_bins = (levels.flatten(2) * 31.999).long() + 32 * torch.arange(2)[:, None]
    return {
        "histogram of each channel": histogram(fine.flatten(1), 48),
        "joint histogram": histogram(cube, 125),
        "histogram of saturation and grey": histogram(level_bins.flatten(1), 64),
        "moments": torch.cat(moments, 1),
    }


def histogram(bins: Tensor, count: int) -> Tensor:
    """Return how often each bin occurs in each image, from (N, pixels) to (N, count)."""
    counts = torch.zeros(len(bins), count)
    return counts.scatter_add_(1, bins, torch.ones(bins.shape)) / bins.shape[1]


def standardized(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each feature to mean 0 and deviation 1 over the training images."""
    mean, std = train.mean(-2, keepdim=True), train.std(-2, keepdim=True).clamp(min=1e-6)
    return (train - mean) / std, (test - mean) / std


def ridge_logits(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """Fit a linear classifier in closed form, and return its scores for the test images."""
    train, test = standardized(train, test)
    targets = functional.one_hot(labels, NUM_CLASSES).float() - 1 / NUM_CLASSES
    gram = train.T @ train + RIDGE * len(train) / 100 * torch.eye(train.shape[1])
    return test @ torch.linalg.solve(gram, train.T @ targets)


def mlp_logits(
    train: Tensor, labels: Tensor, test: Tensor, epochs: int = 20, width: int = 128
) -> Tensor:
    """Train an MLP with one hidden layer on each of P sets of features, all in one loop.

    Args:
        train: The features of the training images (P, N, F).
        labels: (N,).
        test: The features of the test images (P, M, F).
        epochs: Number of passes over the training images.
        width: Number of hidden units.

    Returns:
        The scores of the test images (P, M, NUM_CLASSES).
    """
    train, test = standardized(train, test)
    generator = Generator().manual_seed(0)
    probes, _, features = train.shape
    shapes = ((probes, features, width), (probes, 1, width), (probes, width, NUM_CLASSES))
    scales = (features**-0.5, 0.0, width**-0.5)
    weights = [
        nn.Parameter(torch.randn(shape, generator=generator) * scale)
        for shape, scale in zip(shapes, scales, strict=True)
    ]

    def forward(inputs: Tensor) -> Tensor:
        return functional.gelu(inputs @ weights[0] + weights[1]) @ weights[2]

    def loss(chosen: Tensor) -> Tensor:
        logits = forward(train[:, chosen]).flatten(0, 1)
        return probes * functional.cross_entropy(logits, labels[chosen].repeat(probes))

    descend(weights, loss, len(labels), epochs, 3e-3, generator)
    with torch.no_grad():
        return forward(test)


def descend(weights, loss, num_images, epochs, rate, generator, batch_size=250):  # type: ignore[no-untyped-def]
    steps = epochs * (num_images // batch_size)
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(num_images, generator=generator)
        for chosen in order[: num_images - num_images % batch_size].view(-1, batch_size):
            optimizer.zero_grad()
            loss(chosen).backward()
            optimizer.step()
            schedule.step()


def bag_logits(train: Images, test: Images, patch: int, epochs: int = 8, width: int = 64) -> Tensor:
    """Train a small net on single patches, whose outputs are pooled over all patches of an image.

    It cannot know where a patch is. Returns the scores of the test images.
    """
    generator = Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(
            nn.Linear(3 * patch**2, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.GELU()
        )
        head = nn.Linear(2 * width, NUM_CLASSES)

    def forward(pixels: Tensor) -> Tensor:
        values = body(patches(pixels, patch))
        return head(torch.cat([values.mean(1), values.amax(1)], 1))

    def loss(chosen: Tensor) -> Tensor:
        return functional.cross_entropy(forward(train.pixels[chosen]), train.labels[chosen])

    descend([*body.parameters(), *head.parameters()], loss, len(train), epochs, 3e-3, generator, 100)
    with torch.no_grad():
        return torch.cat([forward(part) for part in test.pixels.split(500)])


def patches(pixels: Tensor, size: int) -> Tensor:
    """Return the pixels of each patch (N, K, 3 * size * size), from -1 to 1."""
    cut = functional.unfold(pixels.float() / 127.5 - 1, size, stride=size)
    return cut.transpose(1, 2)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(-1) == labels).double().mean().item()


def pair_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return how often the pair is right; classes 0 and 1 are a pair, 2 and 3, and so on."""
    return accuracy_of(logits.argmax(-1) // 2, labels // 2)


def accuracy_of(found: Tensor, wanted: Tensor) -> float:
    return (found == wanted).double().mean().item()


def accuracy_within_pairs(logits: Tensor, labels: Tensor) -> float:
    """Return how often the right class has a higher score than the other class of its pair."""
    right, other = (logits.gather(1, index[:, None]) for index in (labels, labels ^ 1))
    return ((right > other).double() + (right == other).double() / 2).mean().item()
