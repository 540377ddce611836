"""The section ``job`` of a job file: its name, its items, its run folder. Needs pydantic (extra ``yaml``)."""

from pydantic import Field, ValidationInfo, field_validator, model_validator

from evenload.errors import quoted
from evenload.pipeline.job.column_types import ColumnType
from evenload.pipeline.job.remote.copies import MOST_FILE_BYTES
from evenload.pipeline.job.remote.stores import is_remote
from evenload.pipeline.job.section import Fault, Faults, Section, Size, job_folder

SOURCES = ("folder", "glob", "jsonl", "csv", "parquet", "openai_batch")


class InputsSection(Section):
    """The place where items come from: exactly one of folder, glob, jsonl, csv, parquet,
    openai_batch, relative to the job file, or an address (s3://..., https://...), of which a copy is made.
    """

    folder: str | None = None
    """A folder; each file in it that is not hidden is one item."""
    glob: str | None = None
    """A pattern such as pictures/**/*.png; each file is one item."""
    jsonl: str | None = None
    """A file with one JSON object on each line; each is one item."""
    csv: str | None = None
    """A CSV file with a header; each row is one item."""
    parquet: str | None = None
    """A parquet file; each row is one item."""
    openai_batch: str | None = None
    """OpenAI's batch file; each request is one item: its custom_id, and its column ``body``."""
    id: str = "id"
    """The column that names an item (jsonl, csv, parquet, table)."""
    table: str | None = None
    """With folder or glob: a .csv, .jsonl or .parquet file whose columns are added to the items, by id."""
    paths: tuple[str, ...] = ("path",)
    """Columns that hold paths; relative ones belong to the file they stand in."""
    types: dict[str, ColumnType] = Field(default_factory=dict)
    """What a column holds, such as {version: text}: text, number, boolean. By default a column of a CSV file
    is numbers if Python would write each as it stands there (3.1, not 3.10), and text otherwise."""
    file_limit: Size = MOST_FILE_BYTES
    """Longest remote file of which a copy is made, such as 16GiB."""
    group_by: str | None = None
    """The column that says which group (category) an item belongs to; ``folder``: with files, theirs."""

    @property
    def source(self) -> str:
        """The one of the six keys that is given."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _one_source(self) -> "InputsSection":
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            said = f"given: {', '.join(given)}" if given else "none is given"
            raise ValueError(f"give exactly one of {', '.join(SOURCES)}; {said}")
        if self.table is not None and given[0] not in ("folder", "glob"):
            raise ValueError(f"table adds columns to folder or glob; {given[0]} has columns of its own")
        return self


class JobSection(Section):
    """The section ``job``: what the job is called, what its items are, and where the results go."""

    name: str = Field(min_length=1, max_length=100)
    """What the run is called in its report."""
    inputs: InputsSection
    out: str | None = None
    """The run folder, relative to the job file; runs/<name> if not given."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Each item's seed comes from this and the item's id."""
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds that one run may take; then it ends, what is done is kept, and the rest is listed."""

    @field_validator("name")
    @classmethod
    def _name_stays_in_runs(cls, name: str) -> str:
        """Refuse a name that would put the run folder, runs/<name>, anywhere else."""
        parts = name.split("/")
        if not all(part.strip(". ") for part in parts) or not name.isprintable() or "\\" in name:
            raise ValueError(
                f"{quoted(name)} is no name of a folder below runs/; take out .., \\ and empty parts"
            )
        return name

    @field_validator("inputs")
    @classmethod
    def _inputs_are_there(cls, inputs: InputsSection, info: ValidationInfo) -> InputsSection:
        folder = job_folder(info)
        if folder is None or (info.context or {}).get("is_given"):
            return inputs
        faults: list[Fault] = []
        for key in ("folder", "jsonl", "csv", "parquet", "openai_batch", "table"):
            path = getattr(inputs, key)
            if path is not None and not is_remote(path) and not (folder / path).exists():
                kind = "folder" if key == "folder" else "file"
                faults.append(((key,), f"there is no {kind} {(folder / path).resolve()}"))
        if faults:
            raise Faults(faults)
        return inputs
