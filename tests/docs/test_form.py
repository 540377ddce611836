"""A page says first what its reader can do after it, shows it at once, and ends with what to read next."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FIRST_SCREEN = 40  # lines
SECTIONS = ("Tutorials", "How-to", "Coming from", "Explanation")
# Made by a program, or a list to look things up in.
RESULTS = {"tutorials/index.md", "benchmarks.md", "zk-measured.md", "clients-measured.md", "moe-measured.md"}


def nav() -> dict[str, list[str]]:
    """The pages of each section of mkdocs.yml, in the order in which they are read."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n", 1)[1]
    sections: dict[str, list[str]] = {}
    pages: list[str] = []
    for line in text.splitlines():
        if section := re.fullmatch(r"  - ([^:]+):", line):
            pages = sections[section[1]] = []
        elif page := re.search(r"(\S+\.md)$", line):
            pages.append(page[1])
    return sections


PAGES = [(section, page) for section in SECTIONS for page in nav()[section] if page not in RESULTS]


def paragraphs(page: str) -> list[str]:
    return [part for part in (DOCS / page).read_text(encoding="utf-8").split("\n\n") if part.strip()]


def test_the_navigation_is_read() -> None:
    assert len(PAGES) > 50
    assert {page for page in RESULTS if not (DOCS / page).is_file()} <= {"benchmarks.md"}


def test_a_page_begins_with_what_its_reader_can_do() -> None:
    for _, page in PAGES:
        title, first, *_ = paragraphs(page)
        assert title.startswith("# "), page
        assert re.match(r"After (this page|these \w+ pages) you (can|know|have)\b", first), (page, first)


def test_an_example_is_in_the_first_screen() -> None:
    for section, page in PAGES:
        lines = (DOCS / page).read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN]
        assert section == "Explanation" or any(re.match(r"```(python|sh|yaml)", one) for one in lines), page


def test_a_page_ends_with_what_to_read_next() -> None:
    for _, page in PAGES:
        last = paragraphs(page)[-1]
        assert last.startswith("Next: "), (page, last)
        assert "](" in last, (page, last)


def test_a_page_has_at_most_450_lines() -> None:
    lines = {page.name: page.read_text(encoding="utf-8").count("\n") for page in DOCS.rglob("*.md")}
    assert {name: n for name, n in lines.items() if n > 450} == {}
