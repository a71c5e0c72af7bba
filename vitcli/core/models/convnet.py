"""A small convolutional network that trains fast: a teacher and a baseline of small ViTs.

The network of airbench94: Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU",
https://arxiv.org/abs/2404.00498. It descends from the ResNet-9 of Page 2018, "How to Train Your
ResNet". Axes: B batch, C channels, H W pixels, K classes.
"""

from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.nn.conv_stages import Whitening, build_stage, fill_weights
from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import Draws
from vitcli.core.spec import ConvnetSpec

HEAD_SCALE = 1 / 9
"""Factor before the head, which keeps the first logits small."""


class ConvNet(ImageModel):
    """Whitening, stages of two 3x3 convolutions, a maximum over places, and a linear head.

    (B, C, H, W) -> (B, K). For the widths 64, 256 and 256, the paper's maximum is over 3x3 places
    of a map of 3x3; this one is over a map of any size.
    """

    head: nn.Linear

    def __init__(self, spec: ConvnetSpec) -> None:
        super().__init__(spec)
        self.stem = Whitening(self.image_shape[0])
        widths = (len(self.stem.filters), *spec.widths)
        self.stages = nn.Sequential(*map(build_stage, widths, spec.widths))
        self.head = Linear(widths[-1], self.num_classes, bias=False)

    def init_weights(self, draws: Draws) -> None:
        fill_weights(self, draws)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the last feature map: (B, C, H, W) -> (B, widths[-1], h, w).

        A side of S pixels becomes floor((S - 1) / 2^n) after n stages.
        """
        self.check_images(images)
        return self.stages(self.stem(images))

    def features(self, images: Tensor) -> Tensor:
        return self.forward_features(images).amax((2, 3)) * HEAD_SCALE

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))
