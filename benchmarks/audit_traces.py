"""Audits of public traces of physical accelerators, recorded by others: what each GPU's time went into.

    python benchmarks/audit_traces.py FOLDER

FOLDER has traces of TraceLens (AMD-AGI/TraceLens, tests/traces, at 171dd747) and of HolisticTraceAnalysis
(facebookresearch, tests/data, at f4d0062), named as in ``TRACES``. Their times are those of the machines on
which they were recorded; this machine only adds them up.
"""

import argparse
from pathlib import Path

from record import record

from evenload.audit.traces import audit_traces

TRACES = {  # file -> accelerator, what ran on it, who recorded it
    "b200-eager": ("B200", "an engine's prefill, rank 0 of 8", "TraceLens"),
    "h100-qwen1.5-0.5b": ("H100", "Qwen1.5-0.5B, one step", "TraceLens"),
    "mi300-qwen1.5-0.5b": ("MI300X", "Qwen1.5-0.5B, one step", "TraceLens"),
    "h100-bert-small": ("H100", "BERT small, one step", "TraceLens"),
    "mi300-bert-small": ("MI300X", "BERT small, one step", "TraceLens"),
    "vllm-decode-graph": ("MI300X", "vLLM, a decode step as a graph", "TraceLens"),
    "sglang-qwen3-8b-decode": ("MI300X", "SGLang, a decode step, profiled", "TraceLens"),
    "mi210-gpu-only": ("MI210", "a convolutional network, kernels alone", "TraceLens"),
    "mi250-minitoy": ("MI250", "a toy training", "HolisticTraceAnalysis"),
    "alexnet": ("A100", "AlexNet, a benchmark with pauses", "HolisticTraceAnalysis"),
    "mtia-inference": ("MTIA", "inference of a recommender", "HolisticTraceAnalysis"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rows = []
    for name, (accelerator, what, source) in TRACES.items():
        found = audit_traces([folder / f"{name}.json.gz"])
        host = max(found.gaps_ns, key=lambda one: found.gaps_ns[one]) if found.gaps_ns else "not known"
        whole = found.wall_ns * len(found.devices)
        rows.append(
            {
                "trace": name,
                "accelerator": accelerator,
                "what": what,
                "source": source,
                "wall_ms": found.wall_s * 1e3,
                "work": found.share,
                "exchange": found.lost_ns["exchange"] / whole,
                "launch_gaps": found.lost_ns["launch gaps"] / whole,
                "longer_gaps": sum(found.lost_ns[one] for one in ("no device works", "start-up", "tail"))
                / whole,
                "program": host,
            }
        )
    record("audit_traces", rows, is_of_speed=False)


if __name__ == "__main__":
    main()
