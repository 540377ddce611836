"""A hook of mkdocs (see mkdocs.yml): puts right what the generated reference makes of our docstrings.

Arguments in columns become a list; a tree drawn in characters keeps its lines. Markdown runs both together.
"""

import re
from typing import Any

PARAGRAPH = re.compile(r"<p>([^<]*(?:<(?!/?p>)[^<]*)*)</p>")
ARGUMENT = re.compile(r"(\S(?:.{0,60}?\S)?) {2,}(\S.*)")


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with each page's HTML."""
    if "doc-contents" in html:
        html = PARAGRAPH.sub(lambda found: laid_out(found[1]), html)
    return html.replace("<code>Sentinel.UNSET</code>", "")  # click's own word for a default that there is not


def laid_out(text: str) -> str:
    """A paragraph of a docstring: as it is, or as the list or the tree that it is."""
    if "├──" in text:
        return f"<pre><code>{text}</code></pre>"
    parts: list[str] = []
    words: list[str] = []
    terms: list[tuple[str, str]] = []
    for line in text.split("\n"):
        argument = ARGUMENT.fullmatch(line)
        if argument:
            parts += _paragraph(words)
            words = []
            terms.append((argument[1], argument[2]))
        elif terms and line.startswith("  "):
            terms[-1] = (terms[-1][0], f"{terms[-1][1]} {line.strip()}")
        else:
            parts += _list(terms)
            terms = []
            words.append(line)
    return "\n".join([*parts, *_list(terms), *_paragraph(words)])


def _paragraph(lines: list[str]) -> list[str]:
    return ["<p>" + "\n".join(lines) + "</p>"] if lines else []


def _list(terms: list[tuple[str, str]]) -> list[str]:
    if not terms:
        return []
    return ['<dl class="arguments">', *(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in terms), "</dl>"]
