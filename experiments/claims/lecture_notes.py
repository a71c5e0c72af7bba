"""The items of the lecture notes (S1)."""

from experiments.claims.item import Item

CONVOLUTION = "convolution and Vision Transformers"
SCALED = "scaled attention"
HEADS = "multi-head attention"
NORMS = "batch norm and layer norm"

ITEMS = (
    Item(
        "S1-01", "claim", "a convolution is local and relates no distant places",
        CONVOLUTION, "python experiments/claims/claims.py --check S1-01",
        "an output that depends on a pixel outside the filter, or distant outputs that share one",
    ),
    Item(
        "S1-02", "claim", "a ViT captures global relations of an image", CONVOLUTION,
        "vitcli visualize cifar10-pocket --what distance,faithfulness --num-images 1000",
        "trained attention that reaches no farther than untrained attention, whatever the initial"
        " weights; in part if it depends on them",
    ),
    Item(
        "S1-03", "figure", "how one patch is related to any other", CONVOLUTION,
        "vitcli attn-map photo.jpg --query 0.5,0.5",
    ),
    Item(
        "S1-04", "theory", "an image becomes a sequence of embedded patches", CONVOLUTION,
        "vitcli explain patches",
    ),
    Item("S1-05", "theory", "what a transformer is", CONVOLUTION, "vitcli explain"),
    Item(
        "S1-06", "component", "scores of p patches and CLS: (p+1, p+1)", SCALED,
        "vitcli attn-map photo.jpg --method raw",
    ),
    Item(
        "S1-07", "theory", "the attention matrix is a weighted average", SCALED,
        "vitcli explain average",
    ),
    Item(
        "S1-08", "component", "division by the square root of the width", SCALED,
        "vitcli explain scale",
    ),
    Item(
        "S1-09", "claim",
        "the variance of the scores grows with the width; scaled, it is about Var(Q) and Var(K)",
        SCALED, "python experiments/claims/claims.py --check S1-09",
        "a scaled variance other than that of queries and keys; in part if it is theirs for unit"
        " variance only",
    ),
    Item(
        "S1-10", "component", "softmax of the scaled scores", SCALED, "vitcli explain attention",
    ),
    Item(
        "S1-11", "component", "the output has the shape of the input", SCALED,
        "vitcli explain attention",
    ),
    Item("S1-12", "component", "scaled dot-product attention", SCALED, "vitcli explain attention"),
    Item(
        "S1-13", "theory", "values are a projection of the data", SCALED,
        "vitcli explain attention",
    ),
    Item(
        "S1-14", "figure", "the row [0.2 0.3 0.5] as a weighted average", SCALED,
        "vitcli explain average",
    ),
    Item(
        "S1-15", "component", "12 heads of width 64 from 768 channels", HEADS,
        "vitcli train quickstart -s model.num_heads=2 --dry-run",
    ),
    Item(
        "S1-16", "component", "number of blocks", HEADS,
        "vitcli train quickstart -s model.depth=3 --dry-run",
    ),
    Item(
        "S1-17", "figure", "a map for each block and each head", HEADS,
        "vitcli attn-map photo.jpg --method head",
    ),
    Item(
        "S1-18", "component", "the classifier", HEADS, "vitcli train cifar10-tiny --dry-run",
    ),
    Item(
        "S1-19", "option", "batch norm: mean and variance across the batch", NORMS,
        "vitcli train quickstart -s model.norm=batch_norm --dry-run",
    ),
    Item(
        "S1-20", "option", "layer norm: each sample alone, nothing stored", NORMS,
        "vitcli explain norms",
    ),
    Item(
        "S1-21", "claim",
        "batch norm is hard with sequences of different lengths, fails with small batches and is"
        " hard to parallelise", NORMS, "python experiments/claims/claims.py --check S1-21",
        "statistics of a small, padded or divided batch that equal those of the whole one",
    ),
    Item(
        "S1-22", "component", "layer norm over the embedding of each token", NORMS,
        "vitcli explain norms",
    ),
)  # fmt: skip
