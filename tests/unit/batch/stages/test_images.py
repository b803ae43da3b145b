"""Images of rows: from wherever they are, decoded, in order."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rayllm.batch.rows import ERROR, Row
from rayllm.batch.stages import images
from rayllm.batch.stages.images import PrepareImageStage
from tests.servers.listener import Handler, Listener
from tests.servers.s3 import S3Server

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def picture(color: Any = RED, mode: str = "RGB", **save: Any) -> bytes:
    """A file with four pixels."""
    file = BytesIO()
    Image.new(mode, (2, 2), color).save(file, "png", **save)
    return file.getvalue()


class Pictures(Listener):
    """Serves pictures by path, and counts who asks."""

    def __init__(self) -> None:
        super().__init__(self._handler)
        self.asked: Counter[str] = Counter()

    def _handler(self, *args: Any) -> Handler:
        server = self

        class Picture(Handler):
            def do_GET(self) -> None:
                server.asked[self.path] += 1
                if self.path == "/missing":
                    self.reply(404, {}, b"none")
                else:
                    self.reply(200, {}, {"/red": picture(RED), "/blue": picture(BLUE)}.get(self.path, b"no picture"))

        return Picture(*args)


@pytest.fixture
def web() -> Iterator[Pictures]:
    server = Pictures()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def stage() -> PrepareImageStage:
    return PrepareImageStage()


def colors(row: Row) -> list[Any]:
    """The colour of each image of a row."""
    assert ERROR not in row, row[ERROR]
    assert {image.mode for image in row["images"]} == {"RGB"}
    return [image.getpixel((0, 0)) for image in row["images"]]


def said(stage: PrepareImageStage, image: Any) -> str:
    """Why an image cannot be had."""
    (row,) = stage([{"images": [image], "n": 1}])
    assert row["n"] == 1
    return str(row[ERROR])


def test_an_image_may_be_many_things(stage: PrepareImageStage, web: Pictures, tmp_path: Path) -> None:
    path = tmp_path / "a b.png"
    path.write_bytes(picture())
    data = "data:image/png;base64," + base64.b64encode(picture()).decode()
    array = np.full((2, 2, 3), RED, dtype=np.uint8)
    decoded = Image.new("RGB", (2, 2), RED)
    forms = [str(path), path, path.as_uri(), f"file://{path}", data, f"{web.url}/red", picture(), array, decoded]
    (row,) = stage([{"images": forms}])
    assert colors(row) == [RED] * len(forms)


def test_an_image_may_lie_in_a_bucket(stage: PrepareImageStage, s3: S3Server, place: str) -> None:
    s3.put(place, {"some/red.png": picture()})
    (row,) = stage([{"images": f"s3://{place}/some/red.png"}])
    assert colors(row) == [RED]
    assert "cannot be read" in said(stage, f"s3://{place}/some/none.png")


def test_images_of_messages_come_first_in_their_order(stage: PrepareImageStage) -> None:
    def part(kind: str, value: Any) -> Row:
        # Rows of a dataset have the keys of all rows.
        return {"type": kind, kind: value, "text": None}

    first = [part("image_url", {"url": _data(RED)}), {"type": "text", "text": "?"}, part("image_url", _data(BLUE))]
    second = [part("image", picture(WHITE)), part("image_pil", Image.new("RGB", (1, 1), RED))]
    messages = [
        {"role": "system", "content": "see"},
        {"role": "user", "content": first},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [*second, part("input_image", _data(BLUE))]},
    ]
    (row,) = stage([{"messages": messages, "images": [picture(RED)], "x": 1}])
    assert colors(row) == [RED, BLUE, WHITE, RED, BLUE, RED]
    assert (row["messages"], row["x"]) == (messages, 1)


def _data(color: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(picture(color)).decode()


def test_rows_stay_in_order_and_those_without_images_as_they_are(stage: PrepareImageStage) -> None:
    plain = {"messages": "hello", "images": None}
    rows = stage([{"images": [picture(color)]} for color in (RED, BLUE, WHITE) * 20] + [plain])
    assert [colors(row)[0] for row in rows[:-1]] == [RED, BLUE, WHITE] * 20
    assert rows[-1] == plain


def test_an_image_is_fetched_once(stage: PrepareImageStage, web: Pictures) -> None:
    for _ in range(2):
        assert [colors(row) for row in stage([{"images": [f"{web.url}/red"]}] * 40)] == [[RED]] * 40
    assert web.asked == {"/red": 1}


def test_the_cache_has_an_end(stage: PrepareImageStage, web: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_CACHE_BYTES", len(picture(BLUE)))
    for path in ("red", "blue", "blue", "red"):
        stage([{"images": f"{web.url}/{path}"}])
    assert web.asked == {"/red": 2, "/blue": 1}


def test_what_could_not_be_had_is_asked_for_again(stage: PrepareImageStage, tmp_path: Path) -> None:
    path = tmp_path / "late.png"
    assert "cannot be read: No such file or directory" in said(stage, str(path))
    path.write_bytes(picture())
    assert colors(stage([{"images": str(path)}])[0]) == [RED]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (b"no picture", "images: the bytes cannot be read as an image."),
        (picture()[:50], "images: the bytes cannot be read as an image."),
        ("data:image/png;base64,@@", "images: a `data:` URI must hold base64."),
        ("data:image/png,red", "images: a `data:` URI must hold base64."),
        ("data:image/png;base64,AAAA", "cannot be read as an image."),
        ("/nowhere/at/all.png", "images: `/nowhere/at/all.png` cannot be read: No such file or directory."),
        ("a\0b", "cannot be read: "),
        ("http://127.0.0.1:9/x.png", "images: `http://127.0.0.1:9/x.png` cannot be fetched: "),
        (np.zeros((2, 2, 9), dtype=np.uint8), "images: an array must be (height, width, 3) bytes, not (2, 2, 9)."),
    ],
)
def test_a_broken_image_is_its_rows_fault(stage: PrepareImageStage, image: Any, expected: str) -> None:
    assert expected in said(stage, image)


def test_a_server_that_has_none(stage: PrepareImageStage, web: Pictures) -> None:
    assert said(stage, f"{web.url}/missing") == f"images: `{web.url}/missing` answered 404."
    assert said(stage, f"{web.url}/text") == f"images: `{web.url}/text` cannot be read as an image."
    bad, good = stage([{"images": f"{web.url}/missing"}, {"images": f"{web.url}/red"}])
    assert ERROR in bad
    assert colors(good) == [RED]


def test_a_part_without_its_image(stage: PrepareImageStage) -> None:
    content = [{"type": "image_url", "image_url": None, "text": None}]
    (row,) = stage([{"messages": [{"role": "user", "content": content}]}])
    assert row[ERROR] == "messages: a part of type `image_url` needs an `image_url`."


def test_what_is_transparent_is_white_as_when_the_model_serves(stage: PrepareImageStage) -> None:
    clear = Image.new("RGBA", (2, 2), (255, 0, 0, 0))
    palette = picture(0, "P", transparency=0)
    (row,) = stage([{"images": [clear, picture((0, 0, 255, 0), "RGBA"), picture((9, 0), "LA"), palette]}])
    assert colors(row) == [WHITE] * 4


def test_a_photograph_stands_upright(stage: PrepareImageStage) -> None:
    image, file = Image.new("RGB", (3, 2)), BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(file, "jpeg", exif=exif)
    (row,) = stage([{"images": [file.getvalue()]}])
    assert row["images"][0].size == (2, 3)


@pytest.mark.parametrize("mode", ["L", "1", "CMYK", "I;16", "P"])
def test_images_of_all_modes_are_taken(stage: PrepareImageStage, mode: str) -> None:
    (row,) = stage([{"images": [Image.new(mode, (2, 2))]}])
    assert row["images"][0].mode == "RGB"
