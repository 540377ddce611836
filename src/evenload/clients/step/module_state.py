"""What a model remembers outside its state dict, put back before each client that the same copy trains.

restored   buffers of all kinds, attributes of modules and parameters, hooks, containers of submodules, flags
refused    what copies of a model share, so that it cannot be put back: variables of closures, attributes of
           classes, objects that deepcopy returns as they are. An error names what changed there.
"""

import copy
import dis
import functools
import io
import pickle
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from evenload.clients.step.dropout import KEY
from evenload.clients.step.function_state import SharedByClients, closure_of, generator_states
from evenload.errors import ConfigError, quoted

_REGISTRIES = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set))
_HOOKS = {  # attribute of a parameter that holds hooks on its gradient -> the method that adds one
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}
_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, type, range, Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
)
_HINT = "keep it in a buffer, or in an attribute of a module that copy.deepcopy copies"


class ModuleState:
    """All that ``model`` held beside its parameters' numbers when this was made.

    Plain values of attributes are put back by assignment, other objects by a deep copy: what was written into
    them is gone, too. Torch's own modules do not write into theirs.
    """

    def __init__(self, model: nn.Module):
        self._attributes: list[tuple[str, dict, dict]] = []  # owner's name, its __dict__, and what it was
        self._containers: list[tuple[str, Any, list]] = []  # owner's name, what it registers, and what it was
        self._params = [(p, p.requires_grad) for p in model.parameters()]
        self._hooks = [(p, name, dict(getattr(p, name) or {})) for p, _ in self._params for name in _HOOKS]
        named = [(name, b) for name, b in model.named_buffers() if not name.endswith(KEY)]
        self._buffers = [(b, b.detach().clone()) for _, b in named]
        self._own: dict[int, Any] = {
            id(one): one for one in (*model.modules(), *model.parameters(), *model.buffers())
        }
        objects: dict[tuple[int, str], Any] = {}  # (position in _attributes, name) -> no plain value
        self._shared: dict[str, Callable[[], Any]] = {}
        for name, module in model.named_modules():
            owner = name or "the model"
            for key in _REGISTRIES & module.__dict__.keys():
                container = module.__dict__[key]
                self._containers.append((f"{key} of {owner}", container, _contents(container)))
            if not all(map(_is_known, type(module).__mro__)):
                self._sort(owner, module, len(self._attributes), objects)
            if not type(module).__module__.startswith("evenload"):  # ours are set anew in each step
                self._attributes.append((owner, module.__dict__, dict(module.__dict__)))
        for name, p in model.named_parameters():
            attributes: Any = p.__dict__
            self._attributes.append((name, attributes, dict(attributes)))
        self._objects = copy.deepcopy(objects, dict(self._own))
        for kind in {kind for module in model.modules() for kind in type(module).__mro__}:
            if not _is_known(kind):
                self._shared |= _class_attributes(kind) | _generators_of(kind)
        self._prints = {name: self._print(read()) for name, read in self._shared.items()}
        self._lengths = [len(container) for _, container, _ in self._containers]
        self._filled = [entry for entry in self._containers if entry[2]]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; parameters keep their numbers, and have no gradients."""
        for _, attributes, before in self._attributes:
            if len(attributes) != len(before):
                for key in attributes.keys() - before.keys():
                    del attributes[key]
            attributes.update(before)
        is_longer = self._lengths != [len(container) for _, container, _ in self._containers]
        for _, container, contents in self._containers if is_longer else self._filled:
            if not _holds(container, contents):
                container.clear()
                container.update(contents)
        if self._objects:
            for (at, key), value in copy.deepcopy(self._objects, dict(self._own)).items():
                self._attributes[at][1][key] = value
        for buffer, value in self._buffers:
            if buffer.shape != value.shape:
                buffer.set_(value.clone())  # pyrefly: ignore
            else:
                buffer.copy_(value)
        for p, requires_grad in self._params:
            p.grad = None
            if p.requires_grad is not requires_grad:
                p.requires_grad_(requires_grad)
        for p, name, before in self._hooks:
            if (now := getattr(p, name)) and now != before:
                now.clear()
                now.update(before)

    def refuse_shared(self) -> None:
        """Raise SharedByClients if what all copies of the model share is not what it was."""
        if (name := self._changed_shared()) is not None:
            raise SharedByClients(
                f"{name} changed while a client was trained, and would enter other clients' training",
                hint=_HINT,
            )

    def changed(self) -> str | None:
        """The name of something that has changed, or None; numbers in buffers and parameters do not count."""
        for at, (owner, attributes, before) in enumerate(self._attributes):
            for key in attributes.keys() | before.keys():
                if key not in attributes or key not in before:
                    return f"attribute {quoted(key)} of {owner}"
                now, was = attributes[key], self._objects.get((at, key), before[key])
                is_same = now is was or (_is_atom(was) and type(now) is type(was) and now == was)
                if not is_same and ((at, key) not in self._objects or self._print(now) != self._print(was)):
                    return f"attribute {quoted(key)} of {owner}"
        for owner, container, contents in self._containers:
            if not _holds(container, contents):
                return owner
        return self._changed_shared()

    def _sort(self, owner: str, module: nn.Module, at: int, objects: dict[tuple[int, str], Any]) -> None:
        """Add the module's attributes that are no plain values to ``objects``, or to what is shared."""
        for key, value in module.__dict__.items():
            if key in _REGISTRIES or id(value) in self._own or _is_atom(value):
                continue
            if isinstance(value, types.FunctionType):
                if next(_variables(value), None) is not None:
                    self._shared[f"attribute {quoted(key)} of {owner}"] = lambda value=value: value
            elif copy.deepcopy(value, dict(self._own)) is value:
                self._shared[f"attribute {quoted(key)} of {owner}"] = lambda value=value: value
            else:
                objects[at, key] = value

    def _changed_shared(self) -> str | None:
        return next((n for n, read in self._shared.items() if self._print(read()) != self._prints[n]), None)

    def _print(self, value: Any, depth: int = 4) -> Any:
        """What stays equal as long as nothing is written into ``value``; modules count by identity."""
        if id(value) in self._own or isinstance(value, nn.Module) or not depth:
            return id(value)
        if isinstance(value, types.FunctionType):
            return [self._print(part, depth - 1) for part in _variables(value)]
        try:
            return _pickled(value, self._own)
        except Exception:
            attributes = getattr(value, "__dict__", {})
            return [(k, self._print(v, depth - 1)) for k, v in attributes.items()] or id(value)


class _Pickler(pickle.Pickler):
    """A pickler to which a model's own parts, and all modules, are references, and sets have no order."""

    def __init__(self, file: io.BytesIO, own: dict[int, Any]):
        super().__init__(file)
        self._own = own

    def persistent_id(self, obj: Any) -> int | list[bytes] | None:
        if type(obj) in (set, frozenset):  # a copy of it may come in another order
            return sorted(_pickled(one, self._own) for one in obj)
        return id(obj) if id(obj) in self._own or isinstance(obj, nn.Module) else None


def _pickled(value: Any, own: dict[int, Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, own).dump(value)
    return file.getvalue()


ParameterHook = tuple[str, str, Callable[..., Any]]  # of a parameter, of _HOOKS, and the function


def hooks_of(model: nn.Module) -> list[ParameterHook]:
    """The hooks on gradients of parameters, which neither deepcopy nor pickle takes along."""
    named = model.named_parameters()
    return [
        (name, kind, fn) for name, p in named for kind in _HOOKS for fn in (getattr(p, kind) or {}).values()
    ]


def set_hooks(model: nn.Module, hooks: list[ParameterHook]) -> None:
    """Register ``hooks_of`` another copy of the model."""
    named = dict(model.named_parameters())
    for name, kind, fn in hooks:
        if named[name].requires_grad:
            getattr(named[name], _HOOKS[kind])(fn)


def copy_model(model: nn.Module) -> nn.Module:
    """A deep copy, with hooks on parameters.

    Raises ConfigError that names an attribute which cannot be copied, or a function that would still use the
    original's parts.
    """
    _refuse_holding(model)
    memo: dict[int, Any] = {id(t): t.detach().clone() for t in _computed_before_calls(model)}
    try:
        copied = copy.deepcopy(model, memo)
        set_hooks(copied, copy.deepcopy(hooks_of(model), memo))
        return copied
    except Exception as error:
        own = {id(one): one for one in (*model.modules(), *model.parameters(), *model.buffers())}
        for name, module in model.named_modules():
            for key, value in module.__dict__.items():
                try:
                    copy.deepcopy(value, dict(own))
                except Exception as reason:
                    raise ConfigError(
                        f"attribute {quoted(key)} of {name or 'the model'} cannot be copied, and every "
                        f"client has a model of its own: {type(reason).__name__}: {reason}".splitlines()[0],
                        hint="leave it out of the model, compute it in forward, or give it a __deepcopy__",
                    ) from error
        raise


def refuse_unreadable(model: nn.Module) -> None:
    """Raise ConfigError for parameters and a state dict that are not what the model's modules have."""
    lazy = next((n for n, p in model.named_parameters() if isinstance(p, UninitializedParameter)), None)
    if lazy is not None:
        raise ConfigError(
            f"parameter {quoted(lazy)} has no shape yet", hint="call the model once, on a batch, before"
        )
    own = {id(p) for m in model.modules() for p in m._parameters.values() if p is not None}
    if {id(p) for p in model.parameters()} != own or {id(p) for _, p in model.named_parameters()} != own:
        raise ConfigError(
            f"parameters() of {type(model).__name__} gives others than its modules have",
            hint="freeze what is not to be trained: p.requires_grad_(False)",
        )
    state, named = model.state_dict(keep_vars=True), dict(_named_tensors(model))
    wrong = [name for name, value in state.items() if named.get(name) is not value]
    wrong += [name for name, _ in model.named_parameters() if name not in state]
    if wrong:
        raise ConfigError(
            f"the state dict of {type(model).__name__} differs from its parameters and buffers in "
            f"{quoted(wrong[0])}",
            hint="use a buffer in place of get_extra_state, and take off hooks on state_dict",
        )


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _computed_before_calls(model: nn.Module) -> Iterator[torch.Tensor]:
    """Tensors that torch.nn.utils (prune, weight_norm) computes from parameters before a module is called."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            name: Any = getattr(hook, "_tensor_name", getattr(hook, "name", None))
            found = module.__dict__.get(name) if type(hook).__module__.startswith("torch.nn.utils") else None
            if isinstance(found, torch.Tensor):
                yield found


def _refuse_holding(model: nn.Module) -> None:
    """Raise ConfigError for a hook or attribute that is a function which holds parts of this very model."""
    own: dict[int, str] = {id(model): "the model"}
    for named in (model.named_modules, model.named_parameters, model.named_buffers):
        own |= {id(part): quoted(name) for name, part in named() if name}
    functions = [(f"a hook of parameter {quoted(name)}", fn) for name, _, fn in hooks_of(model)]
    for name, module in model.named_modules():
        owner = quoted(name) if name else "the model"
        for key, value in module.__dict__.items():
            if key in _REGISTRIES and key.endswith("hooks"):
                functions += [(f"a hook of {owner}", fn) for fn in value.values()]
            elif isinstance(value, types.FunctionType):
                functions.append((f"attribute {quoted(key)} of {owner}", value))
    for what, function in functions:
        held = _held(function, own)
        if held is not None:
            raise ConfigError(
                f"{what} is a function that holds {held}: in a client's copy of the model it would use the "
                "original's",
                hint="take it from the function's arguments, or make the function a method of the module",
            )


def _held(value: Any, own: dict[int, str], depth: int = 4, is_inside: bool = False) -> str | None:
    """The name of a part of the model that deepcopy of a function leaves the original's, or None."""
    if is_inside and id(value) in own:
        return own[id(value)]
    if not depth or _is_atom(value) or isinstance(value, torch.Tensor | nn.Module | types.ModuleType):
        return None
    if isinstance(value, types.FunctionType):
        names = {i.argval for i in dis.get_instructions(value) if i.opname == "LOAD_GLOBAL"}
        inner = [*_variables(value), *(value.__globals__.get(name) for name in names)]
        is_inside = True
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    elif isinstance(value, list | tuple | set):
        inner = list(value)
    elif isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    else:
        inner = list(getattr(value, "__dict__", {}).values())
    return next(filter(None, (_held(one, own, depth - 1, is_inside) for one in inner)), None)


def _is_known(kind: type) -> bool:
    """Is it one of torch's own classes or ours, whose forward passes write to buffers only?"""
    return kind is object or kind.__module__.split(".")[0] in ("torch", "evenload")


def _is_atom(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_atom, value))
    return isinstance(value, _ATOMS)


def _variables(function: types.FunctionType) -> Iterator[Any]:
    """What the function may write into: variables of its closure, defaults and attributes."""
    yield from closure_of(function)
    yield from (value for value in function.__defaults__ or () if not _is_atom(value))
    yield from [function.__dict__] if function.__dict__ else []


def _class_attributes(kind: type) -> dict[str, Callable[[], Any]]:
    """Readers of the class's own plain values and containers."""
    kinds = (list, dict, set, int, float, str, torch.Tensor)
    return {
        f"attribute {quoted(key)} of class {kind.__name__}": lambda key=key: vars(kind).get(key)
        for key, value in vars(kind).items()
        if isinstance(value, kinds) and not key.startswith("__")
    }


def _generators_of(kind: type) -> dict[str, Callable[[], Any]]:
    """Readers of the random number generators outside of a model that the class's functions name."""
    functions = [one for one in vars(kind).values() if isinstance(one, types.FunctionType)]
    drawing = {fn.__qualname__: fn for fn in functions if generator_states(fn)}
    return {
        f"a generator that {quoted(name)} draws from": lambda fn=fn: generator_states(fn)
        for name, fn in drawing.items()
    }


def _contents(container: Any) -> list:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _holds(container: Any, contents: list) -> bool:
    """Does the container hold these very objects under these names?"""
    if len(container) != len(contents):
        return False
    if not isinstance(container, dict):
        return container == set(contents)
    return all(key in container and container[key] is value for key, value in contents)
