"""torch's own optimisers, without loading torch's compiler when the first one is made.

torch.optim loads ``torch._dynamo``, a second of CPU time, before the first step of any optimiser: to keep
compiled programs from tracing into it. Training one by one compiles nothing. The subclasses made here call
the very functions that torch wraps for its compiler; numbers and hooks are the same.
"""

import functools
import inspect
from typing import Any

import torch
from torch.autograd import _profiler_enabled
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

WRAPPED = ("add_param_group", "zero_grad")  # methods of Optimizer that torch keeps its compiler out of


@functools.cache
def lean(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """A subclass of ``kind`` that never loads torch's compiler; ``kind`` where its methods are unknown."""
    base = torch.optim.Optimizer
    plain = {name: inspect.unwrap(getattr(base, name)) for name in WRAPPED}
    is_known = all(getattr(kind, name) is getattr(base, name) is not plain[name] for name in WRAPPED)
    bare = inspect.unwrap(kind.step)
    if not is_known or bare is kind.step or not kind.__module__.startswith("torch.optim"):
        return kind

    def without_gradients(self: Any, *closure: Any) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return bare(self, *closure)

    told = base.profile_hook_step(without_gradients)  # with hooks and a name for the profiler, as torch's own

    def step(self: Any, *closure: Any) -> Any:
        return (told if _is_watched(self) else without_gradients)(self, *closure)

    vars(step)["hooked"] = True  # else torch would wrap it once more
    return type(kind.__name__, (kind,), {**plain, "step": step, "__doc__": kind.__doc__})


def _is_watched(optimizer: Any) -> bool:
    """Is there a hook before or after its steps, or a profiler at work?"""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks or _profiler_enabled())
