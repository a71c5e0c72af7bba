"""The row of ``hf:NAME``."""

from vitcli.core.spec.data import DataReader

ROW = DataReader(
    about="a data set of the Hugging Face Hub, after vitcli data get hf:NAME",
    build="vitcli.plugins.hf.hub:list_hub",
    example="hf:beans",
    is_path=False,
    fetch="vitcli.plugins.hf.hub:fetch_hub",
    kept="vitcli.plugins.hf.hub:hub_folders",
    packages=("datasets", "pyarrow"),
)
