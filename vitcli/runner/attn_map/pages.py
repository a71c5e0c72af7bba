"""Pages about the attention to one picture, which plugins add."""

from collections.abc import Callable
from typing import Protocol

from vitcli.plugin import Registry, missing_for
from vitcli.runner.attn_map.explain import Explainer, Explanation
from vitcli.runner.errors import ConfigError


class PageWriter(Protocol):
    def __init__(self, explainer: Explainer, *, all_layers: bool) -> None: ...

    def page(self, explanation: Explanation) -> bytes: ...


PAGES = Registry[type[PageWriter]]("map page")


def page_writer(
    name: str, explainer: Explainer, *, all_layers: bool
) -> Callable[[Explanation], bytes]:
    if name not in PAGES:
        why = missing_for(PAGES.field, name) or f"needs a plugin with the page {name!r}"
        raise ConfigError(f"--format html {why}")
    return PAGES[name](explainer, all_layers=all_layers).page
