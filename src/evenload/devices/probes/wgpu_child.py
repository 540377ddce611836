"""Lists the adapters that wgpu sees, as JSON. Run by itself, in a process of its own: see ``child.py``."""

import json


def main() -> None:
    import wgpu

    adapters = []
    for position, adapter in enumerate(wgpu.gpu.enumerate_adapters_sync()):
        described = {key: adapter.info.get(key) for key in KEYS}
        adapters.append({"position": position, **described})
    print(json.dumps(adapters))  # noqa: T201 - the answer


KEYS = ("device", "description", "vendor_id", "device_id", "adapter_type", "backend_type")

if __name__ == "__main__":
    main()
