"""The items of the course report (S2)."""

from experiments.claims.item import Item

ITEMS = (
    Item(
        "S2-01", "component",
        "self-attention, multi-head attention and a full encoder from scratch", "abstract",
        "vitcli train cifar10-small --dry-run",
    ),
    Item(
        "S2-02", "claim",
        "a ViT competes with convolutional networks, and its maps make it interpretable",
        "abstract", "vitcli ablate classification-cifar10-short",
        "an equal training in which the ViT ends more than 2.4 points below the ResNet, the gap of"
        " the report, and attention maps that find the deciding patches less well than random maps"
        " or a map of the centre; in part if only one of the two",
    ),
    Item(
        "S2-03", "figure", "learned attention patterns across image regions", "abstract",
        "vitcli attn-map photo.jpg",
    ),
    Item(
        "S2-04", "component", "CIFAR-10: 32x32 images, ten classes", "section I.B",
        "vitcli data info cifar10",
    ),
    Item(
        "S2-05", "component", "attention, heads, FFN, LayerNorm, positions, encoder",
        "section I.B", "vitcli train cifar10-small --dry-run",
    ),
    Item(
        "S2-06", "theory", "four challenges: cost, positions, optimisation, images",
        "section I.C", "vitcli explain",
    ),
    Item(
        "S2-07", "component", "scaled dot-product attention that returns output and weights",
        "section II.A", "vitcli explain attention",
    ),
    Item(
        "S2-08", "component", "a mask whose zeros remove scores", "section II.A",
        "vitcli train quickstart -s model.attn_mask_diagonal=true --dry-run",
    ),
    Item(
        "S2-09", "claim", "attention costs O(n^2 d)", "section II.A",
        "python experiments/claims/claims.py --check S2-09",
        "a count of operations that grows faster or more slowly",
    ),
    Item(
        "S2-10", "component", "multi-head attention with four projections with bias",
        "section II.A", "vitcli train cifar10-small --dry-run",
    ),
    Item(
        "S2-11", "option", "8 heads of width 64", "section II.A",
        "vitcli experiments show cifar10-base-p2",
    ),
    Item(
        "S2-12", "claim", "heads capture different subspaces", "section II.A",
        "python experiments/claims/claims.py --check S2-12",
        "an overlap of two heads nearer to equal subspaces than to random ones",
    ),
    Item(
        "S2-13", "component", "encoder block with the norm before each branch", "section II.B",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-14", "option", "FFN with ReLU or GELU", "section II.B",
        "vitcli train quickstart -s model.ffn=relu --dry-run",
    ),
    Item(
        "S2-15", "option", "an FFN of four times the width", "section II.B",
        "vitcli train quickstart -s model.mlp_ratio=4 --dry-run",
    ),
    Item(
        "S2-16", "component", "FFN with dropout after the activation", "section II.B",
        "vitcli train quickstart -s model.proj_drop=0.1 --dry-run",
    ),
    Item(
        "S2-17", "component", "LayerNorm with scale, shift and epsilon", "section II.B",
        "vitcli explain norms",
    ),
    Item(
        "S2-18", "claim",
        "LayerNorm stabilises training, and is independent of batch size and sequence length",
        "section II.B", "vitcli ablate ablation-cifar10-full --only no-layernorm",
        "an output that changes with the batch; in part if no training diverges without LayerNorm",
    ),
    Item(
        "S2-19", "component", "residual connections", "section II.B",
        "vitcli train cifar10-small --dry-run",
    ),
    Item(
        "S2-20", "claim", "pre-norm typically trains more stably than post-norm", "section II.B",
        "vitcli ablate ablation-norm",
        "all trainings diverge with pre-norm and none with post-norm; in part if none diverges, but"
        " post-norm is less accurate",
    ),
    Item(
        "S2-21", "claim", "attention is permutation-invariant", "sections I.C and II.C",
        "vitcli explain permutation",
        "an output that changes with the order; in part if a pooled output does not",
    ),
    Item(
        "S2-22", "option", "one-dimensional sinusoidal positions", "section II.C",
        "vitcli train quickstart -s model.pos_embed=sincos1d --dry-run",
    ),
    Item(
        "S2-23", "option", "learned positions", "section II.C",
        "vitcli train quickstart -s model.pos_embed=learned --dry-run",
    ),
    Item(
        "S2-24", "option", "two-dimensional sinusoidal positions", "section II.C",
        "vitcli train quickstart -s model.pos_embed=sincos2d --dry-run",
    ),
    Item(
        "S2-25", "component", "patch embedding: cut, flatten, project", "section III.A",
        "vitcli explain patches",
    ),
    Item(
        "S2-26", "option", "patch embedding as a convolution", "section III.A",
        "vitcli explain patches",
    ),
    Item(
        "S2-27", "result", "64 patches for a patch size of 4", "section III.A",
        "vitcli train cifar10-small --dry-run", "another number of patches",
    ),
    Item(
        "S2-28", "component", "CLS token", "section III.B",
        "vitcli train quickstart -s model.pool=cls --dry-run",
    ),
    Item(
        "S2-29", "component", "patches, positions, CLS, encoders, head", "section III.C",
        "vitcli train cifar10-small --dry-run",
    ),
    Item(
        "S2-30", "component", "50,000 training and 10,000 test images", "section IV.A",
        "vitcli data info cifar10",
    ),
    Item(
        "S2-31", "component", "random crop, flip and normalisation", "section IV.A",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-32", "component", "configuration of the ViT", "section IV.B",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-33", "result", "about 5.7 million parameters", "section IV.B",
        "vitcli train cifar10-small --dry-run",
        "a count of the stated configuration that is not 5.7 million",
    ),
    Item(
        "S2-34", "component", "SGD, learning rate 0.1, momentum 0.9", "section IV.C",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-35", "component", "linear warm-up and cosine schedule", "section IV.C",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-36", "component", "batches of 100, 300 epochs, clipping at 1", "section IV.C",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-37", "result", "ResNet-18: 11.2 million parameters, 94.2 %, 2.5 hours", "section V.A",
        "vitcli ablate classification-cifar10 --only resnet-18",
        "an interval over at least 3 seeds that is more than 1 point from 94.2 %",
    ),
    Item(
        "S2-38", "result", "ViT-Small: 5.7 million parameters, 91.8 %, 4.1 hours", "section V.A",
        "vitcli ablate classification-cifar10 --only vit-small",
        "an interval over at least 3 seeds that is more than 1 point from 91.8 %",
    ),
    Item(
        "S2-39", "result",
        "ViT-Base with 2x2 patches: 22.1 million parameters, 93.5 %, 8.3 hours", "section V.A",
        "vitcli ablate classification-cifar10 --only vit-base",
        "an interval over at least 3 seeds that is more than 1 point from 93.5 %",
    ),
    Item(
        "S2-40", "result", "ViT with augmentation: 5.7 million parameters, 93.1 %, 4.3 hours",
        "section V.A", "vitcli ablate classification-cifar10 --only vit-small-aug",
        "an interval over at least 3 seeds that is more than 1 point from 93.1 %",
    ),
    Item(
        "S2-41", "claim", "transformers fall behind a ResNet with limited data", "section V.A",
        "vitcli ablate classification-cifar10-short",
        "an equal training in which the ViT ends ahead",
    ),
    Item(
        "S2-42", "claim", "larger patches cost less but hurt accuracy", "section V.A",
        "vitcli ablate ablation-patch-size",
        "larger patches that neither cost less nor lose accuracy; in part if this depends on the"
        " sizes, or one half holds",
    ),
    Item(
        "S2-43", "claim", "heavy augmentation is crucial", "section V.A",
        "vitcli ablate ablation-augmentation", "an interval of heavy minus no augmentation below 0",
    ),
    Item(
        "S2-44", "result", "loss curve: 28.3 % after 10 epochs, 93.1 % after 300", "section V.B",
        "vitcli ablate classification-cifar10 --only vit-small-aug",
        "intervals over at least 3 seeds that are more than 1 point from both stated accuracies",
    ),
    Item(
        "S2-45", "result", "warm-up to epoch 15; the final rate is about 0.001", "section V.B",
        "python experiments/claims/claims.py --check S2-45",
        "another warm-up of the stated code; in part if only its last rate is not about 0.001",
    ),
    Item(
        "S2-46", "claim", "layer 1 attends to neighbouring patches", "section V.C",
        "vitcli visualize cifar10-pocket --what distance,faithfulness --num-images 1000",
        "a first layer with at least 0.9 of the distance of uniform attention; in part above 0.5,"
        " or if an untrained layer is as local",
    ),
    Item(
        "S2-47", "claim", "the middle layer attends more broadly", "section V.C",
        "vitcli visualize cifar10-pocket --what distance,faithfulness --num-images 1000",
        "a middle layer that is not broader than the first; in part if this depends on the model",
    ),
    Item(
        "S2-48", "claim", "the last layer attends globally, and CLS gathers widely",
        "section V.C",
        "vitcli visualize cifar10-pocket --what distance,faithfulness --num-images 1000",
        "a last layer below 0.5 of uniform distance, or CLS that covers under a tenth of the"
        " patches; in part if the layer is below 0.9, if CLS covers fewer than half of the"
        " patches, or if untrained models do the same",
    ),
    Item(
        "S2-49", "figure", "an aeroplane in layers 1, 3 and 6", "section V.C",
        "vitcli attn-map photo.jpg --method head",
    ),
    Item(
        "S2-50", "result",
        "losses: positions 8.7, heads 3.2, residual 12.1, LayerNorm 15.3, FFN 6.4 points",
        "section V.D", "vitcli ablate ablation-cifar10-full",
        "intervals above 0 where the report states a loss",
    ),
    Item(
        "S2-51", "claim", "LayerNorm matters most, then residuals, positions and FFN",
        "section V.D", "vitcli ablate ablation-cifar10-full",
        "two neighbours in this order whose paired difference has the other sign",
    ),
    Item(
        "S2-52", "option", "gradient checkpointing", "section VI.A",
        "vitcli train quickstart -s train.grad_checkpointing=true --dry-run",
    ),
    Item(
        "S2-53", "option", "mixed precision", "section VI.A",
        "vitcli train quickstart --precision bf16 --dry-run",
    ),
    Item(
        "S2-54", "component", "Xavier initialisation", "section VI.B",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-55", "component", "fixed positions; CLS with standard deviation 0.02", "section VI.B",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-56", "option", "clipping of attention scores", "section VI.C",
        "vitcli train quickstart -s model.attn_clamp=true --dry-run",
    ),
    Item(
        "S2-57", "component", "LayerNorm with epsilon 1e-12", "section VI.C",
        "vitcli experiments show cifar10-small",
    ),
    Item(
        "S2-58", "component", "Linformer", "section VII.A", "vitcli bench attention",
    ),
    Item(
        "S2-59", "component", "Performer", "section VII.A", "vitcli bench attention",
    ),
    Item(
        "S2-60", "component", "contrastive training with captions, zero-shot classification",
        "section VII.B", "vitcli train clip --dry-run",
    ),
    Item(
        "S2-61", "claim", "contrastive training generalises better and needs fewer labels",
        "section VII.B", "vitcli ablate study-pretraining",
        "intervals below 0 with 100, 1,000 and all labels (difference from scratch at equal"
        " compute)",
    ),
    Item(
        "S2-62", "component", "CoAtNet", "section VII.C",
        "vitcli train cifar10-coatnet --dry-run",
    ),
    Item(
        "S2-63", "component", "a VisionTransformer class", "section VIII.A",
        "vitcli train cifar10-vit --dry-run",
    ),
    Item(
        "S2-64", "component", "cosine schedule with warm-up", "section VIII.A",
        "vitcli train cifar10-small --dry-run",
    ),
    Item(
        "S2-65", "component", "training loop with one step of the schedule per batch",
        "section VIII.A", "vitcli train",
    ),
    Item(
        "S2-66", "component", "inference: probabilities and class", "section VIII.B",
        "vitcli predict photo.jpg",
    ),
    Item(
        "S2-67", "figure", "attention of CLS over the image, by layer and head", "section VIII.C",
        "vitcli attn-map photo.jpg --method head --layer 1 --head 1",
    ),
    Item(
        "S2-68", "claim",
        "limits: data, O(n^2), no spatial prior, attention does not always explain predictions",
        "section IX.A",
        "vitcli visualize cifar10-pocket --what distance,faithfulness --num-images 1000",
        "a ViT ahead of a ResNet, a cost below n^2, outputs that know the places of patches, and"
        " attention maps that find the deciding patches better than maps with gradients",
    ),
    Item(
        "S2-69", "component", "hierarchical Vision Transformers", "section IX.B",
        "vitcli train cifar10-swin --dry-run",
    ),
    Item(
        "S2-70", "component", "pre-training without labels: MAE, DINO", "section IX.B",
        "vitcli train pretrain-mae --dry-run",
    ),
    Item(
        "S2-71", "component", "attention of linear cost", "section IX.B",
        "vitcli bench attention",
    ),
    Item(
        "S2-72", "component", "architecture search", "section IX.B",
        "vitcli search search-quickstart --dry-run",
    ),
    Item(
        "S2-73", "component", "vision with text and audio", "section IX.B",
        "vitcli train fusion --dry-run",
    ),
    Item(
        "S2-74", "claim",
        "attention transfers to vision, needs more data than CNNs, explains decisions and costs"
        " computation",
        "section X", "python experiments/claims/claims.py --check S2-02 S2-09 S2-41",
        "S2-02, S2-09 and S2-41 are all refuted; in part if one or two are",
    ),
    Item(
        "S2-75", "theory", "five references", "section XI", "vitcli explain",
    ),
    Item(
        "S2-76", "component", "TensorBoard logs and a README", "section XII.A", "vitcli train",
    ),
    Item(
        "S2-77", "figure", "table of the cost of four kinds of attention", "section XII.B",
        "vitcli bench attention",
    ),
)  # fmt: skip
