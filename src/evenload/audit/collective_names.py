"""Which kernels are collectives, by their names: those of NCCL and its kin, and those of engines."""

import re
from collections.abc import Sequence

PAIRWISE = ("send and receive",)  # between two ranks
UNEVEN = (*PAIRWISE, "broadcast", "reduce", "gather", "scatter", "put")  # some ranks may leave early

_LIBRARIES = ("nccl", "rccl", "msccl", "hccl", "hcom_", "oneccl", "gloo:", "c10d::")
_OPERATIONS = {  # the first word that a name has says which it is
    "allreduce": "all-reduce",
    "all2all": "all-to-all",
    "alltoall": "all-to-all",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "send and receive",
    "send": "send and receive",
    "recv": "send and receive",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_CUSTOM = (  # in the name of the kernel itself, lower case -> operation
    ("crossdevicereduce", "all-reduce"),  # vLLM, SGLang, AITER
    ("allreducefusion", "all-reduce"),  # TensorRT-LLM, FlashInfer
    ("multimemallreduce", "all-reduce"),  # torch's symmetric memory
    ("oneshotallreduce", "all-reduce"),
    ("twoshotallreduce", "all-reduce"),
    ("allreduceprototype", "all-reduce"),  # QuickReduce
    ("quickreduce", "all-reduce"),
    ("multimemreducescatter", "reduce-scatter"),
    ("multimemallgather", "all-gather"),
    ("userbuffers", "all-reduce"),  # Transformer Engine
)
_NAMESPACES = ("deep_ep::", "pplx::", "nvshmem")
_OWN_NAME = re.compile(r"[<(]")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::")


def operation_of(name: str, more: Sequence[str] = ()) -> str:
    """Return the operation of a kernel or span that is a collective, such as "all-reduce"; "" of any other.

    more  parts of the names of further collectives: the user's own
    """
    lower = _ANONYMOUS.sub("", name.lower())
    own = _OWN_NAME.split(lower, maxsplit=1)[0].removeprefix("void ").strip()
    plain = re.sub(r"[^a-z0-9]", "", own)
    if own.startswith((*_LIBRARIES, *_NAMESPACES)):
        usual = "all-to-all" if own.startswith(_NAMESPACES) else "collective"
        return next((operation for word, operation in _OPERATIONS.items() if word in plain), usual)
    found = next((operation for word, operation in _CUSTOM if word in plain), "")
    return found or next((part for part in more if part and part.lower() in lower), "")


def key_of(group: str, operation: str) -> str:
    """Return what all ranks of a group call its collectives of one operation."""
    return f"{group}|{operation}"


def operation_in(key: str) -> str:
    """Return the operation of a key."""
    return key.rpartition("|")[2]
