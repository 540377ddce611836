from evenload.devices import Device, DevicePool, ProbeReport
from evenload.devices.probe import run_probe, run_probes


def test_whatever_a_probe_raises_becomes_a_report():
    def broken():
        raise OSError("libvulkan.so is damaged")

    report = run_probe("wgpu", broken)
    assert (report.status, report.devices) == ("failed", ())
    assert report.reason == "OSError: libvulkan.so is damaged"
    assert 'raise OSError("libvulkan.so is damaged")' in report.traceback
    assert "doctor -v" in report.hint
    assert run_probe("x", "evenload.no_such_module").status == "failed"


def test_a_probe_that_fails_hides_no_other():
    device = Device("cpu:0", "cpu", "cpu", "x", threads=2)
    probes = {"cuda": lambda: 1 / 0, "cpu": lambda: ProbeReport("cpu", (device,))}
    assert [report.status for report in run_probes(probes)] == ["failed", "ok"]
    pool = DevicePool.discover(probes=probes)
    assert pool.ids == ("cpu:0",)
    assert pool.reports[0].reason.startswith("ZeroDivisionError")
