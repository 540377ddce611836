"""A hook of mkdocs (see mkdocs.yml): the report of a real run, to click through, beside the pages.

Made of the events in docs/example-run when the site is built, by what ``evenload report`` uses. They are of

    python examples/restore/pictures.py && evenload run examples/restore/job.yaml --devices 'cpu*2'
"""

import tempfile
from pathlib import Path
from typing import Any

from evenload.report.html import write_report

EVENTS = Path(__file__).resolve().parent.parent / "docs" / "example-run" / "events.jsonl"


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: adds the report to the site, and leaves its events out."""
    from mkdocs.structure.files import File

    if events := files.get_file_from_path("example-run/events.jsonl"):
        files.remove(events)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        write_report(EVENTS, path)
        files.append(File.generated(config, "example-report.html", content=path.read_bytes()))
    return files
