"""``evenload run --slurm``: the same command as a batch job on the nodes of a Slurm cluster."""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from evenload.cli.options import option
from evenload.errors import ConfigError, EvenloadError, quoted, reason_of

_TIME = re.compile(
    r"\d{1,9}(:\d{1,2}){0,2}|\d{1,5}-\d{1,2}(:\d{1,2}){0,2}|infinite|unlimited", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The options of ``evenload run --slurm``; what is None is left to Slurm's own defaults.

    sbatch  further options of sbatch, as they are
    """

    slurm: bool = option(
        "--slurm", is_flag=True, help="Submit this as a batch job of Slurm, over Ray on its nodes."
    )
    nodes: int | None = option("--nodes", type=click.IntRange(1), help="With --slurm: so many nodes.")
    gres: str | None = option("--gres", help="With --slurm: what each node must have, such as gpu:8.")
    partition: str | None = option("--partition", help="With --slurm: the partition.")
    time: str | None = option(
        "--time", help="With --slurm: the time limit; at its end the job goes on in another."
    )
    sbatch: tuple[str, ...] = option(
        "--sbatch", multiple=True, metavar="OPTION", help="With --slurm: another option of sbatch, as it is."
    )

    @property
    def given(self) -> list[str]:
        """The options of Slurm that were given, as they are written."""
        named = {"nodes": self.nodes, "gres": self.gres, "partition": self.partition, "time": self.time}
        return [f"--{name}" for name, value in named.items() if value is not None] + ["--sbatch"] * bool(
            self.sbatch
        )

    def directives(self, job_name: str) -> list[str]:
        """Return the options of sbatch. Raises ConfigError for one that is no option, or not one line."""
        given = [
            f"--job-name={job_name}",
            f"--nodes={self.nodes or 1}",
            "--ntasks-per-node=1",
            *(
                f"--{name}={value}"
                for name, value in (("gres", self.gres), ("partition", self.partition), ("time", self.time))
                if value is not None
            ),
            "--signal=B:USR1@120",
            "--requeue",
            "--no-kill",
            "--open-mode=append",
            "--output=%x-%j.log",
            *self.sbatch,
        ]
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise ConfigError(
                f"{quoted(self.time)} is no time limit of Slurm", hint="write 90, 12:00:00 or 2-00:00:00"
            )
        for one in given:
            if not one.startswith("-") or not one.isprintable():
                raise ConfigError(
                    f"{quoted(one)} is no option of sbatch", hint="write --sbatch=--account=physics, say"
                )
        return given


def slurm_script(
    options: SlurmOptions, job_name: str, python: str, arguments: Sequence[str], fresh: Sequence[str] = ()
) -> str:
    """Return the script.

    python     the interpreter, which each node must have at the same path
    arguments  of ``evenload``: run, the job file and what else was given
    fresh      more of them that are left out when Slurm starts the job again
    """
    directives = "\n".join(f"#SBATCH {one}" for one in options.directives(job_name))
    return _SCRIPT.format(
        directives=directives,
        python=shlex.quote(python),
        arguments=shlex.join(arguments),
        fresh=shlex.join(fresh),
    )


_SCRIPT = """\
#!/usr/bin/env bash
{directives}
#
# Written by `evenload run --slurm`. Starts Ray on each node, runs the job over them, ends with its exit code.
# Two minutes before the time limit (USR1) the run ends, keeps what is done, and is queued again to go on.
# On TERM (scancel, preemption) it ends and keeps what is done; the same sbatch command goes on with it.

set -uo pipefail
cd "${{SLURM_SUBMIT_DIR:-.}}" || exit 1

export python={python}
export RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))') || exit 1
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN  # no other user of these machines can join
arguments=({arguments})
if [ "${{SLURM_RESTART_COUNT:-0}}" -eq 0 ]; then
    arguments+=({fresh})
fi

driver='' ending='' steps=()

end_run() {{
    ending=$1
    if [ -n "$driver" ]; then
        kill -TERM "$driver" 2>/dev/null
    fi
}}
await_driver() {{  # its exit code is in code; a signal ends the waiting, not the program
    local late
    wait "$driver"; code=$?
    while kill -0 "$driver" 2>/dev/null; do
        wait "$driver"; code=$?
    done
    wait "$driver" 2>/dev/null; late=$?
    if [ "$late" -ne 127 ]; then  # it had ended while a signal was attended to
        code=$late
    fi
    driver=''
}}
trap 'end_run requeue' USR1
trap 'end_run stop' TERM INT

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${{nodes[0]}}
address=$(getent ahostsv4 "$head" | awk 'NR == 1 {{print $1}}')
port=$((20000 + SLURM_JOB_ID % 20000))
export RAY_ADDRESS="${{address:-$head}}:$port"
export ray_folder="/tmp/evenload-ray-$SLURM_JOB_ID"

# What runs on each node: Ray, until this script ends it. Slurm says which CPUs and GPUs are the job's.
# shellcheck disable=SC2016  # it is expanded on the node
on_node='
    is_over=""
    stop() {{ is_over=1; kill -TERM "$ray" 2>/dev/null; }}
    trap stop TERM INT
    for attempt in 1 2 3 4 5; do  # Ray gives up if a node is busy and takes 30 s to start
        "$python" -m ray.scripts.scripts start "$@" --block --disable-usage-stats \\
            --num-cpus="${{SLURM_CPUS_ON_NODE:-$(nproc)}}" \\
            --node-name="${{SLURMD_NODENAME:-$(hostname -s)}}" &
        ray=$!
        wait "$ray"; code=$?
        while kill -0 "$ray" 2>/dev/null; do wait "$ray"; code=$?; done
        if [ -n "$is_over" ] || [ "$code" -eq 0 ]; then break; fi
        echo "evenload: Ray ended on ${{SLURMD_NODENAME:-$(hostname -s)}}, attempt $attempt" >&2
    done
    rm -rf "$ray_folder"
    exit "$code"
'
srun --overlap --no-kill --nodes=1 --ntasks=1 --nodelist="$head" \\
    bash -c "$on_node" ray-head --head --node-ip-address="${{RAY_ADDRESS%:*}}" --port="$port" \\
    --include-dashboard=false --temp-dir="$ray_folder" &
steps+=($!)
"$python" -m evenload.executor.backends.ray.await_nodes "$RAY_ADDRESS" 1 300 &
driver=$!
await_driver

for node in "${{nodes[@]:1}}"; do
    if [ -z "$ending" ] && [ "$code" -eq 0 ]; then
        srun --overlap --no-kill --nodes=1 --ntasks=1 --nodelist="$node" \\
            bash -c "$on_node" ray-node --address="$RAY_ADDRESS" &
        steps+=($!)
    fi
done

# Nodes that are not up by then are taken in when they are: the run follows the cluster.
if [ -z "$ending" ] && [ "$code" -eq 0 ]; then
    "$python" -m evenload.executor.backends.ray.await_nodes "$RAY_ADDRESS" "${{#nodes[@]}}" 300 &
    driver=$!
    await_driver
    code=0
fi

if [ -z "$ending" ] && [ "$code" -eq 0 ]; then
    "$python" -m evenload "${{arguments[@]}}" &
    driver=$!
    await_driver
elif [ "$code" -eq 0 ]; then
    code=143
fi

trap '' USR1 TERM INT
for step in "${{steps[@]}}"; do
    kill -TERM "$step" 2>/dev/null
done
wait

if [ "$ending" = requeue ] && [ "$code" -ne 0 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 50 ]; then
    echo "evenload: the time limit is near: queued again, to go on with what is left" >&2
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""

SUBMIT_S = 120.0  # for sbatch to answer


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
