"""Data sets of the Hub, kept in the cache as Parquet files."""

import contextlib
import shlex
import shutil
from pathlib import Path

from vitcli.plugins.parquet.reader import cache_folder, list_parquet, unpacked_folders
from vitcli.runner.data.find import explain_write_errors, is_offline
from vitcli.runner.data.listing import PictureFolder
from vitcli.runner.errors import InputError
from vitcli.runner.files import scratch_folder
from vitcli.runner.text import Listener, printable


def list_hub(name: str, offline: bool = False) -> PictureFolder:
    """List a data set of the Hub on this machine: ``cifar10``, ``OWNER/NAME``, ``NAME:CONFIG``."""
    place, _ = hub_folders(name)
    if not [*place.glob("*.parquet")]:
        try:
            _keep(name, place, offline=True)
        except InputError as error:
            hint = f"download it: vitcli data get {shlex.quote(f'hf:{name}')}"
            hint = "this call is offline; type: vitcli data ls" if is_offline(offline) else hint
            raise InputError(f"hf:{printable(name)} is not on this machine; {hint}") from error
    return list_parquet(place)


def fetch_hub(name: str, offline: bool, on_message: Listener) -> PictureFolder:
    if not is_offline(offline):
        with contextlib.suppress(InputError):
            return list_hub(name)
        url = f"https://huggingface.co/datasets/{name.partition(':')[0]}"
        on_message(f"downloading {printable(url)} to the cache of the library datasets")
        _keep(name, hub_folders(name)[0], offline=False)
    return list_hub(name, offline)


def hub_folders(name: str) -> list[Path]:
    place = cache_folder("hub", name)
    return [place, *unpacked_folders(place)]


def _keep(name: str, place: Path, *, offline: bool) -> None:
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.disable_progress_bars()
    repository, _, config = name.partition(":")
    with explain_write_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(place.parent, "loading-") as scratch:
            try:
                datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = offline
                found = datasets.load_dataset(repository, config or None)
                for split, rows in found.items():
                    rows.to_parquet(str(scratch / "new" / f"{split}.parquet"))
            except Exception as error:  # of many kinds
                reason = printable(str(error).partition("\n")[0])
                raise InputError(f"hf:{printable(name)} cannot be loaded: {reason}") from error
            finally:
                datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
            shutil.rmtree(place, ignore_errors=True)
            (scratch / "new").rename(place)
