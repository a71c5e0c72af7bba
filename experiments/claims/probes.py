"""Classifiers without a sense of two-dimensional structure: how much of a data set do they solve?

``python experiments/claims/probes.py`` prints a table for the generated data sets of pairs.
Axes: N images, H W pixels, F features, K patches, P sets of features that are trained together.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from vitcli.core.data.source import Images
from vitcli.core.generated.data_sets import generated_set

NUM_CLASSES = 10
RATE = 3e-3
Split = tuple[Images, Images]


class Score(NamedTuple):
    """Shares of the test images: right class, right pair of classes, and right class of a pair."""

    accuracy: float
    pairs: float
    within_pairs: float


def score(logits: Tensor, labels: Tensor) -> Score:
    """Score logits (N, 10). Classes 0 and 1 are a pair, 2 and 3 are a pair, and so on."""
    best = logits.argmax(1)
    right, other = (logits.gather(1, index[:, None]) for index in (labels, labels ^ 1))
    hits = (best == labels, best // 2 == labels // 2, right > other)
    return Score(*(hit.double().mean().item() for hit in hits))


def quantities(pixels: Tensor) -> dict[str, Tensor]:
    """Return saturation, grey level and the channels, each (N, H, W) from 0 to 1."""
    colors = pixels.float() / 255
    high, low = colors.amax(1), colors.amin(1)
    saturation = (high - low) / high.clamp(min=1e-6)
    red, green, blue = colors.unbind(1)
    grey = (red + green + blue) / 3
    return {"saturation": saturation, "grey": grey, "red": red, "green": green, "blue": blue}


def profiles(pixels: Tensor) -> dict[str, Tensor]:
    """Return mean and variance of each row, and of each column, of each quantity: (N, 64) each."""
    return {
        f"{name} of {axis}": torch.cat([values.mean(dim), values.var(dim)], 1)
        for name, values in quantities(pixels).items()
        for axis, dim in (("rows", 2), ("columns", 1))
    }


def color_statistics(pixels: Tensor) -> dict[str, Tensor]:
    """Return histograms and moments of the colours of an image, each (N, F)."""
    colors = pixels.flatten(2).float() / 255
    red, green, blue = (colors * 4.999).long().unbind(1)
    levels = [quantities(pixels)[name].flatten(1) for name in ("saturation", "grey")]
    centred = colors - colors.mean(2, keepdim=True)
    covariance = centred @ centred.mT / colors.shape[2]
    moments = (colors.mean(2), covariance.flatten(1), (centred**3).mean(2), (centred**4).mean(2))
    return {
        "histograms of the channels": histograms((colors * 15.999).long().unbind(1), 16),
        "histogram of joint colours": histograms([red * 25 + green * 5 + blue], 125),
        "histograms of saturation and grey": histograms([(v * 31.999).long() for v in levels], 32),
        "moments": torch.cat(moments, 1),
    }


def histograms(bins: Iterable[Tensor], count: int) -> Tensor:
    """Return how often each of ``count`` values occurs in an image, for each (N, pixels)."""
    return torch.cat(
        [
            torch.zeros(len(each), count).scatter_add_(1, each, torch.ones(each.shape))
            for each in bins
        ],
        1,
    )


def linear_probe(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """Return logits of the test images (N, F) from a linear model with a closed solution."""
    train, test = standardize(train, test)
    targets = functional.one_hot(labels, NUM_CLASSES).float() - 1 / NUM_CLASSES
    ridge = 0.01 * len(train) * torch.eye(train.shape[1])
    return test @ torch.linalg.solve(train.T @ train + ridge, train.T @ targets)


def standardize(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each feature to mean 0 and standard deviation 1 over the training images."""
    mean, std = train.mean(-2, keepdim=True), train.std(-2, keepdim=True).clamp(min=1e-6)
    return (train - mean) / std, (test - mean) / std


def mlp_probes(
    train: Tensor, labels: Tensor, test: Tensor, epochs: int = 10, width: int = 128
) -> Tensor:
    """Train one MLP with a hidden layer on each set of features (P, N, F), and return its logits.

    The P models are independent; they only share the loop.
    """
    generator = Generator().manual_seed(0)
    train, test = standardize(train, test)
    sets, _, features = train.shape
    first = torch.randn(sets, features, width, generator=generator) / features**0.5
    last = torch.randn(sets, width, NUM_CLASSES, generator=generator) / width**0.5
    weights = [nn.Parameter(w) for w in (first, torch.zeros(sets, 1, width), last)]

    def logits(inputs: Tensor) -> Tensor:
        return functional.gelu(inputs @ weights[0] + weights[1]) @ weights[2]

    def loss(chosen: Tensor) -> Tensor:
        wanted = labels[chosen].expand(sets, -1).flatten()
        return sets * functional.cross_entropy(logits(train[:, chosen]).flatten(0, 1), wanted)

    train_by_adam(weights, loss, len(labels), epochs, generator, 250)
    with torch.no_grad():
        return logits(test)


def bag_probe(
    train: Images, test: Images, patch_size: int = 4, epochs: int = 8, width: int = 64
) -> Tensor:
    """Train a network on single patches and pool its outputs; return logits of the test images.

    Mean and maximum over all patches do not show where a patch is.
    """
    generator = Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = nn.Linear(3 * patch_size**2, 2 * width), nn.Linear(2 * width, width)
        body = nn.Sequential(hidden[0], nn.GELU(), hidden[1], nn.GELU())
        head = nn.Linear(2 * width, NUM_CLASSES)

    def logits(pixels: Tensor) -> Tensor:
        patches = functional.unfold(pixels / 127.5 - 1, patch_size, stride=patch_size)
        outputs = body(patches.transpose(1, 2))
        return head(torch.cat([outputs.mean(1), outputs.amax(1)], 1))

    def loss(chosen: Tensor) -> Tensor:
        return functional.cross_entropy(logits(train.pixels[chosen]), train.labels[chosen])

    weights = [*body.parameters(), *head.parameters()]
    train_by_adam(weights, loss, len(train), epochs, generator, 100)
    with torch.no_grad():
        return torch.cat([logits(part) for part in test.pixels.split(250)])


def train_by_adam(
    weights: list[nn.Parameter],
    loss: Callable[[Tensor], Tensor],
    num_images: int,
    epochs: int,
    generator: Generator,
    batch_size: int,
) -> None:
    """Minimise the loss of batches of image numbers, with one cycle of the learning rate."""
    steps = num_images // batch_size
    optimizer = torch.optim.AdamW(weights, lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps * epochs)
    for _ in range(epochs):
        order = torch.randperm(num_images, generator=generator)
        for chosen in order[: steps * batch_size].view(steps, batch_size):
            optimizer.zero_grad()
            loss(chosen).backward()
            optimizer.step()
            schedule.step()


def probe_profiles(data: Split, epochs: int = 10) -> dict[str, Score]:
    """Return the scores of a linear model and of an MLP on each profile, and on all together."""
    train, test = data
    given, asked = (list(profiles(split.pixels).values()) for split in data)
    names = list(profiles(test.pixels[:2]))
    mlps = mlp_probes(torch.stack(given), train.labels, torch.stack(asked), epochs)
    found = {f"MLP on {name}": each for name, each in zip(names, mlps, strict=True)}
    for name, one, other in zip(names, given, asked, strict=True):
        found[f"linear on {name}"] = linear_probe(one, train.labels, other)
    return {name: score(logits, test.labels) for name, logits in found.items()}


def probe_all_profiles(data: Split, epochs: int = 8) -> Score:
    """Return the score of an MLP that sees all profiles at once."""
    given, asked = (torch.cat(list(profiles(split.pixels).values()), 1)[None] for split in data)
    return score(mlp_probes(given, data[0].labels, asked, epochs)[0], data[1].labels)


def probe_colors(data: Split, epochs: int = 6) -> dict[str, Score]:
    """Return the scores of a linear model and of an MLP on each statistic of the colours."""
    train, test = data
    given, asked = (color_statistics(split.pixels) for split in data)
    found = {}
    for name in given:
        found[f"linear on {name}"] = linear_probe(given[name], train.labels, asked[name])
        sets = given[name][None], train.labels, asked[name][None]
        found[f"MLP on {name}"] = mlp_probes(*sets, epochs)[0]
    return {name: score(logits, test.labels) for name, logits in found.items()}


def probe_pixels(data: Split) -> dict[str, Score]:
    """Return the scores of linear models on the pixels and on the saturation of each pixel."""
    train, test = data
    colors = [split.pixels.flatten(1).float() for split in data]
    levels = [quantities(split.pixels)["saturation"].flatten(1) for split in data]
    return {
        f"linear on {name}": score(linear_probe(given, train.labels, asked), test.labels)
        for name, (given, asked) in (("pixels", colors), ("saturation of pixels", levels))
    }


def probe_patches(data: Split, patch_size: int = 4, epochs: int = 8) -> Score:
    """Return the score of a bag of patches."""
    return score(bag_probe(*data, patch_size, epochs), data[1].labels)


def best(scores: dict[str, Score]) -> tuple[str, Score]:
    return max(scores.items(), key=lambda item: item[1].accuracy)


def table_rows(name: str, data: Split) -> Iterator[str]:
    """Yield a Markdown row for the best probe of each kind, as soon as it is trained."""
    kinds: list[Callable[[], tuple[str, Score]]] = [
        lambda: best(probe_profiles(data, 30)),
        lambda: ("MLP on all profiles", probe_all_profiles(data, 12)),
        lambda: best(probe_colors(data, 20)),
        lambda: best(probe_pixels(data)),
        lambda: ("bag of 4x4 patches", probe_patches(data, 4, 12)),
        lambda: ("bag of 8x8 patches", probe_patches(data, 8, 12)),
    ]
    for kind in kinds:
        probe, found = kind()
        shares = (f"{100 * share:.1f} %" for share in found)
        yield f"| {' | '.join([f'`{name}`', probe, *shares])} |"


def main() -> None:
    """Print the best probe of each kind as a Markdown table."""
    sys.stdout.write(
        "| data set | probe | accuracy | pairs | within pairs |\n|---|---|---|---|---|\n"
    )
    for name in ("scenes", "shapes"):
        for line in table_rows(name, generated_set(name).draw(10_000, 2_000)):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
