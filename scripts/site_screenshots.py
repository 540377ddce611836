"""Every page of the built site, looked at by a headless Chromium: light, dark and on a phone.

    mkdocs build --strict && python scripts/site_screenshots.py OUT [PAGE ...]   # make screenshots

Writes a picture of each, and says what is wrong: an element wider than the window, text that cannot be told
from its ground, a picture that is not there, an error of a script, anything asked of another machine. PAGE is
a page's folder (``how-to/map``); without any, all pages are taken. Exit code 1 if anything is wrong.
"""

import argparse
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["--no-sandbox"]
LOOKS = {"light": (1280, "light"), "dark": (1280, "dark"), "phone": (390, "light")}
TALLEST = 2600  # pixels of a picture; what is below can be scrolled to, but adds little to what is seen

FAULTS = (ROOT / "scripts" / "site_faults.js").read_text(encoding="utf-8")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing of it."""

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal for what is wrong."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of ``folder``, which a thread serves to this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def pages_of(site: Path) -> list[str]:
    """The folder of each page, as its address has it; the page of errors is ``404.html``."""
    folders = (path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    return [*sorted("" if one == "." else f"{one}/" for one in folders), "404.html"]


class Visitor:
    """A browser that visits pages in one look, and says what each has wrong."""

    def __init__(self, browser: Any, root: str, look: str):
        width, scheme = LOOKS[look]
        self.root, self.look, self.faults = root, look, list[str]()
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = context.new_page()
        self.page.set_default_timeout(100_000)
        self.page.on(
            "console", lambda one: one.type == "error" and self.faults.append(f"console: {one.text}")
        )
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.root, "data:", "blob:")):
            self.faults.append(f"asks another machine: {request.url}")

    def visit(self, address: str, picture: Path | None = None) -> list[str]:
        """What the page at ``address`` has wrong, and with ``picture`` a picture of it."""
        self.faults = []
        self.page.goto(self.root + address)
        self.page.wait_for_function("document.fonts.status === 'loaded'")
        # Changes of colour that fade would be read half-way.
        self.page.add_style_tag(content="* { transition: none !important; animation: none !important; }")
        found = [*self.faults, *self.page.evaluate(FAULTS)]
        if picture is not None:
            picture.parent.mkdir(parents=True, exist_ok=True)
            height = self.page.evaluate("document.documentElement.scrollHeight")
            size = self.page.viewport_size
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height, TALLEST)}
            self.page.screenshot(path=picture, full_page=True, clip=clip)
        return found


def look_at(site: Path, addresses: Sequence[str], looks: Sequence[str], out: Path | None = None) -> list[str]:
    """What is wrong on these pages of the site, in each look: a line each. Pictures go to ``out``."""
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    with served(site) as root, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        for look in looks:
            visitor = Visitor(browser, root, look)
            for address in addresses:
                name = address.strip("/").replace("/", "-") or "home"
                picture = out / f"{name}-{look}.png" if out else None
                wrong += [f"{address or 'home'} ({look}): {one}" for one in visitor.visit(address, picture)]
        browser.close()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder for the pictures")
    parser.add_argument("pages", nargs="*", help="folders of pages; all of them if there is none")
    given = parser.parse_args()
    if chromium() is None:
        sys.exit("no chromium on this machine: install Debian's package chromium")
    site = ROOT / "site"
    known = pages_of(site)
    asked = [one.strip("/") for one in given.pages]
    pages = [one if one in ("", "404.html") else f"{one}/" for one in asked] or known
    if unknown := [one for one in pages if one not in known]:
        sys.exit(f"the site has no page {', '.join(unknown)}")
    wrong = look_at(site, pages, list(LOOKS), given.out)
    print(*wrong, sep="\n")
    print(f"{len(pages)} pages in {len(LOOKS)} looks: {len(wrong)} faults", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
