"""The page in a real browser: what a person sees and does, live and after."""

import time

import pytest

from evenload.events import (
    EventFile,
    ItemFailed,
    ItemFinished,
    Moved,
    Note,
    RunFinished,
    RunStarted,
    Span,
    StageStarted,
)

BAD = "</script><img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"


def text_of(page, selector):
    return page.locator(selector).first.inner_text()


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def pixels(page, selector="#timeline canvas"):
    """How many colours the canvas shows."""
    return page.evaluate(
        """(selector) => {
          const canvas = document.querySelector(selector);
          const seen = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(seen.data.buffer)).size;
        }""",
        selector,
    )


def test_a_finished_run_is_all_there(write_run, serve_run, sample_run, look):
    folder = write_run(sample_run(fails=(3, 11), loses=(6,), moves=3))
    with serve_run(folder) as url:
        page = look(url)
        page.wait_for_selector("#devices")
        assert text_of(page, "h1") == "restore sample pictures"
        assert "done, with failures" in text_of(page, ".meta")
        assert text_of(page, ".verdict-number").endswith("×")
        assert page.locator("#failures .failure").count() == 2
        assert "ValueError: picture has 2 channels" in text_of(page, "#failures pre")
        assert page.locator("#devices tbody tr").count() == 4
        assert page.locator("#moves tbody tr").count() == 6
        assert page.locator("#slowest tbody tr").count() == 10
        assert pixels(page) > 6
        stages = page.locator("#stages tbody td.name").all()
        assert [one.inner_text().strip() for one in stages] == ["restore", "score"]
        with page.expect_download() as saved:
            page.get_by_text("Save report").click()
        assert "restore sample pictures" in saved.value.path().read_text(encoding="utf-8")


def test_it_follows_a_run_and_keeps_what_a_person_does(tmp_path, serve_run, look):
    (tmp_path / "run").mkdir()
    with serve_run(tmp_path / "run") as url:
        page = look(url)
        assert "Waiting for the run" in text_of(page, "#page")
        with EventFile(tmp_path / "run" / "events.jsonl", flush_s=0.0) as sink:
            sink(RunStarted(0.0, "a long one", time.time(), 40, {"a": {}, "b": {}}))
            sink(StageStarted(0.0, "map", 40))
            page.wait_for_selector("text=running")
            sink(Span("map", "a", "wa", 0, 1, 0.0, 1.0))
            sink(Span("map", "b", "wb", 1, 1, 0.0, 2.0, status="failed"))
            sink(ItemFailed(2.0, "map", 1, "second", "ValueError", "no", "b", "Traceback: line one"))
            page.wait_for_selector("#failures summary")
            page.locator("#failures summary").click()  # it is open at first
            page.locator("#failures summary").focus()
            page.locator("#timeline canvas").first.focus()
            page.keyboard.press("+")
            page.keyboard.press("+")
            assert page.get_by_label("Show the whole run").is_visible()
            page.locator("#failures summary").focus()
            for i in range(2, 40):
                device = "ab"[i % 2]
                sink(Span("map", device, f"w{device}", i, 1, float(i), i + 1.0, status="ok"))
            sink(ItemFailed(39.0, "map", 2, "third", "KeyError", "gone", "a", ""))
            sink(Moved(39.5, "a", "b", 5, 1.5))
            page.wait_for_selector("text=✕ KeyError")
            assert page.locator("#failures details").first.get_attribute("open") is None
            assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
            assert page.get_by_label("Show the whole run").is_visible()
            page.wait_for_selector("#moves tbody tr")
            sink(RunFinished(40.0, "failures", {"psnr_gain_db": 3.25}))
        page.wait_for_selector("text=+3.25")
        assert "done, with failures" in text_of(page, ".meta")
        page.get_by_label("Show the whole run").click()
        assert not page.get_by_label("Show the whole run").is_visible()


def test_the_end_of_the_server_is_told_and_the_page_stays(write_run, serve_run, sample_run, look):
    with serve_run(write_run(sample_run())) as url:
        page = look(url)
        page.wait_for_selector("#devices")
    page.wait_for_selector("text=connection lost")
    assert page.locator("#devices tbody tr").count() == 4


def test_a_phone_and_the_dark(write_run, serve_run, sample_run, look):
    with serve_run(write_run(sample_run(fails=(3,)))) as url:
        page = look(url, viewport={"width": 390, "height": 800}, color_scheme="dark")
        page.wait_for_selector("#devices")
        assert overflow(page) == 0
        assert page.evaluate("document.documentElement.dataset.look") == "dark"
        page.get_by_text("Theme: system").click()
        assert page.evaluate("document.documentElement.dataset.look") == "light"
        assert text_of(page, "header .tools").endswith("Theme: light")


def test_everything_can_be_reached_by_keyboard(write_run, serve_run, sample_run, look):
    with serve_run(write_run(sample_run(fails=(3,)))) as url:
        page = look(url)
        page.wait_for_selector("#devices")
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "(one => one.closest('[id]:not(main)')?.id || one.className)(document.activeElement)"
                )
            )
        assert {"skip", "timeline", "failures", "settings"} <= reached
        page.locator("#timeline canvas").first.focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        assert "from" in text_of(page, ".tip")


def test_hostile_names_do_nothing(write_run, serve_run, look):
    events = [
        RunStarted(0.0, BAD, 0.0, 2, {BAD: {"name": BAD}, "b": {}}, {BAD: BAD}),
        Span(BAD, BAD, "w", 0, 1, 0.0, 2.0, why=BAD),
        Span(BAD, "b", "w", 1, 1, 0.0, 1.0),
        ItemFailed(2.0, BAD, 0, BAD, BAD, BAD, BAD, BAD),
        ItemFinished(2.0, BAD, 1, BAD, {BAD: 1.5, "picture": "../../etc/passwd.png"}),
        Moved(1.0, BAD, "b", 3),
        Note(2.0, "warning", BAD, BAD),
        RunFinished(2.0, "\x1b[31mred\u202e", {BAD: BAD}),
    ]
    with serve_run(write_run(events)) as url:
        page = look(url)
        page.wait_for_selector("#devices")
        assert page.title() != "hacked"
        assert page.locator("img[src=x]").count() == 0
        assert BAD in text_of(page, "h1")
        shown = page.evaluate("document.body.innerText")
        assert "\u202e" not in shown
        assert "\x1b" not in shown
        assert "lies outside the run folder" in shown


def test_curves_of_rounds_and_stage_times_of_proofs(write_run, serve_run, look):
    events = [RunStarted(0.0, "rounds", 0.0, 12, {"a": {}})]
    for i in range(12):
        events.append(Span("round", "a", "a", i, 1, float(i), i + 1.0))
        outputs = {"loss": 1 / (i + 1), "read_s": 0.1, "msm_s": 0.5 + i / 20}
        events.append(ItemFinished(i + 1.0, "round", i, f"round {i + 1}", outputs))
    with serve_run(write_run([*events, RunFinished(12.0, "done")])) as url:
        page = look(url)
        page.wait_for_selector("#measures canvas")
        assert text_of(page, "#measures h2") == "Figures of each round"
        titles = [one.inner_text() for one in page.locator("#measures figcaption b").all()]
        assert titles == ["Seconds, by part", "loss"]
        assert pixels(page, "#measures canvas") > 3


@pytest.mark.parametrize("n_chunks", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_chunks_are_zoomed_and_moved(n_chunks, write_run, serve_run, sample_run, look):
    folder = write_run(
        sample_run(n_items=n_chunks, stages={"map": 0.004}, samples=False, gap_s=1e-5, chunk=1)
    )
    asked = []
    with serve_run(folder) as url:
        page = look(url)
        page.on("response", lambda one: asked.append(one) if "/timeline" in one.url else None)
        page.wait_for_selector(f".figures >> text={n_chunks:,}".replace(",", "\u2009"))
        page.wait_for_selector("#timeline canvas")
        canvas = page.locator("#timeline canvas").first
        canvas.focus()
        for _ in range(12):
            page.keyboard.press("+")
        for _ in range(5):
            page.keyboard.press("Shift+ArrowRight")
        until = time.monotonic() + 100
        while not any("from=" in one.url for one in asked) and time.monotonic() < until:
            page.wait_for_timeout(100)
        sizes = [len(one.body()) for one in asked]
        assert any("from=" in one.url for one in asked)
        assert max(sizes) < 1_500_000
        canvas.focus()
        page.keyboard.press("ArrowRight")
        assert "item " in text_of(page, ".tip")


@pytest.mark.slow
def test_twenty_pages_of_a_thousand_events_a_second(tmp_path, serve_run, look):
    (tmp_path / "run").mkdir()
    with serve_run(tmp_path / "run") as url:
        pages = [look(url) for _ in range(20)]
        began = time.time()
        with EventFile(tmp_path / "run" / "events.jsonl", flush_s=0.1) as sink:
            sink(RunStarted(0.0, "quick", began, 20_000, {"a": {}, "b": {}}))
            sink(StageStarted(0.0, "map", 20_000))
            for i in range(20_000):
                if i % 50 == 0:
                    time.sleep(max(0.0, began + i / 1000 - time.time()))
                sink(Span("map", "ab"[i % 2], "w" + "ab"[i % 2], i, 1, i / 1000, (i + 1) / 1000))
            wrote_s = time.time() - began
            sink(RunFinished(20.0, "done"))
        for page in pages:
            page.wait_for_selector(".figures >> text=20\u2009000", timeout=100_000)
            assert "20\u2009000" in text_of(page, ".figures")
    print(f"20,000 events took {wrote_s:.2f} s to write at 1,000 a second")  # noqa: T201


def test_pictures_come_and_stay(tmp_path, write_run, serve_run, look):
    from PIL import Image

    def finished(i):
        for name in ("in", "out"):
            (tmp_path / "run" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 24), (40 * i, 90, 200)).save(tmp_path / "run" / name / f"{i}.png")
        outputs = {"before": f"in/{i}.png", "restored": f"out/{i}.png", "score": 0.5 + i / 10}
        return ItemFinished(i + 1.0, "restore", i, f"picture {i}", outputs)

    (tmp_path / "run").mkdir()
    write_run(
        [
            RunStarted(0.0, "pictures", 0.0, 3, {"a": {}}),
            Span("restore", "a", "a", 0, 1, 0.0, 1.0),
            finished(0),
        ]
    )
    asked = []
    with serve_run(tmp_path / "run") as url:
        page = look(url)
        page.on("request", lambda one: asked.append(one.url) if "/picture/" in one.url else None)
        page.wait_for_selector("#pictures .card img")
        page.locator("#pictures .card input").first.fill("20")
        write_run([finished(1), finished(2)])
        page.locator("#pictures .card").nth(2).wait_for()
        assert page.locator("#pictures .card input").first.input_value() == "20"
        page.get_by_label("Enlarge picture 1").click(force=True)
        assert "picture 1" in text_of(page, "dialog.viewer")
        assert len(set(asked)) == len(asked)
        damaged = tmp_path / "run" / "events.jsonl"
        damaged.write_bytes(damaged.read_bytes() + b'{"event": "Hologram", "t": 1}\n{half\n')
        page.keyboard.press("Escape")
        page.wait_for_selector("text=1 × 'Hologram'")
        page.wait_for_selector("text=1 line was damaged")
