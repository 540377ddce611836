"""Wheels of what a machine lacks, unpacked without network or installer; the machine stays as it is."""

import base64
import csv
import hashlib
import importlib.metadata
import io
import platform
import re
import sys
import zipfile
from pathlib import Path

MOST_UNPACKED = 2 << 30  # bytes of one wheel's files
MOST_SAID = 300  # characters of why a wheel was refused
_NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<system>[^-]+)\.whl"
)


def unpack_wheels(wheels: Path, out: Path) -> list[str]:
    """Unpack into ``out`` each wheel in ``wheels`` whose package is not installed; say what was refused.

    Files are held against the hashes of the wheel's record, and none is written outside of ``out``.
    """
    paths = sorted(wheels.glob("*.whl"))
    refused = [] if paths else [f"no wheel is in {wheels}"]
    for path in paths:
        try:
            unpack(path, out)
        except Exception as error:  # damaged archives raise a dozen kinds, by their compression
            refused.append(f"{path.name}: {error or type(error).__name__}")
    return [one[:MOST_SAID] for one in refused]


def unpack(path: Path, out: Path) -> None:
    """Unpack a wheel, unless its package is installed. Raises ValueError if it does not fit or is damaged."""
    tags = _NAME.fullmatch(path.name)
    if tags is None:
        raise ValueError("no name of a wheel")
    if not path.is_file():
        raise ValueError("no file")
    if is_installed(tags["name"]):
        return
    if not fits(tags["python"], tags["abi"], tags["system"]):
        raise ValueError(f"not for Python {platform.python_version()} on {platform.platform()}")
    with zipfile.ZipFile(path) as wheel:
        files = [entry for entry in wheel.infolist() if not entry.is_dir()]
        if sum(entry.file_size for entry in files) > MOST_UNPACKED:
            raise ValueError(f"more than {MOST_UNPACKED} bytes")
        contents = {entry.filename: wheel.read(entry) for entry in files}
    record = next((name for name in contents if name.endswith(".dist-info/RECORD")), None)
    if record is None:
        raise ValueError("it has no record")
    rows = csv.reader(io.StringIO(contents[record].decode()))
    hashes = {row[0]: row[1] for row in rows if len(row) > 1}
    for name, content in contents.items():
        if name != record and not is_as_recorded(content, hashes.get(name, "")):
            raise ValueError(f"{name[:100]!r} is not as its record says")
    for name, content in contents.items():
        target = (out / name).resolve()
        if not target.is_relative_to(out.resolve()):
            raise ValueError(f"{name[:100]!r} is outside of the package")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def fits(python: str, abi: str, system: str) -> bool:
    """Whether a wheel of these tags is for this Python, system and processor; its C library is not asked."""
    here = f"_{platform.machine().lower()}"
    is_system = any(
        tag == "any" or (tag.startswith(("linux_", "manylinux")) and tag.lower().endswith(here))
        for tag in system.split(".")
    )
    return is_system and any(is_for_us(tag, set(abi.split("."))) for tag in python.split("."))


def is_for_us(python: str, abis: set[str]) -> bool:
    """Whether one tag of a Python, such as "cp312" or "py3", and its binary interfaces is ours (PEP 425)."""
    tag = re.fullmatch(r"(cp|py)(\d)(\d{0,3})", python)
    major, minor = sys.version_info[:2]
    if tag is None or int(tag[2]) != major:
        return False
    if tag[1] == "py":
        return "none" in abis and int(tag[3] or 0) <= minor
    if tag[3] and int(tag[3]) == minor:
        return not abis.isdisjoint({f"cp{major}{minor}", "abi3", "none"})
    return "abi3" in abis and int(tag[3] or 0) <= minor


def is_as_recorded(content: bytes, recorded: str) -> bool:
    """Whether ``content`` has the hash "sha256=..." of a wheel's record (PEP 427)."""
    algorithm, _, digest = recorded.partition("=")
    if algorithm not in ("sha256", "sha384", "sha512"):
        return False
    found = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=")
    return found == digest.encode()
