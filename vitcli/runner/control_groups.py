"""The control groups of this process, by which Linux limits its cores and its memory."""

from pathlib import Path

PROCESS_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def control_groups(groups: Path = GROUPS, process_group: Path = PROCESS_GROUP) -> list[Path]:
    """Return the folders of the control groups (version 2) of this process, the innermost first."""
    try:
        lines = process_group.read_text().splitlines()
    except OSError:
        lines = []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folders = [groups / own, *(groups / own).parents]
    return folders[: folders.index(groups) + 1]
