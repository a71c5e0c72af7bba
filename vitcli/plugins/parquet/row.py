"""The row of ``parquet:PATH``."""

from vitcli.core.spec.data import DataReader

ROW = DataReader(
    about="a folder of train-*.parquet and test-*.parquet with the columns image and label",
    build="vitcli.plugins.parquet.reader:list_parquet",
    example="parquet:beans/data",
    kept="vitcli.plugins.parquet.reader:unpacked_folders",
    packages=("pyarrow",),
)
