import threading

from evenload.devices import Device, DevicePool, Readings, Telemetry
from evenload.events import DeviceSample, EventLog, Note

CPU = Device("cpu:0", "cpu", "cpu", "x", threads=2)


def names():
    return {thread.name for thread in threading.enumerate()}


def test_the_real_cpu_is_sampled_until_stopped():
    seen, enough = [], threading.Event()

    def sink(event):
        seen.append(event)
        if len(seen) >= 4:
            enough.set()

    pool = DevicePool([CPU]).select("cpu*2")
    with Telemetry(pool, EventLog(sink), interval_s=0.01) as telemetry:
        telemetry.start()  # a second start changes nothing
        assert enough.wait(100)
        assert "evenload-telemetry" in names()
    n_seen = len(seen)
    assert "evenload-telemetry" not in names()
    assert all(isinstance(event, DeviceSample) for event in seen)
    assert {event.device for event in seen} == {"cpu:0", "cpu:1"}
    assert seen[0].memory_used_bytes > 0
    assert [event.t for event in seen] == sorted(event.t for event in seen)
    telemetry.stop()  # nor does a second stop
    assert len(seen) == n_seen


def test_slots_of_one_cpu_are_read_once_and_alike():
    pool = DevicePool([CPU]).select("cpu*3")
    first, *others = Telemetry(pool, EventLog()).sample()
    assert len(others) == 2
    assert all(
        (s.utilization, s.memory_used_bytes) == (first.utilization, first.memory_used_bytes) for s in others
    )


def test_a_driver_that_fails_is_told_once_and_its_devices_read_as_unknown():
    seen = []
    readings = Readings({"cuda": "evenload.no_such_driver"})
    gpu = Device("cuda:0", "discrete", "cuda", "x")
    telemetry = Telemetry(DevicePool([gpu]), EventLog(seen.append), readings=readings)
    assert telemetry.sample()[0].utilization is None
    telemetry.sample()
    (note,) = [event for event in seen if isinstance(event, Note)]
    assert note.level == "warning"
    assert "no telemetry from cuda: ModuleNotFoundError" in note.text


def test_families_without_telemetry_read_as_unknown():
    readings = Readings()
    for device in (Device("mps:0", "integrated", "mps", "x"), Device("fpga:0", "virtual", "vulkan", "x")):
        assert readings.read(device).utilization is None
    assert not readings.errors
    readings.close()


def test_a_driver_that_hangs_does_not_keep_a_run_from_ending(monkeypatch):
    monkeypatch.setattr("evenload.devices.telemetry.STOP_WAIT_S", 0.01)
    asked, answer = threading.Event(), threading.Event()

    class Hanging(Readings):
        is_closed = False

        def read(self, device):
            asked.set()
            answer.wait(100)
            return super().read(device)

        def close(self):
            self.is_closed = True

    readings = Hanging()
    telemetry = Telemetry(DevicePool([CPU]), EventLog(), readings=readings)
    telemetry.start()
    (thread,) = [one for one in threading.enumerate() if one.name == "evenload-telemetry"]
    assert asked.wait(100)
    telemetry.stop()
    assert thread.is_alive()
    assert not readings.is_closed  # it is in use still
    answer.set()
    thread.join(100)
    assert not thread.is_alive()


def test_it_can_be_started_again():
    seen = []
    telemetry = Telemetry(DevicePool([CPU]), EventLog(seen.append), interval_s=60)
    for _ in range(2):
        telemetry.start()
        telemetry.stop()
    assert len(seen) in (1, 2), "a stop may come before the first look"
