import sys

from evenload.devices.probes import mps

# What an M2 Pro's macOS prints, cut to the lines that matter.
ANSWERS = {
    ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M2 Pro",
    ("sysctl", "-n", "hw.memsize"): "34359738368",
    (
        "ioreg",
        "-rd1",
        "-c",
        "AGXAccelerator",
    ): '+-o AGXAcceleratorG14X\n    {\n      "gpu-core-count" = 19\n    }',
    ("sw_vers", "-productVersion"): "15.1",
}


def on_a_mac(has_torch=True, answers=ANSWERS, machine="arm64"):
    return mps.probe("darwin", machine, lambda *command: answers.get(command, ""), has_torch)


def test_apple_silicon_is_told_in_full():
    (device,) = on_a_mac().devices
    assert (device.id, device.kind, device.name) == ("mps:0", "integrated", "Apple M2 Pro")
    assert (device.memory_bytes, device.compute_units, device.driver) == (32 * 2**30, 19, "macOS 15.1")


def test_what_macos_does_not_say_is_none():
    (device,) = on_a_mac(answers={}).devices
    assert (device.name, device.memory_bytes, device.compute_units) == ("Apple GPU", None, None)


def test_without_torch_nothing_reaches_it():
    report = on_a_mac(has_torch=False)
    assert (report.status, report.hint) == ("missing", "pip install 'evenload[torch]'")


def test_other_machines_have_none():
    assert on_a_mac(machine="x86_64").status == "absent"
    assert mps.probe("linux", "arm64").status == "absent"


def test_a_command_that_cannot_run_answers_nothing():
    assert mps.ask("no-such-command-anywhere") == ""
    assert mps.ask(sys.executable, "-c", "raise SystemExit(1)") == ""
    assert mps.ask(sys.executable, "-c", "print(' x ')") == "x"
