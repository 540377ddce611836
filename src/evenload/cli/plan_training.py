"""``evenload plan-training``: shares of a batch for unequal GPUs, before any of them is touched."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenload._plain_text import seconds_text
from evenload.cli.options import FILE, json_option, option, page_json, passed_as, shared, write_certificate
from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError, quoted

if TYPE_CHECKING:
    from evenload.pipeline.planning.modelled_fleet import FleetDevice
    from evenload.training.plan import TrainingPlan
    from evenload.training.shares import Cost

__all__ = ["plan_training"]

MOST_S, MOST_SAMPLES = 1e6, 1 << 24
_TIME = re.compile(r"([0-9.eE+-]+)(?:@([0-9]{1,10}))?")
_TIME_HINT = (
    "give the seconds of a step on one card of each group: 0.21,0.55, or 0.21@64,0.55@64 for 64 samples"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTrainingRequest:
    """The options of ``evenload plan-training``."""

    devices: str = option(
        "--devices", required=True, metavar="CARDS", help="2x24GB:rtx4090,1x12GB:rtx3060 (free memory each)."
    )
    batch: int = option(
        "--batch",
        required=True,
        type=click.IntRange(1, MOST_SAMPLES),
        help="Samples of a step, of all cards.",
    )
    step_s: tuple[str, ...] = option(
        "--step-s",
        multiple=True,
        metavar="SECONDS",
        help="Seconds of a step on one card of each group: 0.21,0.55, with 64 samples 0.21@64,0.55@64. "
        "Give it twice for two sizes.",
    )
    micro_batch: int = option(
        "--micro-batch", type=click.IntRange(1), default=1, help="Samples that stay together (1)."
    )
    most: str | None = option(
        "--most",
        metavar="SAMPLES",
        help="The most samples that fit into the memory of each group's cards: 96,40.",
    )
    model_memory: str | None = option(
        "--model-memory", metavar="SIZE", help="Of model, gradients and optimizer on a card: 6GB."
    )
    sample_memory: str | None = option(
        "--sample-memory", metavar="SIZE", help="Of the activations of one sample: 150MB."
    )
    certificate: Path | None = option(
        "--certificate", type=FILE, help="Write the proof of the bound, for `evenload certify`."
    )
    as_json: bool = shared(json_option)


@click.command("plan-training")
@passed_as(PlanTrainingRequest)
def plan_training(request: PlanTrainingRequest) -> int:
    """Say what each card of a training gets, how long a step takes, and what equal shares would take.

    \b
    evenload plan-training --devices 2x24GB:rtx4090,1x12GB:rtx3060 --step-s 0.21,0.55 --batch 256
    evenload plan-training --devices 1x24GB:rtx4090,1x12GB:rtx3060 --batch 96

    Seconds without @ are those of an equal share. Without --step-s cards are as fast as their data sheets
    say. Times at two sizes also say what a step costs whatever its size: --step-s 0.06@16,0.14@16
    --step-s 0.21@64,0.55@64.
    """
    if request.certificate is not None and not request.step_s:
        raise ConfigError(
            "--certificate proves seconds, and data sheets say none", hint=f"add --step-s: {_TIME_HINT}"
        )
    found = _planned(request)
    write_certificate(request.certificate, found.shares.certificate)
    if request.as_json:
        click.echo(page_json(found.to_json()))
    else:
        click.echo("\n".join(_page(found)))
    return 0


def _planned(request: PlanTrainingRequest) -> "TrainingPlan":
    from evenload.pipeline.planning.modelled_fleet import is_modelled, parse_modelled
    from evenload.training.plan import Card, plan_training

    if not is_modelled(request.devices):
        raise ConfigError(
            f"{quoted(request.devices)} are no cards to plan for",
            hint="write how many, their free memory and name: 2x24GB:rtx4090,1x12GB:rtx3060",
        )
    devices, group_of = parse_modelled(request.devices, is_speed_needed=False), []
    for at, part in enumerate(part for part in request.devices.split(",") if "host=" not in part):
        group_of += [at] * int(part.strip().partition("x")[0])
    costs, most = _costs(request, devices, group_of), _most(request, devices, group_of)
    cards = [
        Card(one.id, one.name, cost, limit) for one, cost, limit in zip(devices, costs, most, strict=True)
    ]
    return plan_training(cards, request.batch, unit=request.micro_batch, is_relative=not request.step_s)


def _costs(
    request: PlanTrainingRequest, devices: "Sequence[FleetDevice]", group_of: Sequence[int]
) -> "list[Cost]":
    """The cost of a step on each card: as measured, else by data sheets."""
    from evenload.devices.rates.hardware import HARDWARE
    from evenload.training.plan import cost_through, sheet_costs

    if not request.step_s:
        unknown = next((one for one in devices if one.hardware is None), None)
        if unknown is not None:
            raise ConfigError(
                f"how fast {unknown.id} ({unknown.name}) is, is not known",
                hint=f"name one of {', '.join(HARDWARE)}, or add --step-s: {_TIME_HINT}",
            )
        return sheet_costs([one.hardware.tflops * one.speed for one in devices if one.hardware is not None])
    if len(request.step_s) > 2:
        raise ConfigError(f"--step-s is given {len(request.step_s)} times", hint="give it once or twice")
    equal_share = math.ceil(request.batch / len(devices))
    rows = [_times(text, group_of, equal_share) for text in request.step_s]
    costs = [cost_through(times) for times in zip(*rows, strict=True)]
    return [
        replace(cost, launch_s=cost.launch_s / one.speed, per_item_s=cost.per_item_s / one.speed)
        for cost, one in zip(costs, devices, strict=True)
    ]


def _times(text: str, group_of: Sequence[int], equal_share: int) -> list[tuple[int, float]]:
    """Samples and seconds of each card, from those of each group or card."""
    found = []
    for part in text.split(","):
        match = _TIME.fullmatch(part.strip())
        try:
            seconds = float(match[1]) if match else math.nan
        except ValueError:
            seconds = math.nan
        n = int(match[2] or equal_share) if match else 0
        if not (1e-9 <= seconds <= MOST_S and 1 <= n <= MOST_SAMPLES):
            raise ConfigError(f"--step-s {quoted(part.strip())} is no time of a step", hint=_TIME_HINT)
        found.append((n, seconds))
    return [found[at] for at in _places("--step-s", found, group_of, _TIME_HINT)]


def _places(option: str, given: Sequence[object], group_of: Sequence[int], hint: str) -> Iterator[int]:
    """Which of the values each card has: its group's, or its own if there are as many as cards."""
    n_groups, n_cards = group_of[-1] + 1, len(group_of)
    if len(given) not in (n_groups, n_cards):
        raise ConfigError(
            f"{option} has {len(given)} values, but there are {n_groups} group(s) of {n_cards} cards",
            hint=hint,
        )
    yield from group_of if len(given) == n_groups else range(n_cards)


def _most(
    request: PlanTrainingRequest, devices: "Sequence[FleetDevice]", group_of: Sequence[int]
) -> list[int | None]:
    """Samples that fit on each card, None where that is not known."""
    from evenload.training.plan import fitting_samples

    limits = [_given_most(request, group_of)] if request.most is not None else []
    if request.sample_memory is not None:
        model_bytes = _bytes("--model-memory", request.model_memory or "0B")
        sample_bytes = max(1, _bytes("--sample-memory", request.sample_memory))
        fitting = [fitting_samples(one.free_bytes or 0, model_bytes, sample_bytes) for one in devices]
        small = next((one for one, n in zip(devices, fitting, strict=True) if n < request.micro_batch), None)
        if small is not None:
            some = f"{request.micro_batch} samples" if request.micro_batch > 1 else "a sample"
            raise ConfigError(
                f"the model with {some} does not fit on {small.id} ({small.name})",
                hint="leave this card out, shard the model (FSDP), or use a smaller micro-batch",
            )
        limits.append(fitting)
    elif request.model_memory is not None:
        raise ConfigError(
            "--model-memory alone does not say how many samples fit", hint="add --sample-memory"
        )
    return [min(some) for some in zip(*limits, strict=True)] if limits else [None] * len(devices)


def _given_most(request: PlanTrainingRequest, group_of: Sequence[int]) -> list[int]:
    hint = "give the samples that fit on one card of each group: 96,40"
    parts = [part.strip() for part in (request.most or "").split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part) and int(part) for part in parts):
        raise ConfigError(f"--most {quoted(request.most)} are no numbers of samples", hint=hint)
    return [int(parts[at]) for at in _places("--most", parts, group_of, hint)]


def _bytes(option: str, text: str) -> int:
    from evenload._memory_sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}", hint="give 6GB or 150MB, say") from error


def _page(found: "TrainingPlan") -> list[str]:
    """The plan for a person."""
    shares, names = found.shares, [card.name for card in found.cards]
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    times = [
        f"{one_s / shares.step_s:.0%}" if found.is_relative else f"{seconds_text(one_s)}"
        for one_s in shares.seconds
    ]
    rows = [
        [card.id, card.name, str(n), one, "" if card.most is None else str(card.most), str(n_equal)]
        for card, n, one, n_equal in zip(found.cards, shares.counts, times, found.equal_counts, strict=True)
    ]
    busy = "busy" if found.is_relative else "step"
    head = ["device", "card", "samples", busy, "fit", "equal share"]
    lines = [f"{sum(shares.counts)} samples a step on {kinds}", ""]
    lines += [*format_table(head, rows, right=("samples", busy, "fit", "equal share")), ""]
    took = "" if found.is_relative else f"{seconds_text(shares.step_s)}, "
    lines.append(f"a step takes {took}{shares.ratio:.3f} x the bound, which no shares can beat")
    took = "" if found.is_relative else f"{seconds_text(found.equal_step_s)}, "
    lines.append(f"with equal shares (DDP) {took}{found.gain:.2f} x as long")
    lines += [f"  and an equal share does not fit on {card.id} ({card.name})" for card in found.too_small]
    if found.is_relative:
        lines.append(
            "note: speeds are those of data sheets (16-bit matrix products); give --step-s as measured"
        )
    return lines
