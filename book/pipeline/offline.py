"""Refuse a rendered book that loads anything from the network while somebody reads it."""

import re
from html.parser import HTMLParser
from pathlib import Path

REMOTE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
CSS_LOAD = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s;]+)""", re.IGNORECASE)
SCRIPT_URL = re.compile(r"""["'`](https?://[^"'`\s]+)["'`]""")
LOADING_RELATIONS = {
    "stylesheet", "preload", "prefetch", "modulepreload", "icon", "shortcut", "apple-touch-icon", "manifest",
    "preconnect", "dns-prefetch",
}  # fmt: skip
LOADING_ATTRIBUTES = {
    "img": ("src", "srcset"), "script": ("src",), "iframe": ("src",), "embed": ("src",), "object": ("data",),
    "source": ("src", "srcset"), "video": ("src", "poster"), "audio": ("src",), "track": ("src",),
    "input": ("src",), "image": ("href", "xlink:href"), "use": ("href", "xlink:href"),
}  # fmt: skip
# A namespace or a licence is a name, not something that a browser fetches.
NAMES_ONLY = ("http://www.w3.org/", "https://schema.org", "http://schema.org")


class _Loads(HTMLParser):
    """Collects what a page makes a browser fetch from another host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.inside = tag
        wanted = LOADING_ATTRIBUTES.get(tag, ())
        if tag == "link" and LOADING_RELATIONS & set(values.get("rel", "").lower().split()):
            wanted = ("href",)
        for name in wanted:
            # a srcset lists several addresses, each followed by a size
            parts = values.get(name, "").split(",") if name == "srcset" else [values.get(name, "")]
            self.found += [f"<{tag} {name}={part.strip()}>" for part in parts if REMOTE.match(part)]
        self.found += [f"style of <{tag}>: {url}" for url in CSS_LOAD.findall(values.get("style", ""))]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "style":
            self.found += [f"<style>: {url}" for url in CSS_LOAD.findall(data)]
        elif self.inside == "script":
            urls = [url for url in SCRIPT_URL.findall(data) if not url.startswith(NAMES_ONLY)]
            self.found += [f"inline script: {url}" for url in urls]


def remote_loads(html: Path) -> list[str]:
    """What the pages and style sheets below `html` would fetch from elsewhere, as "file: what" lines.

    Links that a reader may follow are no loads. Scripts in files are bundled programs and are not read.
    """
    lines = []
    for page in sorted(html.rglob("*.html")):
        parser = _Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        lines += [f"{page.relative_to(html).as_posix()}: {load}" for load in dict.fromkeys(parser.found)]
    for sheet in sorted(html.rglob("*.css")):
        loads = dict.fromkeys(CSS_LOAD.findall(sheet.read_text(encoding="utf-8", errors="replace")))
        lines += [f"{sheet.relative_to(html).as_posix()}: {load}" for load in loads]
    return lines
