"""``evenload init``: a small job that runs as it is, every section of it explained."""

import json
from pathlib import Path

import click

from evenload._optional import require
from evenload.cli.options import FOLDER
from evenload.errors import ConfigError


@click.command()
@click.argument("folder", type=FOLDER, default=Path())
@click.option("--schema", is_flag=True, help="Write job.schema.json as well, for completion in editors.")
@click.option("--force", is_flag=True, help="Write over files that are there.")
def init(folder: Path, schema: bool, force: bool) -> int:
    """Write job.yaml, stages.py and items.jsonl to FOLDER (here by default).

    \b
    evenload init trial && evenload run trial/job.yaml
    """
    from evenload.pipeline.job.starter import ITEMS, JOB, SCHEMA_LINE, STAGES

    files = {"job.yaml": SCHEMA_LINE + JOB if schema else JOB, "stages.py": STAGES, "items.jsonl": ITEMS}
    if schema:
        require("pydantic", extra="jobs", why="describing job files")
        from evenload.pipeline.job.job_file import json_schema

        files["job.schema.json"] = json.dumps(json_schema(), indent=2) + "\n"
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise ConfigError(
            f"{folder} holds {', '.join(there)} already", hint="give another folder, or --force"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
        click.echo(str(folder / name))
    return 0
