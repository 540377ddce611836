"""``evenload run --slurm``: the same command as a batch job on the nodes of a Slurm cluster."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from evenload.cli.options import passed_as
from evenload.cli.pipeline.slurm_script import SlurmOptions, slurm_script
from evenload.errors import ConfigError, EvenloadError, quoted, reason_of

SUBMIT_S = 120.0  # for sbatch to answer

_OPTIONS = (
    click.option("--slurm", is_flag=True, help="Submit this as a batch job of Slurm, over Ray on its nodes."),
    click.option("--nodes", type=click.IntRange(1), help="With --slurm: so many nodes."),
    click.option("--gres", help="With --slurm: what each node must have, such as gpu:8."),
    click.option("--partition", help="With --slurm: the partition."),
    click.option("--time", help="With --slurm: the time limit; at its end the job goes on in another."),
    click.option(
        "--sbatch", multiple=True, metavar="OPTION", help="With --slurm: another option of sbatch, as it is."
    ),
)


def slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--slurm`` and the options that go with it, and pass them as ``slurm``."""
    command = passed_as(SlurmOptions, "slurm")(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def submit(
    options: SlurmOptions, job_name: str, arguments: Sequence[str], fresh: Sequence[str], *, dry_run: bool
) -> int:
    """Submit a job with these arguments of ``evenload``, or print its script. Returns the exit code.

    Raises ConfigError if Slurm is not here or refuses it.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"evenload-{job_name}")
    script = slurm_script(options, name, sys.executable, arguments, fresh)
    if dry_run:
        click.echo(script, nl=False)
        return 0
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, timeout=SUBMIT_S
        )
    except FileNotFoundError as error:
        raise ConfigError(
            "there is no command sbatch here: --slurm needs a machine from which Slurm jobs are submitted",
            hint="run it on a login node; --slurm --dry-run prints the script",
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EvenloadError(
            f"sbatch did not answer: {reason_of(error, with_path=True)}", hint="look whether Slurm is up"
        ) from error
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise ConfigError(
            f"sbatch refuses the job: {quoted(said)}", hint="correct its options, or see --dry-run"
        )
    number = done.stdout.strip().partition(";")[0]
    click.echo(number)
    click.echo(f"submitted as job {number}: it says what it does in {name}-{number}.log", err=True)
    return 0
