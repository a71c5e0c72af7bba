"""The hook that writes the commit into a wheel or an sdist when it is built."""

import json
import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``vitcli/commit.json``; a build outside git without that file has no commit."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file: that of the sources, such as an sdist, or else a new one.

        It is added last in both cases, so that an sdist gives the same wheel as its repository.
        """
        package = Path(self.root) / "vitcli"
        code = runpy.run_path(str(package / "version.py"))
        path, (commit, dirty) = package / code["COMMIT"], code["source_commit"]()
        if version == "editable" or commit is None:
            return
        if not path.exists():
            self.folder = tempfile.TemporaryDirectory()
            path = Path(self.folder.name) / code["COMMIT"]
            path.write_text(json.dumps({"commit": commit, "dirty": dirty}) + "\n")
        build_data["force_include"][str(path)] = f"vitcli/{code['COMMIT']}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary file."""
        if hasattr(self, "folder"):
            self.folder.cleanup()
