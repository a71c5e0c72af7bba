"""The items of the training notes (S0)."""

from experiments.claims.item import Item

BLOCK = "section 2.2"
TRAINING = "section 3.2"
ATTENTION = "section 1"

ITEMS = (
    Item(
        "S0-01", "component", "attention with its projections inside", ATTENTION,
        "vitcli train cifar10-tiny --dry-run",
    ),
    Item(
        "S0-02", "option", "scores are divided by the square root of d_model", ATTENTION,
        "vitcli train quickstart -s model.attn_scale=embed_dim --dry-run",
    ),
    Item(
        "S0-03", "component", "queries, keys and values have one width", ATTENTION,
        "vitcli train cifar10-tiny --dry-run",
    ),
    Item(
        "S0-04", "component", "learnable projections without bias and without an output projection",
        ATTENTION, "vitcli experiments show cifar10-tiny",
    ),
    Item(
        "S0-05", "component", "cross-attention is the general form of self-attention", ATTENTION,
        "vitcli explain attention",
    ),
    Item(
        "S0-06", "theory", "queries seek, keys label, values carry the data", ATTENTION,
        "vitcli explain attention",
    ),
    Item(
        "S0-07", "claim", "a higher dot product means that query and key are more aligned",
        ATTENTION, "python experiments/claims/claims.py --check S0-07",
        "two keys of equal length that dot product and cosine rank differently; in part if this"
        " happens only to keys of unequal length",
    ),
    Item(
        "S0-08", "claim", "scaling avoids large scores", ATTENTION,
        "python experiments/claims/claims.py --check S0-08",
        "scaled scores whose spread grows with the width",
    ),
    Item(
        "S0-09", "claim", "softmax turns scores into weights that sum to 1 for each query",
        ATTENTION, "python experiments/claims/claims.py --check S0-09",
        "a negative weight, or a row that does not sum to 1, for extreme scores too",
    ),
    Item(
        "S0-10", "figure", "the attention map: a row for each query, a column for each key",
        ATTENTION, "vitcli attn-map photo.jpg --method raw",
    ),
    Item(
        "S0-11", "claim", "self-attention relates elements at any distance, without a window",
        ATTENTION, "python experiments/claims/claims.py --check S0-11",
        "a pair of tokens whose weight depends on how far apart they are, or is always 0",
    ),
    Item(
        "S0-12", "theory", "attention is a graph network on a complete graph", ATTENTION,
        "vitcli explain graph",
    ),
    Item(
        "S0-13", "component", "a block adds attention to its input", BLOCK,
        "vitcli train cifar10-tiny --dry-run",
    ),
    Item(
        "S0-14", "component", "a block adds an MLP to its input", BLOCK,
        "vitcli train cifar10-tiny --dry-run",
    ),
    Item(
        "S0-15", "option", "the block has no LayerNorm", BLOCK,
        "vitcli train quickstart -s model.norm=none --dry-run",
    ),
    Item(
        "S0-16", "claim", "the residual connection stabilises training", BLOCK,
        "vitcli ablate ablation-cifar10-full --only no-residual",
        "all trainings diverge with residual connections and none without; in part if none"
        " diverges, but accuracy drops without them",
    ),
    Item(
        "S0-17", "claim", "the residual connection helps gradients reach early layers", BLOCK,
        "python experiments/claims/claims.py --check S0-17",
        "gradients that are as strong in the first block without residual connections",
    ),
    Item(
        "S0-18", "claim", "the residual connection keeps the input features", BLOCK,
        "python experiments/claims/claims.py --check S0-18",
        "a model without residual connections whose last tokens predict the patches as well",
    ),
    Item(
        "S0-19", "result", "5 layers of width 64", TRAINING,
        "vitcli train cifar10-tiny --dry-run", "no experiment of this shape has the stated size",
    ),
    Item(
        "S0-20", "result", "learning rate 0.001, 50 epochs, about 15 minutes", TRAINING,
        "vitcli train cifar10-tiny",
        "another time than about 15 minutes for the same training on the same machine",
    ),
    Item(
        "S0-21", "result", "140,618 trainable parameters", TRAINING,
        "vitcli train cifar10-tiny --dry-run",
        "no experiment of 5 layers and width 64 has this size",
    ),
    Item(
        "S0-22", "result", "accuracy about 71.51 %", TRAINING,
        "vitcli ablate ablation-epochs --only 50-epochs",
        "an interval over at least 3 seeds that is more than 1 point from 71.51 %",
    ),
    Item(
        "S0-23", "claim", "more epochs would have helped", TRAINING,
        "vitcli ablate ablation-epochs",
        "an interval of 100 epochs minus 50, with the same seeds, below 0",
    ),
    Item(
        "S0-24", "figure", "attention map of a test image", "section 3.3",
        "vitcli attn-map photo.jpg",
    ),
    Item(
        "S0-25", "gap", "data, patches, optimiser and image size are not stated", "whole document",
        "vitcli experiments show cifar10-tiny-native",
    ),
)  # fmt: skip
