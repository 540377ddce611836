"""The .zkey format of Groth16 over BN254, as snarkjs writes it: read strictly, and written.

A point in the file is affine with coordinates in Montgomery form (R = 2^256); infinity is all zeros.
Coefficients carry R^2, so that one Montgomery product with a plain witness value gives Montgomery form.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from evenload.errors import FormatError, printable
from evenload.gpu.field import FQ, FR
from evenload.gpu.llvm.rows import rows_not_below
from evenload.zk.bn254.plain_curve import checked_point, row_of
from evenload.zk.bn254.plain_pairing import has_order_r
from evenload.zk.formats.container import Container, Source, open_container, write_container
from evenload.zk.groth16 import VerificationKey

TITLES = {1: "protocol", 2: "header", 3: "IC points", 4: "coefficients", 10: "contributions"}
TITLES |= {5: "A points", 6: "B1 points", 7: "B2 points", 8: "C points", 9: "H points"}
MAX_DOMAIN = 1 << 27
COEFFICIENT = np.dtype([("matrix", "<u4"), ("row", "<u4"), ("wire", "<u4"), ("value", "<u8", 4)])
_PROTOCOLS = {1: "groth16", 2: "plonk", 10: "fflonk"}
_ROW_SECTIONS = {"A": 5, "B1": 6, "B2": 7, "C": 8, "H": 9}
_HEADER_BYTES = 660
_HEADER_POINTS = (("alpha1", 1), ("beta1", 1), ("beta2", 2), ("gamma2", 2), ("delta1", 1), ("delta2", 2))


@dataclass(frozen=True, slots=True)
class ZKey:
    """A proving key. Points of the header are plain affine integers (None: infinity), the long lists are
    rows.

    coefficients  [n] COEFFICIENT records: every matrix is 0 or 1, every row below ``domain_size``, every wire
                  below ``n_vars``, every value below r
    sections      [n, 8] or [n, 16] uint64 rows for A, B1, B2, C, H: lengths are checked, the points
                  themselves are checked where they are loaded (``evenload.zk.key``)
    """

    name: str
    sha256: str
    n_vars: int
    n_public: int
    domain_size: int
    alpha1: Any
    beta1: Any
    beta2: Any
    gamma2: Any
    delta1: Any
    delta2: Any
    ic: tuple[Any, ...]
    coefficients: np.ndarray
    sections: dict[str, np.ndarray]
    offsets: dict[str, int]
    contributions: bytes

    @property
    def verification_key(self) -> VerificationKey:
        return VerificationKey(self.alpha1, self.beta2, self.gamma2, self.delta2, self.ic)

    def where(self, section: str) -> Any:
        """A function (position, why) -> message that names the section and the byte of a point."""
        number = _ROW_SECTIONS[section]
        size = 128 if section == "B2" else 64

        def message(position: int, why: str) -> str:
            at = self.offsets[section] + size * position
            return f"{self.name}: section {number} ({TITLES[number]}) at byte {at}: point {position} {why}"

        return message


def read_zkey(source: Source, name: str | None = None) -> ZKey:
    """Read and check a key.

    Raises FormatError naming section and byte: damaged container, another protocol, curve or size than the
    sections hold, indices out of range, values not below their modulus, header points off the curve or
    outside the subgroup.
    """
    box = open_container(source, b"zkey", 1, TITLES, name)
    try:
        sizes = _read_header(box)
        n_vars, n_public, domain_size = sizes
        lengths = {3: (n_public + 1, 64), 5: (n_vars, 64), 6: (n_vars, 64), 7: (n_vars, 128)}
        lengths |= {8: (n_vars - n_public - 1, 64), 9: (domain_size, 64)}
        for section, (n, size) in lengths.items():
            box.length(section, n * size, f"{n} points")
        return ZKey(
            box.name,
            box.sha256(),
            *sizes,
            coefficients=_coefficients(box, *sizes),
            **_header_points(box),
            ic=_ic_points(box),
            sections={
                key: box.rows(number, lengths[number][1]).view(np.uint64)
                for key, number in _ROW_SECTIONS.items()
            },
            offsets={key: box.sections[number][0] for key, number in _ROW_SECTIONS.items()},
            contributions=box.read(10) if 10 in box.sections else b"",
        )
    finally:
        box.close()


def _read_header(box: Container) -> tuple[int, int, int]:
    box.length(1, 4, "a protocol number")
    protocol = struct.unpack("<I", box.read(1))[0]
    if protocol != 1:
        what = _PROTOCOLS.get(protocol, "unknown")
        raise box.fault(1, 0, f"protocol {protocol} ({what}); only 1 (groth16) is supported")
    if box.length(2) < 4 or struct.unpack("<I", box.read(2)[:4])[0] != 32 or box.length(2) != _HEADER_BYTES:
        raise box.fault(2, 0, "not a header over BN254", hint="keys over other curves are not supported")
    header = box.read(2)
    for at, prime in ((4, FQ), (40, FR)):
        if header[at - 4 : at + 32] != struct.pack("<I", 32) + prime.modulus.to_bytes(32, "little"):
            raise box.fault(2, at, f"the prime is not that of BN254's {prime.name}")
    n_vars, n_public, domain_size = struct.unpack_from("<III", header, 72)
    if n_public >= n_vars:
        raise box.fault(2, 76, f"{n_public} public inputs and a constant do not fit {n_vars} wires")
    if domain_size < 2 or domain_size & (domain_size - 1) or domain_size > MAX_DOMAIN:
        raise box.fault(2, 80, f"domain of {domain_size}; must be a power of two from 2 to 2^27")
    return n_vars, n_public, domain_size


def _point(words: bytes, degree: int) -> Any:
    """A plain affine point; raises ValueError saying what is wrong with it."""
    point = checked_point(words)
    if degree == 2 and point is not None and not has_order_r(point):
        raise ValueError("is not in the subgroup of order r")
    return point


def _header_points(box: Container) -> dict[str, Any]:
    header, at, points = box.read(2), 84, {}
    for name, degree in _HEADER_POINTS:
        try:
            points[name] = _point(header[at : at + 64 * degree], degree)
        except ValueError as error:
            raise box.fault(2, at, f"{name} {error}") from None
        if points[name] is None:
            raise box.fault(2, at, f"{name} is infinity")
        at += 64 * degree
    return points


def _ic_points(box: Container) -> tuple[Any, ...]:
    content, points = box.read(3), []
    for k in range(0, len(content), 64):
        try:
            points.append(_point(content[k : k + 64], 1))
        except ValueError as error:
            raise box.fault(3, k, f"point {k // 64} {error}") from None
    return tuple(points)


def _coefficients(box: Container, n_vars: int, n_public: int, domain_size: int) -> np.ndarray:
    if box.length(4) < 4:
        raise box.fault(4, 0, "too short to hold a count")
    offset = box.sections[4][0]
    box.file.seek(offset)
    n = struct.unpack("<I", box.file.read(4))[0]
    size = COEFFICIENT.itemsize
    box.length(4, 4 + size * n, f"{n} coefficients")
    records = box.rows(4, size, skip=4).view(COEFFICIENT).reshape(-1)
    limits = {"matrix": 2, "row": domain_size, "wire": n_vars}
    for k, (column, limit) in enumerate(limits.items()):
        bad = np.flatnonzero(records[column] >= limit)
        if len(bad):
            first = int(bad[0])
            value = int(records[column][first])
            raise box.fault(
                4, 4 + size * first + 4 * k, f"coefficient {first}: {column} {value} is not below {limit}"
            )
    bad = rows_not_below(records["value"], FR.modulus)
    if len(bad):
        first = int(bad[0])
        raise box.fault(4, 4 + size * first + 12, f"coefficient {first}: value is not below r")
    return records


def point_rows(points: list[Any], degree: int) -> np.ndarray:
    """[n, 8 * degree] uint64 rows of plain affine points, as the file holds them."""
    content = b"".join(row_of(point, degree) for point in points)
    return np.frombuffer(content, np.uint64).reshape(-1, 8 * degree)


def write_zkey(target: str | Path | BinaryIO, key: ZKey) -> None:
    """Write ``key``, sections in ascending order as snarkjs does after a contribution. Raises FormatError if
    a section has a wrong length."""
    lengths = {"A": key.n_vars, "B1": key.n_vars, "B2": key.n_vars, "H": key.domain_size}
    lengths["C"] = key.n_vars - key.n_public - 1
    for section, n in lengths.items():
        if len(key.sections[section]) != n:
            raise FormatError(f"section {section} holds {len(key.sections[section])} points, not {n}")
    header = b"".join(struct.pack("<I", 32) + p.modulus.to_bytes(32, "little") for p in (FQ, FR))
    header += struct.pack("<III", key.n_vars, key.n_public, key.domain_size)
    header += b"".join(point_rows([getattr(key, name)], degree).tobytes() for name, degree in _HEADER_POINTS)
    rows = {number: [np.ascontiguousarray(key.sections[name]).data] for name, number in _ROW_SECTIONS.items()}
    coefficients = [struct.pack("<I", len(key.coefficients)), np.ascontiguousarray(key.coefficients).data]
    sections = {
        1: [struct.pack("<I", 1)],
        2: [header],
        3: [point_rows(list(key.ic), 1).tobytes()],
        4: coefficients,
        **rows,
        10: [key.contributions or bytes(64) + struct.pack("<I", 0)],
    }
    return write_container(target, b"zkey", 1, list(sections.items()))


_CONTRIBUTION_BYTES = 64 * 3 + 128 + 64
_MAX_LISTED = 1000


def contribution_names(content: bytes) -> list[str]:
    """The name of each contribution, "?" where there is none or the section is damaged from there on."""
    if len(content) < 68:
        return []
    n, at, names = struct.unpack_from("<I", content, 64)[0], 68, []
    for _ in range(min(n, _MAX_LISTED)):
        head = at + _CONTRIBUTION_BYTES
        if head + 8 > len(content):
            return [*names, "?"]
        length = struct.unpack_from("<I", content, head + 4)[0]
        names.append(_name(content[head + 8 : head + 8 + length]))
        at = head + 8 + length
    return names


def _name(parameters: bytes) -> str:
    """Parameters are a type byte, then: 1 length and name; 2 one byte; 3 length and beacon hash."""
    at = 0
    while at + 1 < len(parameters):
        kind, value = parameters[at], parameters[at + 1]
        if kind == 1:
            return printable(parameters[at + 2 : at + 2 + value].decode("utf-8", "replace"), 255)
        at += 2 if kind == 2 else 2 + value
    return "?"
