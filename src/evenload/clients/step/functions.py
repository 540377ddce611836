"""Functions of torch that are done otherwise while clients train, wherever a model calls them.

drawing   dropout of every kind, noise (rand, randn, bernoulli), also inside attention and recurrent layers:
          their numbers are counted from the step's key, not drawn, in every strategy alike
fused     attention, weight normalisation, bags of embeddings and bilinear forms as plain products, because
          torch's own kernels for them run one client after the other under vmap; attention on a CPU by
          torch's kernel, which never writes the scores, with all clients' rows as one batch
"""

import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from evenload.clients.step.dropout import kept_of, uniform_of
from evenload.clients.step.vmap_rules import FirstDerivative, clients_first

OWN = 1 << 41  # keeps these draws apart from those of layers and augmentations
_SELU = 1.7580993408473766  # minus what alpha dropout puts in a dropped place


class ReplacedFunctions(TorchFunctionMode):
    """A context in which torch's functions are replaced; ``begin`` it for each step.

    is_fused  replace those of the second kind, too
    drew, is_used  has a function of the first kind, or any, been replaced since this was made?
    """

    def __init__(self, is_fused: bool = True):
        super().__init__()
        self.is_fused = is_fused
        self.drew = self.is_used = False
        self._key, self._n_calls = torch.zeros((), dtype=torch.int64), 0
        # torch's own code, with the functions that it calls replaced: here it would call torch's.
        own = {
            "has_torch_function": lambda _: False,
            "dropout": lambda *args, **kwargs: _dropout(self, F.dropout, *args, **kwargs),
            "scaled_dot_product_attention": lambda *args, **kwargs: _attention(
                self, F.scaled_dot_product_attention, *args, **kwargs
            ),
        }
        self.heads = _with_globals(F.multi_head_attention_forward, own)

    def begin(self, key: Tensor) -> "ReplacedFunctions":
        """Begin a forward pass, whose numbers follow from ``key``, an int64 scalar."""
        self._key, self._n_calls = key, 0
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = _RULES.get(func)
        return func(*args, **(kwargs or {})) if rule is None else rule(self, func, *args, **(kwargs or {}))

    def uniform(self, *shape: int) -> Tensor:
        """float64 numbers in [0, 1), other ones in every call."""
        return uniform_of(self._key, self._next_salt(), shape)

    def kept(self, x: Tensor, p: float, by_channel: bool) -> Tensor:
        """1 for each element (or channel) of ``x`` that stays, 0 for one that is dropped."""
        shape = [*x.shape[:2], *[1] * (x.dim() - 2)] if by_channel else x.shape
        return kept_of(self._key, self._next_salt(), shape, p, x.dtype)

    def _next_salt(self) -> int:
        self.drew = self.is_used = True
        self._n_calls += 1
        return OWN + self._n_calls


def _with_globals(fn: Any, own: dict[str, Any]) -> Callable[..., Any]:
    copied = types.FunctionType(fn.__code__, {**fn.__globals__, **own}, fn.__name__, fn.__defaults__)
    copied.__kwdefaults__ = fn.__kwdefaults__
    return copied


# --- drawing -----------------------------------------------------------------------------------


def _dropout(mode, func, input, p=0.5, training=True, inplace=False, *, by_channel=False):
    if not training or p == 0:
        return input
    scaled = mode.kept(input, p, by_channel) * (1 / (1 - p) if p < 1 else 0.0)
    return input.mul_(scaled) if inplace else input * scaled


def _channel_dropout(mode, func, input, p=0.5, training=True, inplace=False):
    return _dropout(mode, func, input, p, training, inplace, by_channel=True)


def _alpha_dropout(mode, func, input, p=0.5, training=False, inplace=False, *, by_channel=False):
    if not training or p == 0:
        return input
    if p == 1:
        mode.is_used = True
        return input * 0
    kept, gain = mode.kept(input, p, by_channel), ((1 - p) * (1 + p * _SELU**2)) ** -0.5
    out = (input * kept - _SELU * (1 - kept)) * gain + gain * _SELU * p
    return input.copy_(out) if inplace else out


def _channel_alpha_dropout(mode, func, input, p=0.5, training=False, inplace=False):
    return _alpha_dropout(mode, func, input, p, training, inplace, by_channel=True)


def _rrelu(mode, func, input, lower=1 / 8, upper=1 / 3, training=False, inplace=False):
    if not training:
        return func(input, lower, upper, training, inplace)
    slope = lower + (upper - lower) * mode.uniform(*input.shape).to(input.dtype)
    out = torch.where(input >= 0, input, input * slope)
    return input.copy_(out) if inplace else out


def _noise(mode, func, *size, dtype=None, device=None, **others):
    """rand and randn; those with a generator of their own are left alone."""
    if others.get("generator") is not None or "out" in others:
        return func(*size, dtype=dtype, device=device, **others)
    given = others.get("size", size[0] if size and not isinstance(size[0], int) else size)
    return _numbers(mode, func, tuple(int(n) for n in given), dtype or torch.get_default_dtype(), device)


def _noise_like(mode, func, input, *, dtype=None, device=None, **others):
    if others.get("generator") is not None:
        return func(input, dtype=dtype, device=device, **others)
    return _numbers(mode, func, tuple(input.shape), dtype or input.dtype, device or input.device)


def _numbers(mode, func, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Tensor:
    numbers = mode.uniform(*shape)
    if func in (torch.randn, torch.randn_like):  # Box and Muller, 1958
        angle = 2 * math.pi * mode.uniform(*shape)
        numbers = torch.sqrt(-2 * torch.log1p(-numbers)) * torch.cos(angle)
    else:  # cut to the bits that the smaller type has: rounding would give 1
        n_bits = {torch.float64: 53, torch.float32: 24}.get(dtype, 8)
        numbers = (numbers * 2.0**n_bits).floor() * 2.0**-n_bits
    return numbers.to(dtype) if device is None else numbers.to(device, dtype)


def _bernoulli(mode, func, input, p=None, *, generator=None, **others):
    if generator is not None or "out" in others:
        return func(input, **({} if p is None else {"p": p}), generator=generator, **others)
    return (mode.uniform(*input.shape) < (input if p is None else p)).to(input.dtype)


def _recurrent(mode, func, input, hx, params, *options):
    """A stack of recurrent layers with dropout between them, one layer at a time."""
    if isinstance(params, bool) or not (options[2] > 0 and options[3] and options[1] > 1):
        return func(input, hx, params, *options)  # packed sequences, and what drops nothing
    has_biases, n_layers, p, training, bidirectional, batch_first = options
    n_directions = 2 if bidirectional else 1
    each = len(params) // n_layers
    states = hx if isinstance(hx, tuple | list) else (hx,)
    last: list[list[Tensor]] = []
    for layer in range(n_layers):
        own = [s[layer * n_directions : (layer + 1) * n_directions] for s in states]
        weights = params[layer * each : (layer + 1) * each]
        start = own if isinstance(hx, tuple | list) else own[0]
        input, *ends = func(input, start, weights, has_biases, 1, 0.0, training, bidirectional, batch_first)
        last.append(ends)
        if layer + 1 < n_layers:
            rows_first = input if batch_first else input.transpose(0, 1)
            kept = mode.kept(rows_first, p, False) * (1 / (1 - p) if p < 1 else 0.0)
            input = input * (kept if batch_first else kept.transpose(0, 1))
    return input, *(torch.cat(parts) for parts in zip(*last, strict=True))


# --- as plain products -------------------------------------------------------------------------


def _heads(mode, func, *args, **kwargs):
    return mode.heads(*args, **kwargs)


def _attention(
    mode,
    func,
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    if not mode.is_fused and not dropout_p:
        return func(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    mode.is_used = True
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    if not dropout_p and _suits_kernel(query, key, value, attn_mask):
        bias = None if attn_mask is None else _bias_of(attn_mask, query)
        return _Attention.apply(query, key, value, bias, is_causal, scale)[0]
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        places = [torch.arange(n, device=query.device) for n in scores.shape[-2:]]
        scores = scores.masked_fill(places[0][:, None] < places[1], -math.inf)
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if is_bool else scores + attn_mask
    if is_causal or attn_mask is not None:  # a row that sees nothing gives zeros, as torch's
        is_blind = (scores == -math.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(is_blind, 0.0).softmax(-1).masked_fill(is_blind, 0.0)
    else:
        weights = scores.softmax(-1)
    return _dropout(mode, F.dropout, weights, dropout_p) @ value


def _suits_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Does torch's kernel for CPUs take them? It has no gradient of a mask of numbers, which may be trained.

    Under autocast torch gives it other numbers than these.
    """
    is_known = mask is None or (mask.dtype == torch.bool and mask.dim() in (2, 4))
    alike = len({(t.shape[:2], t.shape[-1], t.dtype) for t in (query, key, value)}) == 1
    is_full = all(t.dim() == 4 and 0 not in t.shape and t.device.type == "cpu" for t in (query, key, value))
    is_plain = query.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return is_known and alike and is_full and is_plain


def _bias_of(mask: Tensor, query: Tensor) -> Tensor:
    """The mask as numbers to add to the scores, [batch or 1, heads or 1, rows, columns]."""
    bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)
    return bias if bias.dim() == 4 else bias[None, None]


class _Attention(torch.autograd.Function):
    """A function: query, key, value [batch, heads, rows, width] -> outputs, and logarithms of weights' sums.

    Under vmap the clients' batches are one.
    """

    @staticmethod
    def forward(query, key, value, bias, is_causal, scale):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        *tensors, ctx.is_causal, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor):  # pyrefly: ignore
        found = _AttentionGradient.apply(grad, *ctx.saved_tensors, ctx.is_causal, ctx.scale)
        return (*found, None, None, None)

    @staticmethod
    def vmap(info, in_dims, query, key, value, bias, is_causal, scale):  # pyrefly: ignore
        n, dims = info.batch_size, in_dims[:3]
        query, key, value = clients_first((query, key, value), dims, n)
        bias = _joined_bias(bias, in_dims[3], n, query.shape[1])
        found = _Attention.apply(*(t.flatten(0, 1) for t in (query, key, value)), bias, is_causal, scale)
        return tuple(t.unflatten(0, (n, -1)) for t in found), (0, 0)


class _AttentionGradient(FirstDerivative):
    """The gradients of ``_Attention`` for query, key and value."""

    @staticmethod
    def forward(grad, query, key, value, bias, out, sums, is_causal, scale):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return kernel(grad, query, key, value, out, sums, 0.0, is_causal, attn_mask=bias, scale=scale)

    @staticmethod
    def vmap(info, in_dims, grad, query, key, value, bias, out, sums, is_causal, scale):  # pyrefly: ignore
        n, dims = info.batch_size, (*in_dims[:4], *in_dims[5:7])
        each = clients_first((grad, query, key, value, out, sums), dims, n)
        bias = _joined_bias(bias, in_dims[4], n, each[0].shape[1])
        *before, out, sums = (t.flatten(0, 1) for t in each)
        found = _AttentionGradient.apply(*before, bias, out, sums, is_causal, scale)
        return tuple(t.unflatten(0, (n, -1)) for t in found), (0, 0, 0)


def _joined_bias(bias: Tensor | None, dim: int | None, n: int, batch: int) -> Tensor | None:
    """The bias for the batches of all ``n`` clients as one; one that is the same for all rows stays."""
    if bias is None or (dim is None and bias.shape[0] == 1):
        return bias
    (own,) = clients_first([bias], [dim], n)
    return own.expand(n, batch, *own.shape[2:]).flatten(0, 1)


def _weight_norm(mode, func, v, g, dim=0):
    if not mode.is_fused:
        return func(v, g, dim)
    mode.is_used = True
    axes = None if dim == -1 else [axis for axis in range(v.dim()) if axis != dim % v.dim()]
    return v * (g / (v * v).sum(axes, keepdim=axes is not None).sqrt())


def _embedding_bag(mode, func, /, input, weight, offsets=None, *args, **kwargs):
    names = ("max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights")
    given = {**dict(zip((*names, "include_last_offset", "padding_idx"), args, strict=False)), **kwargs}
    how, shares, padding = (given.get(n) for n in ("mode", "per_sample_weights", "padding_idx"))
    is_special = any(given.get(n) for n in ("max_norm", "scale_grad_by_freq", "sparse"))
    if not mode.is_fused or offsets is not None or is_special or input.dim() != 2:
        return func(input, weight, offsets, *args, **kwargs)
    mode.is_used = True
    found = F.embedding(input, weight)
    is_real = torch.ones_like(input, dtype=torch.bool) if padding is None else input != padding
    if how == "max":
        largest = found.masked_fill(~is_real[..., None], -math.inf).amax(-2)
        return torch.where(is_real.any(-1, keepdim=True), largest, 0.0)
    share = is_real.to(found.dtype) if shares is None else is_real * shares
    total = (found * share[..., None]).sum(-2)
    return total if how == "sum" else total / is_real.sum(-1, keepdim=True).clamp(min=1)


def _bilinear(mode, func, input1, input2, weight, bias=None):
    if not mode.is_fused:
        return func(input1, input2, weight, bias)
    mode.is_used = True
    out = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias


_RULES: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    torch.dropout: lambda mode, func, input, p, train: _dropout(mode, func, input, p, train),
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), _channel_dropout),
    torch.feature_dropout: lambda mode, func, input, p, train: _channel_dropout(mode, func, input, p, train),
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _channel_alpha_dropout,
    **dict.fromkeys((F.rrelu, torch.rrelu), _rrelu),
    **dict.fromkeys((torch.rand, torch.randn), _noise),
    **dict.fromkeys((torch.rand_like, torch.randn_like), _noise_like),
    torch.bernoulli: _bernoulli,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
    F.multi_head_attention_forward: _heads,
    F.scaled_dot_product_attention: _attention,
    torch._weight_norm: _weight_norm,  # pyrefly: ignore
    F.embedding_bag: _embedding_bag,
    **dict.fromkeys((F.bilinear, torch.bilinear), _bilinear),
}
