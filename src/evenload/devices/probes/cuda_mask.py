"""The GPUs that an inherited ``CUDA_VISIBLE_DEVICES`` shows, by CUDA's own rules."""

from collections.abc import Sequence


def visible(gpus: Sequence[Sequence[str]], mask: str | None) -> list[str]:
    """Return the UUIDs that ``mask`` shows, in its order.

    gpus  [GPUs in nvidia-smi's order] the GPU's UUID, or those of its MIG instances
    mask  numbers, UUIDs or their beginnings, separated by commas; None shows all, an empty one nothing

    The first entry that names nothing, or something named before, ends the list; CUDA ignores the rest.
    A number that names a GPU split by MIG shows its instances. (CUDA itself would show only the first; here
    each worker gets its own by UUID, so all can be used.)
    Source: CUDA programming guide, "CUDA environment variables".
    """
    if mask is None:
        return [uuid for gpu in gpus for uuid in gpu]
    shown: list[str] = []
    for entry in mask.split(","):
        named = _named(gpus, entry.strip())
        if not named or any(uuid in shown for uuid in named):
            break
        shown += named
    return shown


def _named(gpus: Sequence[Sequence[str]], entry: str) -> list[str]:
    if entry.isdigit():
        return list(gpus[int(entry)]) if int(entry) < len(gpus) else []
    matches = [uuid for gpu in gpus for uuid in gpu if entry and uuid.lower().startswith(entry.lower())]
    return matches if len(matches) == 1 else []
