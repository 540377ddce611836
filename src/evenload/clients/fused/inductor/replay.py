"""Several steps of a compiled graph in one call, from its recording: no Python between them, no new tensor.

Products are done by kernels of our own. All steps share one piece of memory, laid out beforehand; what
differs from step to step is the addresses of their examples, keys, weights, numbers and losses.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload._terminal import log_of
from evenload.clients.fused.inductor.compiling import DirectCall
from evenload.clients.fused.inductor.recording import CallRecording, KernelCall, MemorySpan, Product, record
from evenload.clients.fused.inductor.rewrite import ProductFactor, ProductUpdates, Update, program_for

MESSAGE_BYTES = 1000
MOST_OPERANDS = 128

# A kernel may throw (an index out of bounds), so the calls are made from C++, which can catch it.
CODE = """
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

namespace {
template <std::size_t... I>
void call(int64_t kernel, const int64_t* words, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(decltype(static_cast<void>(I), int64_t{})...)>(kernel)(words[I]...);
}
template <std::size_t N>
void call_with(int64_t kernel, const int64_t* words) { call(kernel, words, std::make_index_sequence<N>{}); }

using Caller = void (*)(int64_t, const int64_t*);
template <std::size_t... N>
const Caller* callers(std::index_sequence<N...>) {
    static const Caller all[] = {call_with<N>...};
    return all;
}
constexpr int64_t most_operands = MOST_OPERANDS;
}

// calls: kernel, number of operands, and each operand's place in a line of words; each step has a line
extern "C" int64_t replay(const int64_t* calls, int64_t n_calls, const int64_t* words, int64_t n_words,
                          int64_t n_steps, char* message, int64_t message_bytes) {
    const Caller* call_of = callers(std::make_index_sequence<most_operands + 1>{});
    int64_t operands[most_operands];
    try {
        for (int64_t step = 0; step < n_steps; step++, words += n_words) {
            const int64_t* at = calls;
            for (int64_t i = 0; i < n_calls; i++) {
                const int64_t kernel = *at++, n = *at++;
                for (int64_t k = 0; k < n; k++) operands[k] = words[*at++];
                call_of[n](kernel, operands);
            }
        }
        return 0;
    } catch (const std::exception& error) {
        std::strncpy(message, error.what(), message_bytes - 1);
    } catch (...) {
        std::strncpy(message, "an unknown error", message_bytes - 1);
    }
    return 1;
}
""".replace("MOST_OPERANDS", str(MOST_OPERANDS))


def make_replay(
    recording: CallRecording, updates: ProductUpdates | None, example: Sequence[Tensor], n_own: int
) -> "KernelReplay | None":
    """The replay of a recording whose first ``n_own`` outputs are wanted of each step; None if it cannot be.

    updates  what follows each run of the graph
    """
    own, factors = recording.outputs[:n_own], recording.outputs[n_own:]
    calls = [_turned(call) if isinstance(call, Product) else call for call in recording.calls]
    if updates is not None:
        calls += [_product_of(u, example, factors) for u in updates.updates]
    kernels = [_kernel(call) for call in calls]
    sizes = {recording.n_arguments + i: size for i, size in enumerate(recording.buffers)}
    is_apart = len({span.memory for span in own}) == n_own
    if None in kernels or not is_apart or any(sizes.get(s.memory) != _n_bytes(s) for s in own):
        return None
    return KernelReplay(calls, kernels, sizes, own, example)


class KernelReplay:
    """The steps of one compiled graph. It keeps nothing between calls, so that threads may share it.

    calls    in their order; ``kernels``: the address and what keeps it loaded, of each
    sizes    bytes of each buffer, by its number as memory
    own      the outputs that are wanted of each step, each a whole buffer
    example  arguments of a step
    """

    def __init__(
        self,
        calls: Sequence[KernelCall | Product],
        kernels: Sequence[Any],
        sizes: dict[int, int],
        own: Sequence[MemorySpan],
        example: Sequence[Tensor],
    ):
        self._kept, self._own = kernels, own
        self._kinds = [(t.shape, t.stride(), t.dtype) for t in example]
        results = {span.memory: i for i, span in enumerate(own)}
        uses = [[span.memory for span in _spans(call)] for call in calls]
        shared = {memory: size for memory, size in sizes.items() if memory not in results}
        offsets, self._n_bytes = laid_out(shared, uses)
        # Memories that differ from step to step: arguments, results, then the shared one, and none at all.
        n = len(example)
        place = {i: (i, 0) for i in range(n)} | {m: (n + i, 0) for m, i in results.items()}
        place |= {memory: (n + len(own), offset) for memory, offset in offsets.items()}
        words: dict[tuple[int, int], int] = {}
        code: list[int] = []
        for call, (address, _) in zip(calls, kernels, strict=True):
            operands = []
            for span in _spans(call):
                base, offset = place[span.memory]
                operands.append((base, offset + span.offset))
            if isinstance(call, Product):
                none = n + len(own) + 1
                operands[3:3] = [(none, call.into.shape[0])]
                operands += [(none, 0)] * (call.alive is None)
            code += [address, len(operands), *(words.setdefault(w, len(words)) for w in operands)]
        self._code, self._n_calls = np.array(code, np.int64), len(calls)
        self._bases = np.array([base for base, _ in words])
        self._offsets = np.array([offset for _, offset in words], np.int64)
        self._replay = _library().replay

    def fits(self, arguments: Sequence[Tensor]) -> bool:
        """Are these arguments like those that it was made for, and has torch one thread?"""
        kinds = [(t.shape, t.stride(), t.dtype) for t in arguments]
        return kinds == self._kinds and torch.get_num_threads() == 1

    def replay_steps(
        self, kept: Sequence[Tensor], stacked: Sequence[Tensor | Sequence[Tensor]], n_steps: int
    ) -> list[Tensor]:
        """Run ``n_steps`` steps; returns the outputs that are wanted, [n_steps, ...] each.

        kept     the first arguments, the same in all steps
        stacked  the others, with a row for each step
        Raises RuntimeError with what a kernel says.
        """
        shared = torch.empty(self._n_bytes + ALIGNMENT, dtype=torch.uint8)
        outputs = [torch.empty((n_steps, *span.shape), dtype=span.dtype) for span in self._own]
        memories = np.zeros((n_steps, len(self._kinds) + len(outputs) + 2), np.int64)
        memories[:, : len(kept)] = [t.data_ptr() for t in kept]
        for i, rows in enumerate([*stacked, *outputs], len(kept)):
            memories[:, i] = _addresses(rows)
        memories[:, -2] = -(-shared.data_ptr() // ALIGNMENT) * ALIGNMENT
        words = memories.take(self._bases, axis=1)  # each step's side by side
        words += self._offsets
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        code = self._code.ctypes.data, self._n_calls, words.ctypes.data, words.shape[1], n_steps
        if self._replay(*code, message, MESSAGE_BYTES):
            raise RuntimeError(message.value.decode(errors="replace"))
        return outputs


def _addresses(rows: Tensor | Sequence[Tensor]) -> Any:
    """The address of each row, or one for all."""
    if isinstance(rows, Tensor):
        return rows.data_ptr() + np.arange(len(rows)) * (rows.stride(0) * rows.element_size())
    return [t.data_ptr() for t in rows] if rows[0] is not rows[-1] else rows[0].data_ptr()


@functools.cache
def _library() -> ctypes.CDLL:
    from torch._inductor.codecache import CppCodeCache

    library: Any = CppCodeCache.load(CODE)
    addresses, number = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int64
    library.replay.argtypes = [*addresses, *addresses, number, ctypes.c_char_p, number]
    library.replay.restype = ctypes.c_int64
    return library


def _spans(call: KernelCall | Product) -> tuple[MemorySpan, ...]:
    if isinstance(call, KernelCall):
        return call.spans
    return (call.left, call.right, call.into, *([call.alive] if call.alive else []))


def _kernel(call: KernelCall | Product) -> tuple[int, Any] | None:
    """The address of its machine code, and what keeps that loaded; None if there is none."""
    if isinstance(call, KernelCall):
        return (call.address, call.library) if len(call.spans) <= MOST_OPERANDS else None
    if len({span.dtype for span in (call.left, call.right, call.into)}) > 1:
        return None
    strides = (span.stride for span in (call.into, call.left, call.right))
    program = program_for(call.into.shape, call.left.shape[2], *strides, call.into.dtype, call.adds)
    if program is None:
        return None
    return ctypes.cast(program.kernels["multiply"], ctypes.c_void_p).value or 0, program  # pyrefly: ignore


def _turned(product: Product) -> Product:
    """``product`` with the columns of ``into`` side by side, if that is possible."""
    if product.into.stride[2] == 1 or product.into.stride[1] != 1:
        return product
    return Product(product.right.transposed(), product.left.transposed(), product.into.transposed())


def _product_of(update: Update, example: Sequence[Tensor], factors: Sequence[MemorySpan]) -> Product:
    def argument(place: int) -> MemorySpan:
        t = example[place]
        return MemorySpan(place, 0, tuple(t.shape), t.stride(), t.dtype)

    def factor(of: ProductFactor) -> MemorySpan:
        if not of.is_argument:
            return factors[of.place]
        own = argument(of.place)
        return own if of.size is None else MemorySpan(of.place, 0, of.size, of.stride, own.dtype)

    return Product(factor(update.left), factor(update.right), argument(update.param), argument(update.alive))


def _n_bytes(span: MemorySpan) -> int:
    return math.prod(span.shape) * span.dtype.itemsize


ALIGNMENT = 64  # bytes, of a line of the cache


def laid_out(sizes: Mapping[int, int], uses: Sequence[Sequence[int]]) -> tuple[dict[int, int], int]:
    """Offsets of the buffers that are used, and the bytes that all take; a multiple of ALIGNMENT each.

    sizes  bytes of each buffer
    uses   the buffers that each call works on, in the order of calls; others than in ``sizes`` are left out
    A buffer is in use from the first call that has it to the last. Each goes to the first gap that it fits.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, buffers in enumerate(uses):
        for buffer in buffers:
            if buffer in sizes:
                first.setdefault(buffer, at)
                last[buffer] = at
    offsets: dict[int, int] = {}
    ends: dict[int, int] = {}
    for buffer in sorted(first, key=lambda b: first[b]):
        size = -(-sizes[buffer] // ALIGNMENT) * ALIGNMENT
        beside = sorted((offsets[b], ends[b]) for b in offsets if last[b] >= first[buffer])
        place = 0
        for begin, end in beside:
            if place + size <= begin:
                break
            place = max(place, end)
        offsets[buffer], ends[buffer] = place, place + size
    return offsets, max(ends.values(), default=0)


STEPS = 2  # taken both ways: the second with what the first has written
CLOSE = 1e-4  # of a tensor's largest number: products are summed in another order

log = log_of(__name__)


def replayed_steps(run: Any, finish: Any, example: Sequence[Tensor], n_own: int) -> KernelReplay | None:
    """The replay of ``run``, followed by ``finish``; None if it cannot be recorded, or gives other numbers.

    run      what ``compile_directly`` gave; ``finish``: what ``rewrite`` gave
    example  arguments of a step, not changed
    n_own    outputs of the graph that the step wants
    """
    is_known = isinstance(run, DirectCall) and (finish is None or isinstance(finish, ProductUpdates))
    is_on_cpu = all(t.device.type == "cpu" for t in example)
    if not (is_known and is_on_cpu and torch.get_num_threads() == 1):
        return None
    try:
        recording = record(run.function, _copies(example))
        replay = make_replay(recording, finish, example, n_own) if recording is not None else None
    except Exception as error:  # of torch's compiler, whose insides these are
        log.warning(f"steps are taken one by one, which is slower: {type(error).__name__}: {error}")
        return None
    return replay if replay and is_same(replay, run, finish, example, n_own) else None


def is_same(
    replay: KernelReplay, run: Callable[..., Any], finish: Any, example: Sequence[Tensor], n_own: int
) -> bool:
    """Do both change copies of the arguments in the same way, and give the same outputs, but for rounding?"""
    replayed, stepped = _copies(example), _copies(example)
    outputs = replay.replay_steps(replayed, [], STEPS)
    with torch.no_grad():
        for step in range(STEPS):
            out = run(*stepped)
            if finish is not None:
                finish(stepped, out[n_own:])
            if not all(_are_close(own[step], o) for own, o in zip(outputs, out, strict=False)):
                return False
    return all(_are_close(a, b) for a, b in zip(replayed, stepped, strict=True))


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


def _are_close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    largest = b.nan_to_num(0.0, 0.0, 0.0).abs().max() if b.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=CLOSE * float(largest), equal_nan=True)
