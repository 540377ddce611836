"""Keep each item's result of each stage on disk, so that a run can go on from wherever it ended.

    ledger = Ledger.open(run_folder, fingerprint_of(spec, job_folder))
    ledger.find(stage, strand, digest) -> LedgerEntry | None   None: it has to be done
    ledger.keep([...])                                         returns when the disk has them

A result counts if its files are there, whole and unchanged. The fingerprint holds all of the job that decides
the results; with another one the ledger is refused, and the message says what was changed.
"""

import errno
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload._private_files import read_plain
from evenload.errors import ConfigError
from evenload.events import json_text
from evenload.executor.journal.journal import Journal
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.dispatch.item_failure import ItemFailure

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.item_flow import Strand
    from evenload.pipeline.job.spec import JobSpec, StageSpec

__all__ = ["Ledger", "LedgerEntry", "digest_inputs", "digest_result", "fingerprint_of"]

FOLDER = "journal"
MOST_FACTS_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One result in the ledger: outputs and the files among them, or the error with which the item ended.

    digest   of the inputs that the result was made from
    seconds  that it took, on ``device``
    """

    digest: str
    outputs: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list] = field(default_factory=dict)
    error: ItemFailure | None = None
    seconds: float = 0.0
    device: str = ""

    def to_bytes(self) -> bytes:
        row = {"digest": self.digest, "outputs": self.outputs, "files": self.files}
        row |= {"seconds": round(self.seconds, 6), "device": self.device}
        if self.error is not None:
            row["error"] = self.error.to_json() | {"traceback": self.error.traceback}
        return json_text(row, separators=(",", ":")).encode("utf-8", "backslashreplace")

    @classmethod
    def from_bytes(cls, payload: bytes) -> "LedgerEntry | None":
        """Read an entry; None for one that another version has written."""
        try:
            row = json.loads(payload)
            error = row.pop("error", None)
            return cls(**row, error=ItemFailure(**error) if error else None)
        except (ValueError, TypeError):
            return None


class Ledger:
    """The finished results of a run, on disk.

    ``notes``: files that were found damaged and will be made again, one sentence each.
    """

    def __init__(self, folder: Path, journal: Journal):
        self.notes: list[str] = []
        self._folder = folder
        self._journal = journal
        self._known = frozenset(journal.keys())

    @classmethod
    def open(cls, run_folder: Path, fingerprint: Mapping[str, str]) -> "Ledger":
        """Open the ledger of a run folder, or begin one.

        Raises ConfigError if another job made its results, or if another process works in the folder.
        """
        path = run_folder / FOLDER
        changes = _changes(path, fingerprint)
        is_empty = not any(path.glob("segment-*"))
        if changes and not is_empty:
            lines = "".join(f"\n  {change}" for change in changes[:20])
            raise ConfigError(
                f"{run_folder} holds results of another job than this one:{lines}",
                hint="--fresh does everything again, -o FOLDER keeps both",
            )
        on_change = "rerun" if is_empty else "refuse"
        return cls(run_folder, Journal.open(path, fingerprint, on_change=on_change))

    def find(self, stage: str, strand: "Strand", digest: str) -> LedgerEntry | None:
        """Return the result of an earlier run, if it was made from the same inputs. Errors count too.

        Only entries from before the ledger was opened are looked up, so that nobody waits for a writer.
        """
        key = key_of(stage, strand)
        payload = self._journal.done(key) if key in self._known else None
        entry = LedgerEntry.from_bytes(payload) if payload is not None else None
        if entry is None or entry.digest != digest:
            return None
        for name, (n_bytes, content_digest) in entry.files.items():
            fault = self._fault_of(str(entry.outputs.get(name)), n_bytes, content_digest)
            if fault:
                self.notes.append(f"{entry.outputs.get(name)} {fault}: it is made again")
                return None
        return entry

    def _fault_of(self, relative: str, n_bytes: int, content_digest: str) -> str:
        try:
            content = read_plain(self._folder / relative, n_bytes)
        except OSError as error:
            is_longer = error.errno == errno.EFBIG
            return "is not what was written" if is_longer else f"cannot be read ({error.strerror})"
        is_whole = len(content) == n_bytes and digest_of(content) == content_digest
        return "" if is_whole else "is not what was written"

    def keep(self, results: Iterable[tuple[str, "Strand", LedgerEntry]]) -> None:
        """Write results; returns when they are on disk. Raises EvenloadError if the disk is full."""
        self._journal.record_many(
            [(key_of(stage, strand), entry.to_bytes()) for stage, strand, entry in results]
        )

    def close(self) -> None:
        self._journal.close()


def key_of(stage: str, strand: "Strand") -> str:
    """Return the key of a result: short, and valid whatever the item's id holds."""
    name = hashlib.blake2b(strand.item.id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{stage}/{strand.sample}/{name}"


def digest_inputs(values: Mapping[str, Any], seed: int) -> str:
    """Digest an item's own columns and seed; of a file also its size and when it was changed."""
    seen: list[Any] = [seed]
    for name, value in sorted(values.items()):
        seen.append([name, value])
        if isinstance(value, str) and value.startswith("/"):
            try:
                status = Path(value).stat()
                seen.append([status.st_size, status.st_mtime_ns])
            except (OSError, ValueError):
                seen.append(None)
    return _digest_json(seen)


def digest_result(before: str, entry: LedgerEntry) -> str:
    """Digest what the next stage's result is made from: this stage's inputs and its result."""
    seen = [before, entry.outputs, entry.files]
    return _digest_json(seen)


def _digest_json(value: Any) -> str:
    return digest_of(json_text(value).encode("utf-8", "backslashreplace"))


def fingerprint_of(spec: "JobSpec", job_folder: Path) -> dict[str, str]:
    """Collect everything in a job that decides its results; devices and schedule do not."""
    made = {"job.seed": str(spec.job.seed), "stages": " ".join(stage.name for stage in spec.stages)}
    for stage in spec.stages:
        made |= {f"stages.{stage.name}.{name}": text for name, text in _of_stage(stage, job_folder).items()}
    return made


def _of_stage(stage: "StageSpec", job_folder: Path) -> dict[str, str]:
    values = stage.model_dump(mode="json")
    keys = ("target", "params", "call", "outputs", "samples", "when", "best", "python")
    texts = {name: json_text(values.get(name)) for name in keys}
    if stage.batch_changes_bits == "allow":  # else a batch makes no difference
        texts["batch"] = json_text(stage.batch)
    texts["source"] = _source_digest(stage.target, job_folder)
    lossy = [name for name in stage.fit if name in ("fp8", "nf4")]
    texts["fit"] = json_text(lossy)
    if stage.model is not None:
        texts["model"] = json_text([stage.model.path, stage.model.dtype, stage.model.components])
        texts["weights"] = _weights_digest(job_folder / stage.model.path)
    return texts


def _source_digest(target: str, job_folder: Path) -> str:
    module, _, _ = target.rpartition(":")
    file = job_folder / module
    return digest_of(file.read_bytes()) if module.endswith(".py") and file.is_file() else ""


def _weights_digest(folder: Path) -> str:
    """Digest names and sizes of the weights; reading 58 GB would take minutes."""
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".safetensors", ".bin", ".json"))
    seen = [[str(path.relative_to(folder)), path.stat().st_size] for path in files if path.is_file()]
    return digest_of(json_text(seen).encode())


def _changes(path: Path, fingerprint: Mapping[str, str]) -> list[str]:
    """Return how the job differs from the one that made the results in ``path``, one line each."""
    try:
        was = json.loads(read_plain(path / "journal.json", MOST_FACTS_BYTES))["fingerprint"]
        assert isinstance(was, dict)
    except (OSError, ValueError, KeyError, AssertionError):
        return []
    if was.get("stages") != fingerprint.get("stages"):
        return [f"stages: {was.get('stages')}, now {fingerprint.get('stages')}"]
    return [_change(name, was.get(name), now) for name, now in fingerprint.items() if was.get(name) != now]


def _change(name: str, was: str | None, now: str) -> str:
    if name.endswith((".source", ".weights")):
        return f"{name.rpartition('.')[0]}: its {name.rpartition('.')[2]} was changed"
    try:
        before, after = json.loads(was or "null"), json.loads(now)
    except ValueError:
        before, after = was, now
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        parts = [f"{key} {before.get(key)!r}, now {after.get(key)!r}" for key in keys]
        return f"{name}: {'; '.join(parts)}"
    return f"{name}: {before!r}, now {after!r}"
