"""The page in a real browser: what a person sees and does, live and after."""

import re
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


DONE = ".meta .status >> text=/done|interrupted|failed/"
"""The run is read to its end: before that, a page of any finished run shows a part of it."""

DREW = """([selector, n_colours]) => {
  const canvas = document.querySelector(selector);
  if (!canvas || !canvas.width || !canvas.height) return false;
  const seen = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(seen.data.buffer)).size > n_colours;
}"""


def wait_for_colours(page, n_colours, selector="#timeline canvas"):
    """Wait until the canvas shows more than ``n_colours`` colours."""
    page.wait_for_function(DREW, arg=[selector, n_colours])


def test_a_finished_run_is_all_there(write_run, serve_run, sample_run, look, expect):
    folder = write_run(sample_run(fails=(3, 11), loses=(6,), moves=3))
    with serve_run(folder) as url:
        page = look(url)
        expect(page.locator("h1")).to_have_text("restore sample pictures")
        expect(page.locator(".meta")).to_contain_text("done, with failures")
        expect(page.locator(".verdict-number")).to_have_text(re.compile("%$"))
        expect(page.locator("#failures .failure")).to_have_count(2)
        expect(page.locator("#failures pre").first).to_contain_text("ValueError: picture has 2 channels")
        expect(page.locator("#devices tbody tr")).to_have_count(4)
        expect(page.locator("#moves tbody tr")).to_have_count(6)
        expect(page.locator("#slowest tbody tr")).to_have_count(10)
        wait_for_colours(page, 6)
        expect(page.locator("#stages tbody td.name")).to_have_text(["restore", "score"])
        with page.expect_download() as saved:
            page.get_by_text("Save report").click()
        assert "restore sample pictures" in saved.value.path().read_text(encoding="utf-8")


def test_it_follows_a_run_and_keeps_what_a_person_does(tmp_path, serve_run, look, expect):
    (tmp_path / "run").mkdir()
    with serve_run(tmp_path / "run") as url:
        page = look(url)
        expect(page.locator("#page")).to_contain_text("Waiting for the run")
        with EventFile(tmp_path / "run" / "events.jsonl", flush_s=0.0) as sink:
            sink(RunStarted(0.0, "a long one", time.time(), 40, {"a": {}, "b": {}}))
            sink(StageStarted(0.0, "map", 40))
            page.wait_for_selector("text=running")
            sink(Span("map", "a", "wa", 0, 1, 0.0, 1.0))
            sink(Span("map", "b", "wb", 1, 1, 0.0, 2.0, status="failed"))
            sink(ItemFailed(2.0, "map", 1, "second", "ValueError", "no", "b", "Traceback: line one"))
            page.locator("#failures summary").click()  # it is open at first
            expect(page.locator("#failures details")).not_to_have_attribute("open", re.compile(""))
            page.locator("#failures summary").focus()
            page.locator("#timeline canvas").first.focus()
            page.keyboard.press("+")
            page.keyboard.press("+")
            expect(page.get_by_label("Show the whole run")).to_be_visible()
            page.locator("#failures summary").focus()
            for i in range(2, 40):
                device = "ab"[i % 2]
                sink(Span("map", device, f"w{device}", i, 1, float(i), i + 1.0, status="ok"))
            sink(ItemFailed(39.0, "map", 2, "third", "KeyError", "gone", "a", ""))
            sink(Moved(39.5, "a", "b", 5, 1.5))
            page.wait_for_selector("text=✕ KeyError")
            page.wait_for_selector("#moves tbody tr")
            expect(page.locator("#failures details").first).not_to_have_attribute("open", re.compile(""))
            expect(page.locator("#failures summary").first).to_be_focused()
            expect(page.get_by_label("Show the whole run")).to_be_visible()
            sink(RunFinished(40.0, "failures", {"psnr_gain_db": 3.25}))
        page.wait_for_selector("text=+3.25")
        expect(page.locator(".meta")).to_contain_text("done, with failures")
        page.get_by_label("Show the whole run").click()
        expect(page.get_by_label("Show the whole run")).to_be_hidden()


def test_the_end_of_the_server_is_told_and_the_page_stays(write_run, serve_run, sample_run, look, expect):
    with serve_run(write_run(sample_run())) as url:
        page = look(url)
        page.wait_for_selector(DONE)
        expect(page.locator("#devices tbody tr")).to_have_count(4)
    page.wait_for_selector("text=/connection lost|server has ended/")  # the first, and some tries later
    expect(page.locator("#devices tbody tr")).to_have_count(4)


def test_a_phone_and_the_dark(write_run, serve_run, sample_run, look, expect):
    with serve_run(write_run(sample_run(fails=(3,)))) as url:
        page = look(url, viewport={"width": 390, "height": 800}, color_scheme="dark")
        page.wait_for_selector(DONE)
        root = page.locator("html")
        page.wait_for_function("(root => root.scrollWidth === root.clientWidth)(document.documentElement)")
        expect(root).to_have_attribute("data-look", "dark")
        page.get_by_text("Theme: system").click()
        expect(root).to_have_attribute("data-look", "light")
        expect(page.locator("header .tools")).to_have_text(re.compile("Theme: light$"))


def test_everything_can_be_reached_by_keyboard(write_run, serve_run, sample_run, look, expect):
    with serve_run(write_run(sample_run(fails=(3,)))) as url:
        page = look(url)
        page.wait_for_selector(DONE)
        page.wait_for_selector("#settings")
        reached, wanted = set(), {"skip", "timeline", "failures", "settings"}
        for _ in range(60):
            if wanted <= reached:
                break
            page.keyboard.press("Tab")
            at = "(one => one.closest('[id]:not(main)')?.id || one.className)(document.activeElement)"
            reached.add(page.evaluate(at))
        assert wanted <= reached
        page.locator("#timeline canvas").first.focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        expect(page.locator(".tip")).to_contain_text("from")


def test_hostile_names_do_nothing(write_run, serve_run, look, expect):
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
        expect(page.locator(".meta .status")).to_contain_text("red")
        expect(page.locator("h1")).to_contain_text(BAD)
        expect(page.locator("body")).to_contain_text("lies outside the run folder")
        page.wait_for_selector("#failures .failure")
        assert page.title() != "hacked"
        assert page.locator("img[src=x]").count() == 0
        shown = page.evaluate("document.body.innerText")
        assert "\u202e" not in shown
        assert "\x1b" not in shown


def test_curves_of_rounds_and_stage_times_of_proofs(write_run, serve_run, look, expect):
    events = [RunStarted(0.0, "rounds", 0.0, 12, {"a": {}})]
    for i in range(12):
        events.append(Span("round", "a", "a", i, 1, float(i), i + 1.0))
        outputs = {"loss": 1 / (i + 1), "read_s": 0.1, "msm_s": 0.5 + i / 20}
        events.append(ItemFinished(i + 1.0, "round", i, f"round {i + 1}", outputs))
    with serve_run(write_run([*events, RunFinished(12.0, "done")])) as url:
        page = look(url)
        expect(page.locator("#measures h2")).to_have_text("Figures of each round")
        expect(page.locator("#measures figcaption b")).to_have_text(["Seconds, by part", "loss"])
        wait_for_colours(page, 3, "#measures canvas")


@pytest.mark.parametrize("n_chunks", [8_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_chunks_are_zoomed_and_moved(n_chunks, write_run, serve_run, sample_run, look, expect):
    folder = write_run(
        sample_run(n_items=n_chunks, stages={"map": 0.004}, samples=False, gap_s=1e-5, chunk=1)
    )
    asked = []
    with serve_run(folder) as url:
        page = look(url)
        page.on("response", lambda one: asked.append(one) if "/timeline" in one.url else None)
        page.wait_for_selector(f".figures >> text={n_chunks:,}".replace(",", "\u2009"))
        page.wait_for_selector(DONE)
        canvas, tip = page.locator("#timeline canvas").first, page.locator(".tip")
        canvas.focus()
        page.keyboard.press("ArrowRight")
        expect(tip).to_contain_text("start-up")
        page.keyboard.press("ArrowRight")
        expect(tip).to_contain_text("merged")  # so many are drawn together
        with page.expect_response(lambda one: "from=" in one.url):
            for _ in range(12):
                page.keyboard.press("+")
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("ArrowRight")
        # The tip follows when the zoomed stretch has come, without another key.
        expect(tip).to_contain_text("item ")
        expect(tip).not_to_contain_text("merged")
        expect(page.locator(".live").first).to_contain_text("item ")
        assert max(len(one.body()) for one in asked) < 1_500_000


def test_pictures_come_and_stay(tmp_path, write_run, serve_run, look, expect):
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
        expect(page.locator("#pictures .card input").first).to_have_value("20")
        page.get_by_label("Enlarge picture 1").press("Enter")  # a click may miss it while pictures come
        expect(page.locator("dialog.viewer")).to_contain_text("picture 1")
        assert len(set(asked)) == len(asked)
        damaged = tmp_path / "run" / "events.jsonl"
        damaged.write_bytes(damaged.read_bytes() + b'{"event": "Hologram", "t": 1}\n{half\n')
        page.keyboard.press("Escape")
        page.wait_for_selector("text=1 × 'Hologram'")
        page.wait_for_selector("text=1 line was damaged")
