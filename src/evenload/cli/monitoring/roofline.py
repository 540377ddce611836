"""``evenload devices --roofline``: what each device does at most, measured by a worker on it, and kept."""

import json
from typing import Any

import click

from evenload.cli.terminal.table import format_table

__all__ = ["measure_devices"]


def measure_devices(spec: str | int, *, as_json: bool) -> int:
    """Measure the devices one after the other; returns the exit code. Raises as ``Executor`` does."""
    from evenload.devices.pool import DevicePool
    from evenload.devices.rates.known import keep_rates
    from evenload.executor import Executor

    rows: list[dict[str, Any]] = []
    with DevicePool.discover() as pool:
        for device in pool.select(spec):
            with Executor(DevicePool([device]), echo=False) as executor:
                rates = executor.submit(_measure_here).result()
            keep_rates(device, rates)
            rows.append({"id": device.id, "name": device.name, **rates})
    if as_json:
        click.echo(json.dumps({"schema": 1, "devices": rows}))
        return 0
    shown = [
        [row["id"], row["name"], f"{row['flop_per_s'] / 1e9:,.0f}", f"{row['bytes_per_s'] / 1e9:,.1f}"]
        for row in rows
    ]
    for line in format_table(["id", "name", "GFLOP/s", "GB/s"], shown, right=("GFLOP/s", "GB/s")):
        click.echo(line)
    return 0


def _measure_here() -> dict[str, float]:
    """In a worker: measure its device."""
    from evenload.devices.environment import current
    from evenload.devices.rates.roofline import measure

    return measure(current().torch)
