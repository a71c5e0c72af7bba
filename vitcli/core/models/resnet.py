"""ResNet-18, the convolutional baseline of the ViTs.

He et al. 2016, https://arxiv.org/abs/1512.03385. Axes: B batch, C channels, H W pixels, K classes.
"""

from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.ops.backend import wrap_linear
from vitcli.core.randomness import Draws
from vitcli.core.spec import ModelSpec

WIDTH = 64
"""Number of channels after the stem."""


class ResNet18(ImageModel):
    """ResNet-18 of torchvision with a stem for small images: (B, C, H, W) -> (B, K).

    Deviation: a 3x3 convolution of stride 1 replaces the paper's stem for ImageNet, as is usual for
    CIFAR-10. The paper's stem, a 7x7 convolution of stride 2 and a max-pooling, would reduce 32x32
    pixels to 8x8 before the first block.
    """

    head: nn.Linear

    def __init__(self, spec: ModelSpec) -> None:
        from torchvision.models import resnet18  # this import takes as long as torch itself

        super().__init__(spec)
        net = resnet18(weights=None, num_classes=self.num_classes)
        convolution = nn.Conv2d(self.image_shape[0], WIDTH, kernel_size=3, padding=1, bias=False)
        self.stem = nn.Sequential(convolution, net.bn1, net.relu)
        self.stages = nn.Sequential(net.layer1, net.layer2, net.layer3, net.layer4)
        self.pool = net.avgpool
        self.head = wrap_linear(net.fc)

    def init_weights(self, draws: Draws) -> None:
        """Fill convolutions and head with torchvision's initial weights.

        Convolutions are N(0, 2 / n_out) (He et al. 2015, https://arxiv.org/abs/1502.01852). The
        head has the distribution of torch's linear layers.
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
        """Return the last feature map: (B, C, H, W) -> (B, 512, H / 8, W / 8), sides rounded up."""
        self.check_images(images)
        return self.stages(self.stem(images))

    def features(self, images: Tensor) -> Tensor:
        return self.pool(self.forward_features(images)).flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))
