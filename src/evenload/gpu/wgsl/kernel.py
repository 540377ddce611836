"""What a kernel is: WGSL text with its bindings, and the memory that is bound; one item an invocation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload.errors import ConfigError, quoted

WORKGROUP = 64
MAX_STORAGES = 8
"""Storage buffers that every WebGPU implementation allows per stage."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage buffer: an array of ``element`` (u32, or a type that the declarations name)."""

    name: str
    access: str = "read"
    element: str = "u32"

    def __post_init__(self) -> None:
        if self.access not in ("read", "read_write"):
            raise ConfigError(
                f"storage {self.name}: access {quoted(self.access)}", hint="use read or read_write"
            )


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A compute shader over items 0 .. n - 1; ``body`` knows its own as ``item``.

    declarations  WGSL at module level: functions, types, tables
    body          statements of one invocation
    storages      buffers, bound in this order
    params        names of u32 that the body reads as ``params.name``
    iterations    loop iterations of one invocation, nested loops counted together
    needs_int64   the text uses ``u64``, an extension that not every adapter has
    """

    name: str
    body: str
    storages: Sequence[Storage]
    declarations: str = ""
    params: Sequence[str] = ()
    iterations: int = 0
    needs_int64: bool = False

    def __post_init__(self) -> None:
        if len(self.storages) > MAX_STORAGES:
            raise ConfigError(
                f"kernel {self.name} binds {len(self.storages)} buffers",
                hint=f"{MAX_STORAGES} work everywhere",
            )

    def text(self) -> str:
        """The whole WGSL module; its entry point is ``main``."""
        fields = "".join(f" {name}: u32," for name in ("n", "first", *self.params))
        lines = [f"struct Params {{{fields} }};"]
        for k, storage in enumerate(self.storages):
            kind = f"var<storage, {storage.access}> {storage.name}: array<{storage.element}>"
            lines.append(f"@group(0) @binding({k}) {kind};")
        lines.append(f"@group(0) @binding({len(self.storages)}) var<uniform> params: Params;")
        lines.append(self.declarations)
        lines.append(f"@compute @workgroup_size({WORKGROUP})")
        lines.append("fn main(@builtin(global_invocation_id) id: vec3<u32>) {")
        lines.append("let item = params.first + id.x;")
        lines.append("if (item >= params.n) { return; }")
        return "\n".join((*lines, self.body, "}\n"))


BINDING_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Buffer:
    """A storage buffer, or the part of one from byte ``offset``; good until the context is opened again."""

    raw: Any
    offset: int
    n_bytes: int

    def part(self, offset: int, n_bytes: int) -> "Buffer":
        """A part to bind. Raises ConfigError unless it lies within, at a multiple of 256 bytes."""
        if offset % BINDING_ALIGNMENT or offset < 0 or n_bytes < 1 or offset + n_bytes > self.n_bytes:
            raise ConfigError(
                f"bytes {offset}..{offset + n_bytes} of a buffer of {self.n_bytes}",
                hint=f"a part begins at a multiple of {BINDING_ALIGNMENT}",
            )
        return Buffer(self.raw, self.offset + offset, n_bytes)


def binding_entries(buffers: Sequence[Buffer]) -> list[dict[str, Any]]:
    """Entries of a bind group for ``buffers``, in order."""
    return [
        {"binding": k, "resource": {"buffer": b.raw, "offset": b.offset, "size": b.n_bytes}}
        for k, b in enumerate(buffers)
    ]
