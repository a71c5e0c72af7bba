"""Hooks of the site (mkdocs.yml): pages link to files of the repository, which the site lacks.

A picture of experiments/ becomes a file of the site. Any other file becomes its path, as text.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
THEME = {
    '"search" role="dialog"': '"search" role="dialog" aria-label="Search"',
    'options" aria-label="Search"': 'options" aria-label="Search options"',
}
"""What the theme writes -> the same with a name of its own for screen readers."""
OUTSIDE = re.compile(r"(!?)\[([^]]*)\]\(((?:\.\./)+[^)\s#]+)(?:#[\w-]+)?\)")
PICTURES = {".png", ".jpg", ".svg"}
SHIM = "https://unpkg.com/iframe-worker/shim"


def outside(page: str, target: str) -> str | None:
    """Return the path in the repository of a link's target, or None if it is in docs/."""
    path = normpath(PurePosixPath("docs", page).parent / target)
    return None if path.startswith("docs/") else path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures outside docs/ that a page shows."""
    for page in files.documentation_pages():
        for _, _, target in OUTSIDE.findall(page.content_string):
            path = outside(page.src_uri, target)
            if path and Path(path).suffix in PICTURES and path not in files.src_uris:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links of pictures to the site's copy; other links out of docs/ become text."""

    def inside(link: re.Match[str]) -> str:
        show, name, target = link.groups()
        path = outside(page.file.src_uri, target)
        if path is None:
            return link[0]
        if path in files.src_uris:
            return f"{show}[{name}]({relpath(path, str(Path(page.file.src_uri).parent))})"
        return f"{name} (`{path}`)"

    return OUTSIDE.sub(inside, text)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load docs/site.js where the theme loads a script from the network, and name the search."""
    named = output.replace(SHIM, f"{'../' * page.url.count('/')}site.js")
    for old, new in THEME.items():
        named = named.replace(old, new)
    return named
