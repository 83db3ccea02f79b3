"""Hooks of mkdocs, which build the site from the files of the repository.

They add pages from outside of docs/ (README.md is the home page), the reference and the measurements in
docs/benchmarks/, and run the tutorials. A link to any file of the repository leads to a page that shows it; a dead link
stops `make docs`. A pattern in mkdocs.yml's nav stands for all pages that are not named elsewhere, so a new page needs
no line there.
"""

import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from measurements import page_of_measurements
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import Tutorial, executed, notebook_of, page_of
from reference import pages

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(```\w+) file=(\S+)$", re.M)
KINDS = {".py": "python", ".cl": "c", ".toml": "toml", ".yml": "yaml", ".json": "json", ".pyi": "python"}


def _elsewhere() -> dict[str, str]:
    """Return the paths of the pages outside of docs/, each with its path on the site."""
    found = {"README.md": "index.md"}
    found |= {f"{name}.md": f"{name.lower()}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")}
    readmes = [path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("**/README.md")]
    return found | {path: path.replace("README", "index") for path in sorted(readmes)}


ELSEWHERE = _elsewhere()
REPOSITORY = {site: path for path, site in ELSEWHERE.items()}
TUTORIALS: dict[str, Tutorial] = {}  # by page, filled by on_files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/, and expand the patterns of nav."""
    for path, site in ELSEWHERE.items():
        _add(files, config, site, (ROOT / path).read_text())
    for site, text in pages():
        _add(files, config, site, text)
    _add(files, config, "decisions/index.md", _decisions())
    _add(files, config, "benchmarks.md", page_of_measurements((ROOT / "docs" / "benchmarks").glob("*.json")))
    _add_tutorials(files, config)
    for page in list(files.documentation_pages()):
        for link, _ in LINK.findall(page.content_string):
            path = _target(page.src_uri, link)
            if site := _shown(path):
                _add(files, config, site, _source(path))
    named = {name for name in _leaves(config.nav) if "*" not in name}
    config.nav = [_expand(entry, sorted(f.src_uri for f in files.documentation_pages()), named) for entry in config.nav]
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links to files as links to pages, and `file=` of a code block as its title."""
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        path = _target(here, link[1])
        site = ELSEWHERE.get(path) or _index(path) or _shown(path) or path.removeprefix("docs/")
        return posixpath.relpath(site, posixpath.dirname(here) or ".") + (link[2] or "")

    linked = markdown if here.partition("/")[0] == "reference" else LINK.sub(moved, markdown)
    return FENCE.sub(r'\1 title="\2"', page_of(TUTORIALS[here], linked) if here in TUTORIALS else linked)


def _add_tutorials(files: Files, config: MkDocsConfig) -> None:
    """Run all tutorials; add their pictures, their notebooks, and the gallery."""
    gallery = ["# Gallery\n\nPictures of the tutorials, as the build of this site drew them.\n"]
    for file in sorted(files.documentation_pages(), key=lambda file: file.src_uri):
        if file.src_uri.startswith("tutorials/"):
            TUTORIALS[file.src_uri] = found = executed(file.src_uri, file.content_string)
            files.append(File.generated(config, found.notebook, content=notebook_of(found)))
            for path, picture in found.pictures.items():
                files.append(File.generated(config, path, content=picture))
                gallery.append(f"[![{found.title}]({path}){{ width=45% }}]({file.src_uri})\n")
    _add(files, config, "gallery.md", "\n".join(gallery))


def _add(files: Files, config: MkDocsConfig, site: str, text: str) -> None:
    if files.get_file_from_path(site) is None:
        files.append(File.generated(config, site, content=text))


def _target(site: str, link: str) -> str:
    """Return the path in the repository that a link on a page of the site refers to."""
    page = REPOSITORY.get(site, f"docs/{site}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _index(path: str) -> str | None:
    """Return the page of a folder: its README, or the list of decisions."""
    return "decisions/index.md" if path == "docs/decisions" else ELSEWHERE.get(f"{path}/README.md")


def _shown(path: str) -> str | None:
    """Return the page that shows the source of a file, or None for a file that is a page itself."""
    is_shown = (ROOT / path).is_file() and not path.startswith(("docs/", "..")) and path not in ELSEWHERE
    return f"source/{path}.md" if is_shown else None


def _source(path: str) -> str:
    kind = KINDS.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{kind}\n{(ROOT / path).read_text()}\n````\n"


def _decisions() -> str:
    found = [(path.name, path.read_text().splitlines()[0]) for path in sorted((ROOT / "docs/decisions").glob("0*.md"))]
    lines = [f"- [{title.removeprefix('# ')}]({name})" for name, title in found]
    head = "What was decided, why, and what else was tried. A missing number was replaced by a later decision."
    return f"# Decisions\n\n{head}\n\n" + "\n".join(lines) + "\n"


def _leaves(nav: Any) -> list[str]:
    """Return the pages and patterns in nav."""
    if isinstance(nav, str):
        return [nav]
    return [leaf for entry in (nav.values() if isinstance(nav, dict) else nav) for leaf in _leaves(entry)]


def _expand(entry: Any, known: list[str], named: set[str]) -> Any:
    """Return an entry of nav with its patterns expanded."""
    if isinstance(entry, dict):
        return {title: _expand(below, known, named) for title, below in entry.items()}
    if isinstance(entry, str):
        return entry
    found: list[Any] = []
    for below in entry:
        if isinstance(below, str) and "*" in below:
            found += [page for page in known if _matches(page, below) and page not in named]
        else:
            found.append(_expand(below, known, named))
    return found


def _matches(page: str, pattern: str) -> bool:
    return fnmatch(page, pattern) and page.count("/") == pattern.count("/")
