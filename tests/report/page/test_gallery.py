"""Pictures in the report: thumbnails, and nothing from outside the run folder."""

import base64
import io

import pytest
from PIL import Image

from evenload.events import ItemFinished, RunStarted
from evenload.report.page import gallery as module
from evenload.report.page.gallery import THUMB_PX, Gallery, make_thumbnail


def picture(path, size=(800, 600), color=(200, 30, 60), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)
    return path


def decoded(uri):
    head, _, content = uri.partition(",")
    assert head in ("data:image/webp;base64", "data:image/png;base64")
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_a_thumbnail_is_small_and_keeps_its_shape(tmp_path):
    picture(tmp_path / "in" / "x.png")
    thumb, problem = make_thumbnail(tmp_path, "in/x.png")
    assert (problem, thumb["link"]) == ("", "in/x.png")
    size = (THUMB_PX, THUMB_PX * 600 // 800)
    assert (thumb["width"], thumb["height"]) == decoded(thumb["src"]).size == size


@pytest.mark.parametrize(
    ("mode", "color"), [("L", 90), ("RGBA", (1, 2, 3, 90)), ("P", 3), ("I;16", 900), ("1", 1), ("LA", (9, 9))]
)
def test_pictures_of_all_kinds(tmp_path, mode, color):
    picture(tmp_path / "x.png", (40, 30), color, mode)
    thumb, problem = make_thumbnail(tmp_path, "x.png")
    assert problem == ""
    assert (thumb["width"], thumb["height"]) == (40, 30)


def test_what_is_not_in_the_folder_is_not_shown(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    picture(tmp_path / "secret.png")
    (run / "link.png").symlink_to(tmp_path / "secret.png")
    outside = ("../secret.png", "/etc/passwd.png", "in/../../secret.png", "link.png")
    for path in (*outside, "nowhere.png", "a\x00b.png", "x" * 5000 + ".png"):
        thumb, problem = make_thumbnail(run, path)
        assert (thumb, bool(problem)) == (None, True), path
    gallery = Gallery()
    gallery.add(item(0, before="../secret.png", restored="gone.png"))
    assert (gallery.to_json(run)["items"], gallery.to_json(run)["n_problems"]) == ([], 2)


def test_what_is_no_picture_or_an_absurd_one_is_refused(tmp_path, monkeypatch):
    (tmp_path / "text.png").write_text("not a picture")
    picture(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:200])
    for name in ("text.png", "cut.png"):
        thumb, problem = make_thumbnail(tmp_path, name)
        assert (thumb, "not a picture" in problem) == (None, True)
    picture(tmp_path / "x.png", (400, 400))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert make_thumbnail(tmp_path, "x.png")[0] is None
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 10)
    assert "larger" in make_thumbnail(tmp_path, "x.png")[1]


def test_without_pillow_small_pictures_are_embedded_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "is_installed", lambda name: False)
    path = picture(tmp_path / "x.png", (8, 8))
    thumb, _ = make_thumbnail(tmp_path, "x.png")
    assert base64.b64decode(thumb["src"].partition(",")[2]) == path.read_bytes()
    (tmp_path / "evil.png").write_text("<svg onload=alert(1)>")
    assert make_thumbnail(tmp_path, "evil.png")[0] is None
    monkeypatch.setattr(module, "MAX_PLAIN_BYTES", 10)
    assert "Pillow" in make_thumbnail(tmp_path, "x.png")[1]


def item(index, **outputs):
    return ItemFinished(float(index), "restore", index, f"picture {index}", outputs)


def test_outputs_of_all_stages_come_together(tmp_path):
    for name in ("in.png", "mid.png", "out.png"):
        picture(tmp_path / name, (8, 8))
    gallery = Gallery()
    gallery.add(RunStarted(0.0, "r", 0.0, facts={"sort": "psnr_gain_db"}))
    gallery.add(item(0, restored="out.png", before="in.png", psnr_gain_db=3.5, note="fine", is_good=True))
    gallery.add(ItemFinished(1.0, "score", 0, "picture 0", {"score": 0.8, "nan": float("nan")}))
    gallery.add(ItemFinished(1.0, "score", 1, "no picture", {"score": 0.1}))
    shown = gallery.to_json(tmp_path)
    assert len(shown["items"]) == 1
    assert shown["items"][0]["numbers"] == {"psnr_gain_db": 3.5, "score": 0.8}
    assert [one["label"] for one in shown["items"][0]["pictures"]] == ["before", "restored"]
    assert (shown["first"], shown["sort"]) == ("psnr_gain_db", "psnr_gain_db"), "the job says so"


def test_of_many_pictures_the_range_of_scores_is_shown(tmp_path):
    picture(tmp_path / "x.png", (4, 4))
    gallery = Gallery(max_items=5)
    for index in range(100):
        gallery.add(item(index, restored="x.png", score=(index * 37 % 100) / 100))
    shown = gallery.to_json(tmp_path)
    assert shown["n_items"] == 100
    assert sorted(one["numbers"]["score"] for one in shown["items"])[::4] == [0.0, 0.99]


def test_kept_items_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_KEPT", 50)
    gallery = Gallery()
    for index in range(1000):
        gallery.add(item(index, restored="x.png"))
    assert len(gallery._items) <= 50
    assert gallery.to_json(None)["n_items"] >= 900


def test_the_group_of_an_item_is_shown_with_it(tmp_path):
    gallery = Gallery()
    gallery.add(ItemFinished(0.0, "encode", 0, "a", {"group": "style"}))  # no picture yet
    for index, name in enumerate("ab"):
        gallery.add(ItemFinished(1.0, "decode", index, name, {"edited": f"{name}.png"}))
        picture(tmp_path / f"{name}.png", (4, 4))
    assert [one["group"] for one in gallery.to_json(tmp_path)["items"]] == ["style", None]
