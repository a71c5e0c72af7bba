"""The formats of the user's own pictures, as text: ``PREFIX:PATH``, one row for each prefix."""

from dataclasses import dataclass

from vitcli.core.spec.rows import Row, Rows, Target

FORMATS = "vitcli.runner.data.formats"


@dataclass(frozen=True, kw_only=True)
class DataReader(Row):
    """A format of pictures with labels.

    ``build`` takes the text after the prefix. It returns a ``PictureFolder``, or arrays by name, as
    in a file of ``npz``. It raises InputError if it cannot.
    """

    example: str
    """What to type after ``--data``."""
    is_path: bool = True
    """Whether the text after the prefix is the path of a file or folder."""
    fetch: Target | None = None
    """What downloads it for ``vitcli data get``, if it is not on this machine: takes the text after
    the prefix, whether downloads are forbidden, and a function for messages."""
    kept: Target | None = None
    """What returns the folders of the cache that hold a copy of its files: takes what ``build``
    takes."""
    packages: tuple[str, ...] = ()
    """Packages that it needs. They belong to the extra ``hub``."""


DATA_READERS = Rows[DataReader]()
DATA_READERS |= {
    "imagefolder": DataReader(
        about="a folder with train/<class>/*, test/<class>/* and val/<class>/*, or with <class>/*",
        build="vitcli.runner.data.folder:list_folder",
        example="imagefolder:pictures",
    ),
    "csv": DataReader(
        about="a table with the columns path and label, and perhaps split and group",
        build=f"{FORMATS}.csv_file:list_csv",
        example="csv:labels.csv",
    ),
    "npz": DataReader(
        about="NumPy arrays: images and labels, or train_images, train_labels, test_images ...",
        build=f"{FORMATS}.npz:open_npz",
        example="npz:bloodmnist.npz",
    ),
    "parquet": DataReader(
        about="a folder of train-*.parquet and test-*.parquet with the columns image and label",
        build=f"{FORMATS}.parquet:list_parquet",
        example="parquet:beans/data",
        kept=f"{FORMATS}.parquet:unpacked_folders",
        packages=("pyarrow",),
    ),
    "hf": DataReader(
        about="a data set of the Hugging Face Hub, after vitcli data get hf:NAME",
        build=f"{FORMATS}.parquet:list_hub",
        example="hf:beans",
        is_path=False,
        fetch=f"{FORMATS}.parquet:fetch_hub",
        kept=f"{FORMATS}.parquet:hub_folders",
        packages=("datasets", "pyarrow"),
    ),
}


def split_name(name: str) -> tuple[DataReader, str] | None:
    """Return the row and the text after the prefix; None for a named data set, or without a row."""
    prefix, _, text = name.partition(":")
    return (DATA_READERS[prefix], text) if prefix in DATA_READERS and text else None


def list_own() -> str:
    """Return the forms of a name of the user's own pictures, for messages."""
    return ", ".join(
        f"{name}:{'PATH' if row.is_path else 'NAME'}" for name, row in DATA_READERS.items()
    )
