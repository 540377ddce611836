"""Lists the GPUs that torch sees (CUDA or ROCm), as JSON. Run in a process of its own: see ``child.py``."""

import json


def main() -> None:
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": facts.name,
                "memory_bytes": facts.total_memory,
                "compute_units": facts.multi_processor_count,
                "is_integrated": bool(getattr(facts, "is_integrated", False)),
                "uuid": str(getattr(facts, "uuid", "")) or None,
            }
        )
    print(json.dumps({"cuda": torch.version.cuda, "hip": torch.version.hip, "gpus": gpus}))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
