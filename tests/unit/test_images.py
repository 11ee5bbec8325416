"""Pictures: told by their bytes, made fit to send, kept on disk, shown in one turn only."""

from __future__ import annotations

import contextlib
import io
import os
import random
import stat
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from nanobot.core.errors import ToolError
from nanobot.core.messages import Media, Trust
from nanobot.prompts import render
from nanobot.session.entries import Draft, EntryKind
from nanobot.store.home import Home
from nanobot.tools import images
from nanobot.tools.images import (
    AREA,
    LONG_EDGE,
    SENT_BYTES,
    SHOWN_AT_ONCE,
    Attached,
    Pictures,
    as_shown,
    has_pictures,
    mime_of,
    prepare,
    without_past_pictures,
)

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def encoded(picture: Pillow.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def red(width: int, height: int, mode: str = "RGB") -> Pillow.Image:
    return Pillow.new("RGB", (width, height), RED).convert(mode)


def noise(width: int, height: int) -> Pillow.Image:
    return Pillow.frombytes("RGB", (width, height), random.Random(1).randbytes(3 * width * height))


def opened(data: bytes) -> Pillow.Image:
    picture = Pillow.open(io.BytesIO(data))
    picture.load()
    return picture


def close(one: object, other: tuple[int, ...]) -> bool:
    """Whether two colours are the same as far as JPEG goes."""
    assert isinstance(one, tuple)
    return all(abs(a - b) < 12 for a, b in zip(one, other, strict=True))


# --- making a picture fit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\r", "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0\1", "image/jpeg"),
        (b"GIF87a\1\0\1\0\0\0", "image/gif"),
        (b"GIF89a\1\0\1\0\0\0", "image/gif"),
        (b"RIFF\x24\0\0\0WEBP", "image/webp"),
        (b"RIFF\x24\0\0\0WAVE", None),
        (b"\0\0\0\x18ftypheic", None),
        (b"<svg xmlns=", None),
        (b"", None),
    ],
)
def test_a_picture_is_known_by_its_first_bytes(head: bytes, mime: str | None) -> None:
    assert mime_of(head) == mime


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_that_is_fit_stays_as_it_is(kind: str) -> None:
    data = encoded(red(40, 30), kind)

    prepared = prepare(data)

    assert (prepared.data, prepared.mime) == (data, f"image/{kind.lower()}")
    assert prepared.description == f"a {kind} picture of 40 × 30 pixels"


def test_a_large_picture_is_made_smaller_in_its_proportions() -> None:
    prepared = prepare(encoded(red(4000, 3000), "JPEG"))

    assert opened(prepared.data).size == (1238, 928)
    assert prepared.description == (
        "a JPEG picture of 4,000 × 3,000 pixels, shown at 1,238 × 928 pixels"
    )


@pytest.mark.parametrize(("size", "shown"), [((20_000, 3), (1568, 1)), ((3, 20_000), (1, 1568))])
def test_the_narrowest_picture_keeps_a_pixel(size: tuple[int, int], shown: tuple[int, int]) -> None:
    assert opened(prepare(encoded(red(*size), "PNG")).data).size == shown


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [
            *(("PNG", mode) for mode in ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")),
            *(("JPEG", mode) for mode in ("L", "RGB", "CMYK")),
            *(("GIF", mode) for mode in ("L", "P", "RGB", "RGBA")),
            *(("WEBP", mode) for mode in ("RGB", "RGBA")),
        ]
    ),
    st.integers(1, 2000),
    st.integers(1, 2000),
)
def test_every_kind_of_picture_becomes_one_that_every_model_takes(
    kind: tuple[str, str], width: int, height: int
) -> None:
    name, mode = kind
    picture = (
        Pillow.new("I;16", (width, height), 0xFFFF)
        if mode == "I;16"
        else Pillow.new("RGB", (width, height), "white").convert(mode)
    )

    prepared = prepare(encoded(picture, name))

    shown = opened(prepared.data)
    assert prepared.mime in {"image/png", "image/jpeg"}
    assert mime_of(prepared.data[:12]) == prepared.mime
    assert shown.mode in {"L", "RGB"}
    assert max(shown.size) <= LONG_EDGE
    assert shown.width * shown.height <= AREA
    assert close(shown.convert("RGB").getpixel((0, 0)), WHITE)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP"])
def test_what_is_transparent_is_white(kind: str) -> None:
    picture = Pillow.new("RGBA", (20, 20), (0, 0, 0, 0))
    picture.paste((255, 0, 0, 255), (0, 0, 10, 20))

    shown = opened(prepare(encoded(picture, kind, lossless=True)).data)

    assert close(shown.getpixel((2, 2)), RED)
    assert close(shown.getpixel((17, 2)), WHITE)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    ("orientation", "corner"),
    [(1, "↖"), (2, "↗"), (3, "↘"), (4, "↙"), (5, "↖"), (6, "↗"), (7, "↘"), (8, "↙")],
)
def test_a_picture_stands_upright(kind: str, orientation: int, corner: str) -> None:
    picture = Pillow.new("RGB", (60, 40), GREEN)
    picture.paste(RED, (0, 0, 20, 15))
    exif = Pillow.Exif()
    exif[0x0112] = orientation

    prepared = prepare(encoded(picture, kind, exif=exif))

    shown = opened(prepared.data)
    right, bottom = shown.width - 4, shown.height - 4
    corners = {"↖": (3, 3), "↗": (right, 3), "↘": (right, bottom), "↙": (3, bottom)}
    size = (40, 60) if orientation > 4 else (60, 40)
    assert shown.size == size
    assert f"{size[0]} × {size[1]} pixels" in prepared.description
    assert [name for name, place in corners.items() if close(shown.getpixel(place), RED)] == [
        corner
    ]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_where_a_picture_was_taken_is_not_sent(kind: str) -> None:
    exif = Pillow.Exif()
    exif[0x010E] = "at Ann's house"

    data = encoded(red(8, 8), kind, exif=exif)
    sent = prepare(data).data

    assert b"Ann's house" in data
    assert b"Ann's house" not in sent


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_of_a_moving_picture_the_first_frame_is_shown(kind: str) -> None:
    frames = [Pillow.new("RGB", (30, 30), colour) for colour in (RED, GREEN, RED)]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)

    prepared = prepare(data)

    assert close(opened(prepared.data).convert("RGB").getpixel((9, 9)), RED)
    assert prepared.description.endswith("picture of 30 × 30 pixels, the first of 3 frames")


def test_a_camera_picture_with_previews_inside_is_a_jpeg() -> None:
    data = encoded(noise(400, 300), "MPO", save_all=True, append_images=[red(40, 30)])

    prepared = prepare(data)

    assert opened(prepared.data).format == "JPEG"
    assert prepared.description == "a JPEG picture of 400 × 300 pixels"


def test_a_picture_full_of_detail_is_sent_within_the_limit() -> None:
    data = encoded(noise(1300, 1300), "PNG")

    prepared = prepare(data)

    assert len(data) > SENT_BYTES
    assert prepared.mime == "image/jpeg"
    assert len(prepared.data) < SENT_BYTES


def png_of(width: int, height: int) -> bytes:
    """A valid PNG that claims a size; its few bytes decode to nothing but that."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((6001, 6000), "6,001 × 6,000 pixels; more than 36 million are not decoded"),
        ((10_000, 10_000), "has too many pixels"),
        ((100_000, 100_000), "has too many pixels"),
    ],
)
def test_a_bomb_is_refused_before_it_is_decoded(size: tuple[int, int], reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        prepare(png_of(*size))


def test_a_photo_of_a_telephone_is_no_bomb() -> None:
    data = encoded(red(8160, 6120, "L"), "JPEG")

    assert prepare(data).description == (
        "a JPEG picture of 8,160 × 6,120 pixels, shown at 1,238 × 928 pixels"
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_picture_is_refused_or_shown_but_never_anything_else(
    kind: str, data: st.DataObject
) -> None:
    whole = bytearray(encoded(noise(20, 20), kind))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])

    with contextlib.suppress(ToolError):
        assert opened(prepare(cut).data).mode in {"L", "RGB"}


def test_a_picture_cut_short_is_refused_as_damaged() -> None:
    data = encoded(noise(50, 50), "PNG")

    with pytest.raises(ToolError, match=r"^The picture is damaged \(\w+\)\.$"):
        prepare(data[: len(data) // 2])


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ToolError, match="not a PNG, JPEG, GIF or WebP picture"):
        prepare(b"<svg></svg>")


# --- keeping it -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


async def test_a_picture_is_kept_once_among_its_sessions_media(home: Home) -> None:
    data = encoded(red(40, 30), "PNG")
    pictures = Pictures(home)

    image, description = await pictures.keep(data, "telegram:1")
    os.utime(image.path, (1, 1))
    again, _ = await pictures.keep(data, "telegram:1")

    kept = Path(image.path)
    assert image == again
    assert (image.mime, description) == ("image/png", "a PNG picture of 40 × 30 pixels")
    assert list(home.media_of("telegram:1").iterdir()) == [kept]
    assert kept.read_bytes() == data
    assert kept.stat().st_mtime > 1
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


async def test_the_pictures_of_a_message_are_those_in_files_here(
    home: Home, tmp_path: Path
) -> None:
    photo = tmp_path / "photo"
    photo.write_bytes(encoded(red(4, 4), "WEBP"))
    other = tmp_path / "other.heic"
    other.write_bytes(b"\0\0\0\x18ftypheic")
    media = (
        Media("image", str(photo), mime="image/png"),
        Media("document", str(photo), mime="image/webp"),
        Media("image", str(other), name="cat.heic"),
        Media("image", str(tmp_path / "gone.png")),
        Media("image", "telegram:AgAD"),
        Media("document", str(photo), mime="application/pdf"),
    )

    attached = await Pictures(home).images_of(media, "telegram:1")

    (path,) = home.media_of("telegram:1").iterdir()
    assert attached == Attached(
        images=(Image(str(path), "image/jpeg"),) * 2,
        notes=(
            "[Picture not delivered: cat.heic. It is not a PNG, JPEG, GIF or WebP picture.]",
            "[Picture not delivered: gone.png. No such file or directory.]",
        ),
    )
    assert attached.said_with("Look:").splitlines() == ["Look:", *attached.notes]
    assert Attached().said_with("Look:") == "Look:"


async def test_a_file_that_is_too_large_is_not_read(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "SOURCE_BYTES", 1_000_000)
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(2_000_000))

    attached = await Pictures(home).images_of((Media("image", str(photo)),), "a:1")

    assert attached.notes == (
        "[Picture not delivered: photo.png. The picture has 2 MB; more than 1 MB are not read.]",
    )


# --- showing it -----------------------------------------------------------------------------------

ONE, TWO, THREE = (Image(f"/media/{name}.png", "image/png") for name in ("one", "two", "three"))
PAST_ONE = render.picture_past(Path(ONE.path))
PAST_TWO = render.picture_past(Path(TWO.path))


def entry(message: ChatMessage | None, inbound_id: str) -> Draft:
    kind = EntryKind.TOOL if isinstance(message, ToolMessage) else EntryKind.USER
    return Draft(
        kind=EntryKind.RESET if message is None else kind,
        message=message,
        inbound_id=inbound_id,
        principal="owner:cli:owner",
        trust=Trust.TRUSTED,
    )


def test_a_picture_leaves_with_its_turn() -> None:
    log = [
        entry(UserMessage("look", (ONE,)), "in:1"),
        entry(ToolMessage("1", "read_file", "", (TWO,)), "in:1"),
        entry(None, "in:1"),
        entry(UserMessage("now", (THREE,)), "in:2"),
        entry(UserMessage("and this", (ONE,)), "in:3"),
    ]

    assert without_past_pictures(log, "in:2") == [
        entry(UserMessage(f"look\n{PAST_ONE}"), "in:1"),
        entry(ToolMessage("1", "read_file", PAST_TWO), "in:1"),
        *log[2:],
    ]
    assert without_past_pictures(log, "in:1") == log
    assert not any(
        has_pictures([one.message])
        for one in without_past_pictures(log, "in:9")
        if one.message is not None
    )


def test_a_model_that_sees_gets_the_messages_as_they_are() -> None:
    messages: list[ChatMessage] = [
        SystemMessage("be"),
        UserMessage("look", (ONE,)),
        AssistantMessage("", (ToolCall("1", "read_file", "{}"),)),
        ToolMessage("1", "read_file", "here", (TWO,)),
    ]

    assert as_shown(messages, vision=True, model="m") == messages
    assert has_pictures(messages)


def test_a_model_that_does_not_see_is_told_of_every_picture() -> None:
    messages: list[ChatMessage] = [
        UserMessage("look", (ONE, TWO)),
        ToolMessage("1", "read_file", "here", (THREE,)),
    ]
    unseen = render.picture_unseen("some-model")

    assert as_shown(messages, vision=False, model="some-model") == [
        UserMessage(f"look\n{unseen}\n{unseen}"),
        ToolMessage("1", "read_file", f"here\n{unseen}"),
    ]


def test_of_too_many_pictures_the_newest_are_shown() -> None:
    messages = [
        UserMessage("look", (ONE, TWO)),
        *(UserMessage(str(number), (THREE,)) for number in range(SHOWN_AT_ONCE - 1)),
    ]

    assert as_shown(messages, vision=True, model="m") == [
        UserMessage(f"look\n{PAST_ONE}\n{PAST_TWO}"),
        *messages[1:],
    ]
