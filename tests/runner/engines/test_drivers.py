"""Drivers of one folder see each other, and a removal sees them."""

import pytest

from vitcli.runner.engines.drivers import join_drivers, no_drivers, other_drivers, prepare_folder
from vitcli.runner.errors import InUseError, ResourceError
from vitcli.runner.run.folder import hold_folder


def test_drivers_have_numbers_of_their_own_and_free_them(tmp_path):
    assert other_drivers(tmp_path) == 0
    with join_drivers(tmp_path) as first:
        assert other_drivers(tmp_path, own=first) == 0
        with join_drivers(tmp_path) as second:
            assert (first, second) == (0, 1)
            assert other_drivers(tmp_path, own=second) == 1
            assert other_drivers(tmp_path) == 2
        assert other_drivers(tmp_path, own=first) == 0
    with join_drivers(tmp_path) as again:
        assert again == 0


def test_an_error_of_a_driver_is_its_own(tmp_path):
    with pytest.raises(TimeoutError, match="mine"), join_drivers(tmp_path):
        raise TimeoutError("mine")
    assert other_drivers(tmp_path) == 0


def test_a_folder_with_a_driver_is_not_removed(tmp_path):
    with no_drivers(tmp_path):
        pass
    with (
        join_drivers(tmp_path),
        pytest.raises(InUseError, match="running this study"),
        no_drivers(tmp_path),
    ):
        pass
    with (
        prepare_folder(tmp_path),
        pytest.raises(InUseError, match="running this study"),
        no_drivers(tmp_path),
    ):
        pass


@pytest.mark.parametrize("hold", [join_drivers, lambda root: hold_folder(root, "in use")])
def test_a_folder_that_is_renamed_meanwhile_is_named(tmp_path, hold):
    root = tmp_path / "study"

    def write_after_renaming() -> None:
        with hold(root):
            root.rename(tmp_path / "moved")
            (root / "log.txt").write_text("")

    with pytest.raises(ResourceError, match="study: the folder was removed or renamed"):
        write_after_renaming()
    with pytest.raises(FileNotFoundError), hold(root):
        (tmp_path / "elsewhere" / "log.txt").write_text("")
