"""Adapters on disk, as PEFT keeps them: ``adapter_model.safetensors`` and ``adapter_config.json``."""

import json
import re
from pathlib import Path
from typing import Any

from evenload._optional import require
from evenload.clients.lora.training import Adapter
from evenload.errors import ConfigError, quoted

PREFIX = "base_model.model."


def save_adapter(adapter: Adapter, folder: str | Path) -> Path:
    """Write an adapter so that ``peft.PeftModel.from_pretrained(base, folder)`` reads it.

    Layers are named one by one as ``target_modules``; trained parameters of the base go along.
    Raises MissingExtra without safetensors, OSError if the folder cannot be written, and ConfigError for what
    PEFT cannot hold: a layer with both an adapter and trained parameters, a base that is one layer.
    """
    safetensors: Any = require("safetensors.torch", extra="clients", why="saving adapters")
    named = {_peft_name(name): t.contiguous().cpu() for name, t in adapter.weights.items()}
    layers = sorted(n.rpartition(".")[0] for n in adapter.weights if n.endswith("lora_A"))
    others = sorted({n.rpartition(".")[0] for n in adapter.weights if "lora_" not in n})
    if both := [name for name in layers if name in others or not name]:
        raise ConfigError(
            f"PEFT has no form for the adapter of {quoted(both[0])}",
            hint="its layer is the whole base, or has trained parameters (`also`) beside it: use merged()",
        )
    whole = adapter.model()
    for name in others:  # PEFT reads modules: what the adapter did not train goes along
        for part, t in whole.get_submodule(name).state_dict().items():
            named.setdefault(f"{PREFIX}{name}.{part}", t.contiguous().cpu().clone())
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "r": adapter.lora.rank,
        "lora_alpha": adapter.lora.scale * adapter.lora.rank,
        "lora_dropout": adapter.lora.dropout,
        "target_modules": _targets(adapter, layers),
        "modules_to_save": others or None,
        "bias": "none",
        "inference_mode": True,
    }
    safetensors.save_file(named, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def _targets(adapter: Adapter, layers: list[str]) -> list[str] | str:
    """The layers' names; as one regular expression if PEFT would take the end of another's for one."""
    named = [name for name, _ in adapter._base.named_modules()]
    is_clear = not any(name.endswith(f".{layer}") for name in named for layer in layers)
    return layers if is_clear else "|".join(map(re.escape, layers))


def _peft_name(name: str) -> str:
    owner, _, part = name.rpartition(".")
    return f"{PREFIX}{owner}.{part}.weight" if part.startswith("lora_") else f"{PREFIX}{name}"
