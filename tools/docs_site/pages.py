"""Hooks of mkdocs that add the root's pages to those of docs/, and point links to other files at copies.

So each text exists once, and its links work on the site and in the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs_site import command_line, messages
from tools.docs_site.flowchart import svg

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Pages that mention everything, and hide the guides from a search.
NOT_SEARCHED = {"changelog.md", "messages.md", "command_line.md", "examples.md", "readme.md"}
# Pages that a search lists behind the guides.
BEHIND = re.compile(r"reference/|(architecture|state|contributing|glossary|policy-costs|troubleshooting|trace)\.md")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
TAG = re.compile(r'((?:href|src)=")([^"#]+)(#[^"]*)?(")')
FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the root's pages, and the pages generated from the sources, to the site."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "messages.md", content=messages.page(ROOT)))
    files.append(File.generated(config, "command_line.md", content=command_line.page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapts links to the site, turns flowcharts into pictures, and keeps long lists out of the search."""
    here = page.file.src_uri
    if here in NOT_SEARCHED:
        page.meta["search"] = {"exclude": True}
    elif BEHIND.match(here):
        page.meta["search"] = {"boost": 0.1}
    root_page = next((source for source, name in PAGES.items() if name == here), None)
    source = PurePosixPath(root_page or f"docs/{here}")
    drawn = FENCE.sub(lambda fence: f"<figure>{svg(fence[1])}</figure>", markdown)

    def changed(link: re.Match[str]) -> str:
        target = site_link(link[2], source=source, config=config, files=files)
        if link.re is TAG and target.endswith(".md"):
            target = target.removesuffix(".md") + ".html"  # mkdocs converts Markdown's links only
        return f"{link[1]}{target}{link[3] or ''}{link[4]}"

    parts = CODE.split(drawn)  # every second part is code, which is kept
    parts[::2] = [TAG.sub(changed, LINK.sub(changed, part)) for part in parts[::2]]
    return "".join(parts)


def site_link(target: str, *, source: PurePosixPath, config: MkDocsConfig, files: Files) -> str:
    """The target on the site of a link in the repository's file `source`, relative to that file's page."""
    if re.match(r"[a-z]+:", target):
        return target
    path = os.path.normpath(source.parent / target)
    if path in PAGES:
        found = PAGES[path]
    elif path.startswith("docs" + os.sep):
        found = path.removeprefix("docs" + os.sep)
    elif (ROOT / path).is_file():
        found = f"files/{path}"
        if files.get_file_from_path(found) is None:
            files.append(File.generated(config, found, content=(ROOT / path).read_bytes()))
    else:
        return target  # mkdocs reports the missing page
    start = "." if str(source) in PAGES else str(source.parent.relative_to("docs"))
    return os.path.relpath(found, start)
