"""A thin layer over llvmlite's IR builder: addresses as integers, loops and variables as Python blocks.

Kernels take 64-bit integers only (addresses and counts), so that ctypes can call them without wrappers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(n_bits) for n_bits in (8, 16, 32, 64))
POINTER = ir.PointerType()
TO_ZERO = 0x7F80  # MXCSR: rounds towards zero, traps nothing, flushes nothing


class Variable:
    """A value that changes: a stack slot that the optimiser turns into registers."""

    def __init__(self, code: "Code", kind: Any, start: Any | None = None):
        self._code, self._kind = code, kind
        with code.ir.goto_entry_block():
            self._slot = code.ir.alloca(kind)
        if start is not None:
            self.set(start)

    def get(self) -> Any:
        return self._code.ir.load(self._slot, typ=self._kind)

    def set(self, value: Any) -> None:
        self._code.ir.store(value, self._slot)

    def add(self, value: Any) -> None:
        self.set(self._code.ir.add(self.get(), value))


class Code:
    """The body of one function while it is emitted. ``ir`` is the underlying llvmlite builder."""

    def __init__(self, builder: ir.IRBuilder, rounds_to_zero: bool = False):
        self.ir, self.rounds_to_zero = builder, rounds_to_zero
        self._scratch: dict[str, Any] = {}

    # --- integers -------------------------------------------------------------------------------
    def const(self, value: int, kind: Any = I64) -> Any:
        return ir.Constant(kind, value)

    def value(self, value: Any) -> Any:
        return self.const(value) if isinstance(value, int) else value

    def add(self, *terms: Any) -> Any:
        total = self.value(terms[0])
        for term in terms[1:]:
            total = self.ir.add(total, self.value(term))
        return total

    def sub(self, a: Any, b: Any) -> Any:
        return self.ir.sub(self.value(a), self.value(b))

    def mul(self, a: Any, b: Any) -> Any:
        return self.ir.mul(self.value(a), self.value(b))

    def shl(self, a: Any, b: Any) -> Any:
        return self.ir.shl(self.value(a), self.value(b))

    def lshr(self, a: Any, b: Any) -> Any:
        return self.ir.lshr(self.value(a), self.value(b))

    def and_(self, a: Any, b: Any) -> Any:
        return self.ir.and_(self.value(a), self.value(b))

    def less(self, a: Any, b: Any) -> Any:
        return self.ir.icmp_signed("<", self.value(a), self.value(b))

    def min(self, a: Any, b: Any) -> Any:
        a, b = self.value(a), self.value(b)
        return self.ir.select(self.less(a, b), a, b)

    def max(self, a: Any, b: Any) -> Any:
        a, b = self.value(a), self.value(b)
        return self.ir.select(self.less(a, b), b, a)

    # --- memory ---------------------------------------------------------------------------------
    def load(self, address: Any, kind: Any, offset: int = 0, align: int = 1) -> Any:
        return self.ir.load(self.pointer(address, offset), typ=kind, align=align)

    def store(self, value: Any, address: Any, offset: int = 0, align: int = 1) -> None:
        self.ir.store(value, self.pointer(address, offset), align=align)

    def load_int(self, address: Any, index: Any, kind: Any = I64, signed: bool = True) -> Any:
        """Element ``index`` of an array of ``kind``, widened to 64 bits."""
        n_bytes = kind.width // 8
        raw = self.load(self.add(address, self.mul(index, n_bytes)), kind, align=n_bytes)
        if kind is I64:
            return raw
        return self.ir.sext(raw, I64) if signed else self.ir.zext(raw, I64)

    def store_int(self, value: Any, address: Any, index: Any, kind: Any = I64) -> None:
        n_bytes = kind.width // 8
        value = self.value(value)
        narrow = value if kind is I64 else self.ir.trunc(value, kind)
        self.store(narrow, self.add(address, self.mul(index, n_bytes)), align=n_bytes)

    def pointer(self, address: Any, offset: int = 0) -> Any:
        return self.ir.inttoptr(self.add(address, offset) if offset else address, POINTER)

    def stack(self, n_bytes: int, align: int = 64) -> Any:
        """The address of ``n_bytes`` that live until the function returns."""
        with self.ir.goto_entry_block():
            slot = self.ir.alloca(ir.ArrayType(I8, n_bytes))
            slot.align = align
            return self.ir.ptrtoint(slot, I64)

    def scratch(self, name: str, n_bytes: int) -> Any:
        """``stack``, but the same bytes each time that a function asks by this name."""
        if name not in self._scratch:
            self._scratch[name] = self.stack(n_bytes)
        return self._scratch[name]

    def table(self, name: str, values: Sequence[int], kind: Any = I64) -> Any:
        """The address of a constant array."""
        module = self.ir.module
        if name not in module.globals:
            array = ir.ArrayType(kind, len(values))
            constant = ir.GlobalVariable(module, array, name)
            constant.initializer = ir.Constant(array, list(values))
            constant.global_constant = True
            constant.linkage = "internal"
            constant.align = 64
        return self.ir.ptrtoint(module.globals[name], I64)

    def hidden(self, value: Any) -> Any:
        """An integer that the optimiser knows nothing about: constants read there stay in memory."""
        kind = ir.FunctionType(value.type, [value.type])
        return self.ir.call(ir.InlineAsm(kind, "", "=r,0"), [value])

    def spread(self, value: Any, kind: Any) -> Any:
        """One scalar in every lane of a vector."""
        nothing = ir.Constant(kind, ir.Undefined)
        first = self.ir.insert_element(nothing, value, self.const(0, I32))
        return self.shuffle(first, nothing, [0] * kind.count)

    def shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """The chosen lanes of two vectors, those of ``b`` counted behind those of ``a``."""
        order = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.ir.shuffle_vector(a, b, order)

    def copy(self, target: Any, source: Any, n_bytes: int) -> None:
        """Copy a row of ``n_bytes`` (a multiple of 32) that may not overlap."""
        kind = ir.VectorType(I64, 4)
        rows = [self.load(source, kind, offset, align=8) for offset in range(0, n_bytes, 32)]
        for k, row in enumerate(rows):
            self.store(row, target, 32 * k, align=8)

    def prefetch(self, address: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
        function = self.intrinsic("llvm.prefetch.p0", kind)
        self.ir.call(function, [self.pointer(address), *(self.const(k, I32) for k in (0, 3, 1))])

    # --- control --------------------------------------------------------------------------------
    def intrinsic(self, name: str, kind: ir.FunctionType) -> Any:
        module = self.ir.module
        return module.globals[name] if name in module.globals else ir.Function(module, kind, name)

    def variable(self, start: Any, kind: Any = I64) -> Variable:
        return Variable(self, kind, self.value(start) if kind is I64 else start)

    @contextmanager
    def range(self, start: Any, stop: Any, step: int = 1) -> Iterator[Any]:
        """``for index in range(start, stop, step)``; a negative step counts down and stops above ``stop``."""
        i, stop = self.variable(start), self.value(stop)
        with self.loop(lambda: self.less(i.get(), stop) if step > 0 else self.less(stop, i.get())):
            yield i.get()
            i.add(self.const(step))

    @contextmanager
    def loop(self, condition: Callable[[], Any]) -> Iterator[None]:
        """``while condition():``"""
        head, body, after = (self.ir.append_basic_block(name) for name in ("head", "body", "after"))
        self.ir.branch(head)
        self.ir.position_at_end(head)
        self.ir.cbranch(condition(), body, after)
        self.ir.position_at_end(body)
        yield
        self.ir.branch(head)
        self.ir.position_at_end(after)

    @contextmanager
    def when(self, condition: Any, likely: bool | None = None) -> Iterator[None]:
        with self.ir.if_then(condition, likely=likely):
            yield

    def call(self, function: Any, *arguments: Any) -> Any:
        return self.ir.call(function, [self.value(argument) for argument in arguments])

    def function(self, name: str, n_arguments: int, body: Callable[..., Any]) -> Any:
        """An internal function over 64-bit integers, emitted on first use; ``body(code, *arguments)``."""
        module = self.ir.module
        if name in module.globals:
            return module.globals[name]
        return _emit(module, name, n_arguments, body, True, self.rounds_to_zero)


def add_kernels(
    module: ir.Module,
    signatures: Mapping[str, int],
    bodies: Any,
    prefix: str = "",
    rounds_to_zero: str = "",
) -> None:
    """Add a kernel for each of ``signatures`` (its number of arguments), whose body is that of ``bodies``."""
    for name, n_arguments in signatures.items():
        add_kernel(module, f"{prefix}{name}", n_arguments, getattr(bodies, name), rounds_to_zero)


def add_kernel(
    module: ir.Module, name: str, n_arguments: int, body: Callable[..., Any], rounds_to_zero: str = ""
) -> None:
    """Add an exported function over 64-bit integers; what ``body`` returns (or 0) is its result.

    rounds_to_zero  "x86" or "arm", for which it is made: doubles are rounded towards zero in it, and the
                    caller's rounding is as before afterwards; "" if it has no doubles
    """

    def rounding(code: Code, *arguments: Any) -> Any:
        # A function of its own, never inlined: no operation on doubles is moved out of it.
        inner = _emit(module, f"{name}_rounding_to_zero", n_arguments, body, True, True)
        put_back = _round_to_zero(code, rounds_to_zero)
        result = code.call(inner, *arguments)
        put_back()
        return result

    _emit(module, name, n_arguments, rounding if rounds_to_zero else body, False, False)


def _round_to_zero(code: Code, processor: str) -> Callable[[], Any]:
    """Emit the change of rounding; returns what emits its end."""
    if processor == "x86":
        # The whole register: LLVM's intrinsics for any processor read the rounding of the x87 unit, which
        # need not be that of the vector unit, and leave flags and traps as they are.
        kind = ir.FunctionType(ir.VoidType(), [POINTER])
        before, wanted = (code.pointer(code.stack(4, align=4)) for _ in range(2))
        code.ir.call(code.intrinsic("llvm.x86.sse.stmxcsr", kind), [before])
        code.ir.store(code.const(TO_ZERO, I32), wanted)
        load = code.intrinsic("llvm.x86.sse.ldmxcsr", kind)
        code.ir.call(load, [wanted])
        return lambda: code.ir.call(load, [before])
    put = code.intrinsic("llvm.set.rounding", ir.FunctionType(ir.VoidType(), [I32]))
    rounding = code.call(code.intrinsic("llvm.get.rounding", ir.FunctionType(I32, [])))
    code.ir.call(put, [code.const(0, I32)])
    return lambda: code.call(put, rounding)


def _emit(
    module: ir.Module, name: str, n_arguments: int, body: Callable, internal: bool, rounds_to_zero: bool
) -> Any:
    function = ir.Function(module, ir.FunctionType(I64, [I64] * n_arguments), name)
    function.attributes.add("nounwind")
    if internal:
        function.linkage = "internal"
        function.attributes.add("noinline")
    code = Code(ir.IRBuilder(function.append_basic_block("entry")), rounds_to_zero)
    result = body(code, *function.args)
    code.ir.ret(code.const(0) if result is None else result)
    return function
