"""Compile a kernel to an object file with an entry in C, by numba.

The object holds ``entry(arguments..., [result]) -> int64`` and needs nothing but the C library. An entry
looks at each array itself, as NumPy's C API lays it out, and returns REFUSED if one is not of the kernel's
types.
"""

from typing import Any

import numba as typed_numba
import numpy as np
from llvmlite import ir
from numba.core.compiler_lock import global_compiler_lock

from evenload.native import machine
from evenload.native.signature import FAILED, REFUSED, Leaf, Named, leaves

numba: Any = typed_numba  # its own types are few, and not all right

I64, I32, I8, POINTER, DOUBLE = (
    ir.IntType(64),
    ir.IntType(32),
    ir.IntType(8),
    ir.IntType(8).as_pointer(),
    ir.DoubleType(),
)
CONTIGUOUS_AND_ALIGNED = 0x101  # NumPy's flags

# What numba asks its runtime for in kernels that allocate: a block with a head (NRT_MemInfo) before it.
RUNTIME = """
%head = type { i64, i8*, i8*, i8*, i64, i8* }
declare i8* @malloc(i64)
declare void @free(i8*)
define i8* @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %wide = zext i32 %align to i64
  %spare = add i64 %wide, 48
  %total = add i64 %spare, %size
  %block = call i8* @malloc(i64 %total)
  %failed = icmp eq i8* %block, null
  br i1 %failed, label %none, label %some
none:
  ret i8* null
some:
  %address = ptrtoint i8* %block to i64
  %after = add i64 %address, %spare
  %rest = urem i64 %after, %wide
  %start = sub i64 %after, %rest
  %place = inttoptr i64 %start to i8*
  %mi = bitcast i8* %block to %head*
  store %head { i64 1, i8* null, i8* null, i8* null, i64 0, i8* null }, %head* %mi
  %data = getelementptr %head, %head* %mi, i32 0, i32 3
  store i8* %place, i8** %data
  %length = getelementptr %head, %head* %mi, i32 0, i32 4
  store i64 %size, i64* %length
  ret i8* %block
}
define i8* @NRT_MemInfo_alloc_safe_aligned(i64 %size, i32 %align) {
  %block = call i8* @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align)
  ret i8* %block
}
define void @NRT_MemInfo_call_dtor(i8* %block) {
  call void @free(i8* %block)
  ret void
}
"""


def emit(kernel: Any, signature: tuple[Leaf | Named, ...]) -> bytes:
    """The object file of a ``Piece``, for the processor that numba compiles for. Raises what numba raises."""
    compiled = numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        _flat_function(kernel, signature)
    )
    types = tuple(kind for leaf in leaves(signature) for kind in _numba_types(leaf))
    compiled.compile(types)
    result = compiled.overloads[types]
    context = result.target_context
    with global_compiler_lock:
        library = context.codegen().create_library("entry")
        module = library.create_ir_module("entry")
        _add_entry(module, context, result, list(leaves(signature)))
        library.add_ir_module(module)
        library.add_linking_library(result.library)
        library.finalize()
        return _closed(library.get_llvm_str(), context.codegen())


def set_processor(name: str, features: str) -> None:
    """Let numba compile for another processor than this one; once, before it compiles anything."""
    numba.config.CPU_NAME, numba.config.CPU_FEATURES = name, features


def _flat_function(kernel: Any, signature: tuple[Leaf | Named, ...]) -> Any:
    """The kernel as a function of numbers and, for each array, of its data and dimensions."""
    names: dict[str, Any] = {"kernel": kernel, "carray": numba.carray}
    parameters: list[str] = []

    def text(item: Leaf | Named) -> str:
        if isinstance(item, Named):
            names[item.type.__name__] = item.type
            return f"{item.type.__name__}({', '.join(map(text, item.items))})"
        if item.kind == "none":
            return "None"
        name = f"a{len(parameters)}"
        parameters.append(name)
        if item.ndim < 0:
            return f"{name} != 0" if item.kind == "bool" else name
        sizes = [f"{name}_{axis}" for axis in range(item.ndim)]
        parameters.extend(sizes)
        return f"carray({name}, ({' '.join(f'{size},' for size in sizes)}))"

    call = ", ".join(map(text, signature))
    exec(f"def flat({', '.join(parameters)}):\n    return kernel({call})\n", names)
    return names["flat"]


def _numba_types(leaf: Leaf) -> list[Any]:
    if leaf.kind == "none":
        return []
    if leaf.ndim < 0:
        return [numba.float64 if leaf.kind == "float" else numba.int64]
    element = numba.from_dtype(np.dtype(leaf.kind))
    return [numba.types.CPointer(element), *[numba.int64] * leaf.ndim]


def _add_entry(module: ir.Module, context: Any, result: Any, arguments: list[Leaf]) -> None:
    """Define ``entry`` in ``module``: check and open the arguments, call the kernel, convert its result."""
    of_type, of_none = (_variable(module, name) for name in ("ndarray_type", "none"))
    returns = result.signature.return_type
    known = numba.types
    if not isinstance(returns, known.Integer | known.Float | known.Boolean | known.NoneType):
        raise TypeError(f"an entry cannot return {returns}")
    is_float = isinstance(returns, numba.types.Float)
    _variable(module, "returns_float", int(is_float))
    kinds = [DOUBLE if leaf.kind == "float" and leaf.ndim < 0 else I64 for leaf in arguments]
    function = ir.Function(module, ir.FunctionType(I64, [*kinds, *[I64] * is_float]), "entry")
    builder = ir.IRBuilder(function.append_basic_block())
    refuse = function.append_basic_block("refuse")
    given: list[Any] = []
    for leaf, value in zip(arguments, function.args, strict=False):
        if leaf.kind == "none":
            _go_on_if(builder, refuse, builder.icmp_unsigned("==", value, builder.load(of_none)))
        elif leaf.ndim < 0:
            given.append(value)
        else:
            given += _open_array(builder, refuse, value, leaf, builder.load(of_type))
    types = result.signature.args
    values = [
        builder.inttoptr(value, context.get_value_type(kind)) if isinstance(kind, known.CPointer) else value
        for value, kind in zip(given, types, strict=True)
    ]
    callee = context.declare_function(module, result.fndesc)
    status, answer = context.call_conv.call_function(builder, callee, returns, types, values)
    with builder.if_then(status.is_error, likely=False):
        builder.ret(I64(FAILED))
    if is_float:
        wide = context.cast(builder, answer, returns, numba.float64)
        builder.store(wide, builder.inttoptr(function.args[-1], DOUBLE.as_pointer()))
    if is_float or isinstance(returns, numba.types.NoneType):
        builder.ret(I64(0))
    else:
        builder.ret(context.cast(builder, answer, returns, numba.int64))
    builder.position_at_end(refuse)
    builder.ret(I64(REFUSED))


def _variable(module: ir.Module, name: str, value: int = 0) -> ir.GlobalVariable:
    found: Any = ir.GlobalVariable(module, I64, name)
    found.initializer = I64(value)
    return found


def _open_array(builder: ir.IRBuilder, refuse: Any, at: Any, leaf: Leaf, array_type: Any) -> list[Any]:
    """The address of the data and the dimensions; refused unless of exactly this dtype, and in C order."""

    def read(base: Any, offset: int, kind: Any = I64) -> Any:
        return builder.load(builder.inttoptr(builder.add(base, I64(offset)), kind.as_pointer()))

    def equal(value: Any, wanted: int) -> Any:
        return builder.icmp_unsigned("==", value, value.type(wanted))

    _go_on_if(builder, refuse, builder.icmp_unsigned("==", read(at, 8), array_type))
    dtype = read(at, 56)
    flags = builder.and_(read(at, 64, I32), I32(CONTIGUOUS_AND_ALIGNED))
    fits = builder.and_(equal(read(at, 24, I32), leaf.ndim), equal(flags, CONTIGUOUS_AND_ALIGNED))
    fits = builder.and_(fits, equal(read(dtype, 28, I32), np.dtype(leaf.kind).num))
    fits = builder.and_(fits, builder.not_(equal(read(dtype, 26, I8), ord(">"))))
    _go_on_if(builder, refuse, fits)
    dims = read(at, 32)
    return [read(at, 16), *(read(dims, 8 * axis) for axis in range(leaf.ndim))]


def _go_on_if(builder: ir.IRBuilder, refuse: Any, condition: Any) -> None:
    after = builder.append_basic_block()
    builder.cbranch(condition, after, refuse)
    builder.position_at_end(after)


def _closed(text: str, codegen: Any) -> bytes:
    """Everything but the entry private, what the entry does not need gone, the runtime linked in."""
    llvm = machine.binding()
    module = llvm.parse_assembly(text)
    present = {function.name for function in module.functions if function.is_declaration}
    if any(name.startswith("NRT_MemInfo") for name in present):
        runtime = llvm.parse_assembly(RUNTIME)
        runtime.triple, runtime.data_layout = module.triple, module.data_layout
        module.link_in(runtime)
    for function in module.functions:
        if not function.is_declaration and function.name != "entry":
            function.linkage = "internal"
    shared = {"ndarray_type", "none", "returns_float"}
    for variable in module.global_variables:
        if not variable.is_declaration and variable.name not in shared:
            variable.linkage = "internal"
    machine_of_numba = codegen._tm
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine_of_numba, options)
    builder.getModulePassManager().run(module, builder)
    left = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")}
    if unknown := {name for name in left if name.startswith(("NRT_", "numba_", "Py"))}:
        raise TypeError(f"a kernel needs {sorted(unknown)} of numba's runtime")
    return machine_of_numba.emit_object(module)
