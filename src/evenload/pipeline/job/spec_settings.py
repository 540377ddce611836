"""The sections of a job file beside ``job`` and ``stages``.

Needs pydantic (extra ``yaml``).
"""

import os
import shutil
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from evenload.errors import quoted
from evenload.pipeline.job.expression import parse_condition
from evenload.pipeline.job.remote_files import MOST_FILE_BYTES, fault_of_folder, is_remote
from evenload.pipeline.job.section import Faults, Section, Size, job_folder, located
from evenload.pipeline.job.yaml_text import Fault

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Mode = Literal["auto", "single", "data_parallel", "model_parallel", "stage_parallel", "swap"]


class BackendSection(Section):
    """The section ``backend``; ``backend: ray`` is short for ``backend: {name: ray}``."""

    name: Literal["process", "ray", "inline"] = "process"
    """process: workers on this machine; ray: on the machines of a Ray cluster; inline: to debug with."""
    address: str | None = Field(default=None, min_length=1)
    """Of the Ray cluster, such as 10.0.0.1:6379; by default RAY_ADDRESS, or the one that runs here."""
    follow: bool = False
    """Take in the devices of machines that join the cluster while the job runs."""
    reserve: bool = True
    """Use only devices that Ray lists as free, and reserve them there; false: use any."""
    runtime_env: dict[str, Any] | None = None
    """Ray's own way to bring files, packages and variables to other machines."""
    file_limit: Size = MOST_FILE_BYTES
    """Longest file that is fetched from a machine without the run folder, such as 16GiB."""

    @model_validator(mode="after")
    def _settings_are_of_ray(self) -> Self:
        fields = type(self).model_fields.items()
        given = [key for key, field in fields if key != "name" and getattr(self, key) != field.default]
        if given and self.name != "ray":
            faults: list[Fault] = [
                ((key,), f"has no effect with {self.name}; write name: ray") for key in given
            ]
            raise Faults(faults)
        if self.address is not None and self.address.startswith("ray://"):
            text = "is a Ray Client, which carries no large arrays; run on a machine of the cluster"
            raise Faults([(("address",), text)])
        return self


class DevicesSection(Section):
    """The section ``devices``; ``devices: cpu*4`` is short for ``devices: {use: cpu*4}``."""

    use: StrictStr | StrictInt = "all"
    """all | cpu | cuda:0,1 | cpu*4 | a number of devices."""
    reserve: Size = 2**30
    """What is left free on each device, such as 1GiB."""
    limits: dict[str, Size] = Field(default_factory=dict)
    """Never use more than this of a device: {"cuda:0": 22GiB}."""
    host: Size | None = None
    """Host memory for parked and streamed weights; by default what is free."""
    allow_lossy: bool = False
    """Ways to fit that change results (fp8, nf4) may be used."""


class ScheduleSection(Section):
    """The section ``schedule``; ``schedule: pull`` is short for ``schedule: {policy: pull}``."""

    mode: Mode = "auto"
    """auto takes the quickest; single: one device; data_parallel: all stages on each; model_parallel: layers
    split over devices; stage_parallel: stages side by side; swap: stage after stage, on all devices."""
    policy: str = "measured"
    """How many items of a stage a free device takes at once, longest first, as in ``evenload map``. measured:
    several if they are short; a slow device leaves the last ones to faster ones that will be done sooner, and
    the rest is planned again where times are not those planned. pull, guided, factoring, static: neither."""
    in_flight: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = "auto"
    """Items at once in a group of devices over which a model's layers are split."""
    queue: int = Field(default=8, ge=1)
    """Most items that wait between two stages that run side by side."""
    copies: bool = False
    """At a stage's end idle devices run an item that another is late with, too; the first result counts."""
    priority: str | None = None
    """Which items go first in each stage: a column of the inputs with numbers (the highest first), or a
    condition such as category == "express" (items that meet it)."""

    @field_validator("priority")
    @classmethod
    def _priority_parses(cls, priority: str | None) -> str | None:
        return priority if priority is None else parse_condition(priority).text

    @field_validator("policy")
    @classmethod
    def _policy_is_known(cls, policy: str) -> str:
        from evenload.balance.policy import policy_from_name

        policy_from_name(policy)
        return policy


def _of_all(given: Any) -> Any:
    return {"all": given} if isinstance(given, int | float) else given


Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Amounts = Annotated[dict[str, Amount], BeforeValidator(_of_all)]


class CostsSection(Section):
    """The section ``costs``: prices and watts, for the plan, the headline and the report."""

    currency: str = Field(default="USD", pattern=r"^[^\s<>&]{1,8}$")
    """A word that is shown beside amounts."""
    hour: Amounts = Field(default_factory=dict)
    """Price of a device for an hour: of each, or by id or kind, {cuda: 2.5, "cuda:1": 1, all: 0.1}."""
    watts: Amounts = Field(default_factory=dict)
    """What a device draws while the run lasts, in the same way."""
    kwh: Amount = 0.0
    """Price of a kilowatt-hour."""

    def facts(self, devices: Iterable[str]) -> dict[str, Any]:
        """Return the amounts of all ``devices`` together, as ``report.costs`` has them."""
        kinds = {device: device.rpartition("/")[2].partition(":")[0] for device in devices}
        hour, watts = (
            sum(one.get(device, one.get(kind, one.get("all", 0.0))) for device, kind in kinds.items())
            for one in (self.hour, self.watts)
        )
        return {"currency": self.currency, "hour": hour, "watts": watts, "kwh": self.kwh}


class ErrorsSection(Section):
    """The section ``errors``: what becomes of items that fail."""

    on_error: Literal["record", "stop"] = "record"
    """record: note it and go on; stop: note it and deal no more items."""
    retries: int = Field(default=0, ge=0, le=100)
    """How often a failed item is tried again, with the same seed."""
    timeout_s: Seconds | None = None
    """Seconds that an item may take in one stage, where the stage has no timeout_s of its own."""
    item_timeout_s: Seconds | None = None
    """Seconds that an item may take over all stages, each of its samples by itself; waiting is free."""
    load_timeout_s: Seconds | None = None
    """Seconds that loading a model may take, where the stage has no load_timeout_s of its own."""
    max_error_rate: float = Field(default=1.0, ge=0, le=1)
    """Deal no more items when more than this share of all items failed."""
    oom: tuple[Literal["smaller_in_flight", "next_fit", "other_device"], ...] = (
        "smaller_in_flight",
        "next_fit",
        "other_device",
    )
    """What is tried, in this order, when a device runs out of memory."""


class CacheSection(Section):
    """The section ``cache``; ``cache: ~/results`` is short for ``cache: {folder: ~/results}``."""

    folder: str = Field(min_length=1)
    """A folder, relative to the job file, in which runs of any job keep results for each other."""
    limit: Size = 50 * 2**30
    """What was not used for the longest time goes when the folder holds more than this, such as 50GiB."""


class OnDoneSection(Section):
    """The section ``on_done``: who is told that a run has ended, however it ended.

    ``on_done: [python, tell.py]`` is short for a command, ``on_done: https://...`` for an address.
    """

    command: tuple[str, ...] = ()
    """A program and its arguments, run in the job file's folder without a shell; EVENLOAD_RUN_FOLDER,
    _STATUS, _ITEMS, _DONE, _FAILED, _FILTERED and _UNFINISHED say what came of the run."""
    url: str | None = None
    """An address that gets the run's summary as JSON, by POST."""
    url_env: str | None = None
    """The environment variable with the address, where that is a secret; it is written nowhere."""
    token_env: str | None = None
    """The environment variable with a token that is sent along (Authorization: Bearer ...)."""
    timeout_s: Seconds = 60.0
    """Seconds that the command, or one attempt to reach the address, may take."""
    retries: int = Field(default=4, ge=0, le=20)
    """Further attempts to reach the address, after growing pauses."""

    @model_validator(mode="after")
    def _one_is_told(self, info: ValidationInfo) -> "OnDoneSection":
        given = [name for name in ("command", "url", "url_env") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of command, url, url_env; given: {', '.join(given) or 'none'}"
            )
        faults: list[Fault] = []
        if self.url is not None and (fault := fault_of_address(self.url)):
            faults.append((("url",), fault))
        folder = job_folder(info)
        if folder is not None:
            faults += [
                ((name,), f"the environment has no {variable}; set it before the run")
                for name in ("url_env", "token_env")
                if (variable := getattr(self, name)) and not os.environ.get(variable)
            ]
            program = self.command[0] if self.command else ""
            if program and shutil.which(program) is None and shutil.which(str(folder / program)) is None:
                faults.append(
                    (("command",), f"there is no program {quoted(program)}, neither installed nor here")
                )
        if faults:
            raise Faults(faults)
        return self


def fault_of_address(url: str) -> str:
    """Return why ``url`` is no address of a server that may be written down; "" if it is one."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable()
        _ = parts.port
    except ValueError:
        return f"{quoted(url)} is no address of a server; write https://host/path"
    if not is_address or " " in url:
        return f"{quoted(url)} is no address of a server; write https://host/path"
    if parts.username is not None or parts.password is not None:
        return "it holds a password, which the run folder would show; use url_env or token_env"
    return ""


class UploadSection(Section):
    """The section ``upload``: where results are copied to while the run goes on, and when it has ended.

    ``upload: s3://bucket/runs/pairs`` is short for ``upload: {to: s3://bucket/runs/pairs}``.
    """

    to: str = Field(min_length=1, max_length=2000)
    """The address of a folder: s3://, gs://, az://, hf://, https:// (by PUT), sftp:// and more of fsspec."""
    stages: tuple[str, ...] | None = None
    """Only the files of these stages are copied, beside the records of the run; by default those of all."""
    timeout_s: Seconds = 900.0
    """Seconds that one attempt to copy one file may take."""
    retries: int = Field(default=4, ge=0, le=20)
    """Further attempts to copy a file, after growing pauses."""

    @field_validator("to")
    @classmethod
    def _is_a_folder(cls, to: str) -> str:
        if fault := fault_of_folder(to):
            raise ValueError(fault)
        return to


class ReportSection(Section):
    """The section ``report``: what is written beside the results."""

    html: bool = True
    """Write report.html."""
    trace: bool = True
    """Write trace.json, for Perfetto."""
    keep_inputs: bool = False
    """Copy each input file into the run folder, so that the report can show before and after."""
    sort: str | None = None
    """The output that the gallery is sorted by at first."""
    headline: str | None = None
    """file.py:function that makes the figures of the run from the rows of results.jsonl."""

    @field_validator("headline")
    @classmethod
    def _headline_is_there(cls, headline: str | None, info: ValidationInfo) -> str | None:
        return headline if headline is None else located(headline, info)


# --- job and inputs -----------------------------------------------------------------------------------

ColumnType = Literal["text", "number", "boolean"]
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
