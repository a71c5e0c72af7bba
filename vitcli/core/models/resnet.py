"""ResNet-18, the convolutional model that ViTs are compared with.

He et al. 2016, https://arxiv.org/abs/1512.03385. Axes: B batch, C channels, H W pixels, K classes.
"""

from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.nn.linear import backed
from vitcli.core.randomness import Draws
from vitcli.core.spec import ModelSpec

WIDTH = 64
"""Channels after the stem."""


def small_image_stem(in_chans: int) -> nn.Conv2d:
    """A 3x3 convolution of stride 1 that keeps the size.

    The paper's ImageNet stem (7x7 of stride 2, then max-pooling) would leave a 32x32 image 8x8
    before the first block; without both, as is usual on CIFAR-10, the blocks begin at 32x32.
    """
    return nn.Conv2d(in_chans, WIDTH, kernel_size=3, stride=1, padding=1, bias=False)


class ResNet18(ImageModel):
    """torchvision's ResNet-18 with a stem for small images: (B, C, H, W) -> (B, K)."""

    head: nn.Linear

    def __init__(self, spec: ModelSpec) -> None:
        from torchvision.models import resnet18  # takes as long to import as torch itself

        super().__init__(spec)
        net = resnet18(weights=None, num_classes=self.num_classes)
        self.stem = nn.Sequential(small_image_stem(self.image_shape[0]), net.bn1, net.relu)
        self.stages = nn.Sequential(net.layer1, net.layer2, net.layer3, net.layer4)
        self.pool = net.avgpool
        self.head = backed(net.fc)

    def init_weights(self, draws: Draws) -> None:
        """As torchvision: convolutions by He et al. 2015, the head as torch starts a linear layer.

        https://arxiv.org/abs/1502.01852; N(0, 2 / n_out) for convolutions.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                generator = draws(f"{name}.weight")
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
        limit = self.head.in_features**-0.5
        nn.init.uniform_(self.head.weight, -limit, limit, generator=draws("head.weight"))
        nn.init.uniform_(self.head.bias, -limit, limit, generator=draws("head.bias"))

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 512, H / 8, W / 8), sizes rounded up.

        Raises:
            ValueError: The images are not of the size that the model was built for.
        """
        self.check_images(images)
        return self.stages(self.stem(images))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.forward_features(images)).flatten(1))
