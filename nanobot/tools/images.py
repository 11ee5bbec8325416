"""Pictures for models: recognised by their bytes, made fit to send, shown in one turn only."""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nanobot.core.chat import ChatMessage, Image, ToolMessage, UserMessage
from nanobot.core.errors import ToolError
from nanobot.core.messages import Media
from nanobot.prompts import render
from nanobot.session.entries import Draft
from nanobot.store.files import disk_errors, write_atomic
from nanobot.store.home import Home

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

LONG_EDGE = 1568
"""Pixels of the longer side; models scale down what is larger."""
AREA = 1_150_000
"""Pixels of a whole picture; models scale down what is larger."""
SOURCE_BYTES = 30_000_000
"""Most bytes of a picture file that is read."""
SENT_BYTES = 3_750_000
"""Most bytes of a picture that is sent: 5 MB in base64, the lowest limit of the providers."""
SHOWN_AT_ONCE = 20
"""Most pictures in one request; the newest are shown."""

# Pixels that are decoded. A JPEG is decoded smaller than it is, so that it may be larger: the
# cameras of telephones make pictures of this size.
_MOST_PIXELS = {"JPEG": 65_000_000}
_MOST_PIXELS_ELSE = 36_000_000
_LOSSLESS_BYTES = 1_000_000
_JPEG_QUALITY = 88
# Anything else that a file says besides its pixels (where it was taken, say) is not sent.
_HARMLESS = frozenset(
    {
        *("dpi", "gamma", "srgb", "chromaticity", "icc_profile", "aspect", "interlace"),
        *("jfif", "jfif_version", "jfif_unit", "jfif_density", "adobe", "adobe_transform"),
        *("progressive", "progression"),
    }
)
# EXIF's tag for how the camera was held, with the values of TIFF 6.0, section 8.
_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_ON_ITS_SIDE = frozenset({5, 6, 7, 8})
_FORMATS = {"PNG": "PNG", "JPEG": "JPEG", "GIF": "GIF", "WEBP": "WebP"}

DraftT = TypeVar("DraftT", bound=Draft)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A picture fit to send: its bytes, type and description."""

    data: bytes
    mime: str
    description: str


@dataclass(frozen=True, slots=True)
class Attached:
    """The pictures attached to a message, and a line for each that failed."""

    images: tuple[Image, ...] = ()
    notes: tuple[str, ...] = ()

    def said_with(self, content: str) -> str:
        """The message's text followed by the notes."""
        return "\n".join((content, *self.notes)) if self.notes else content


def mime_of(head: bytes) -> str | None:
    """The MIME type of a picture that models take, by its first twelve bytes; else None."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None


class Pictures:
    """Makes pictures fit to send, one at a time, and stores them in their session's media."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._one_at_a_time = asyncio.Lock()  # each takes up to a few hundred MB for a moment

    async def keep(self, data: bytes, session_key: str) -> tuple[Image, str]:
        """Store a picture as it will be sent; returns it with its description.

        Raises ToolError with the reason if it cannot be shown, StoreUnavailable if the disk is
        full.
        """
        async with self._one_at_a_time:
            prepared = await asyncio.to_thread(prepare, data)
        digest = hashlib.sha256(prepared.data).hexdigest()[:20]
        directory = self._home.media_of(session_key)
        path = directory / f"shown-{digest}.{prepared.mime.removeprefix('image/')}"
        await asyncio.to_thread(self._write, path, prepared.data)
        return Image(str(path), prepared.mime), prepared.description

    async def images_of(self, media: Sequence[Media], session_key: str) -> Attached:
        """The pictures among the attachments of a message that are files on this machine."""
        images: list[Image] = []
        notes: list[str] = []
        for item in media:
            if not is_local_picture(item):
                continue
            try:
                data = await asyncio.to_thread(read_picture, Path(item.ref))
                image, _ = await self.keep(data, session_key)
            except ToolError as error:
                notes.append(render.picture_failed(item.name or Path(item.ref).name, str(error)))
            else:
                images.append(image)
        return Attached(tuple(images), tuple(notes))

    def _write(self, path: Path, data: bytes) -> None:
        with disk_errors(path.parent):
            self._home.private(path.parent)
            try:
                os.utime(path)  # used again: its retention begins anew
            except FileNotFoundError:
                write_atomic(path, data, durable=False)


def is_local_picture(media: Media) -> bool:
    """Whether an attachment is a picture in a file on this machine."""
    is_picture = media.kind == "image" or media.mime.startswith("image/")
    return is_picture and Path(media.ref).is_absolute()


def too_large(size: int) -> ToolError:
    """The refusal of a file with more bytes than are looked at."""
    return ToolError(
        f"The picture has {size / 1e6:.0f} MB; more than {SOURCE_BYTES / 1e6:.0f} MB are not read."
    )


def read_picture(path: Path) -> bytes:
    """The bytes of a file, if they are not too many; raises ToolError. Blocks."""
    try:
        with path.open("rb") as file:
            data = file.read(SOURCE_BYTES + 1)
    except OSError as error:
        raise ToolError(f"{error.strerror}.") from error
    if len(data) > SOURCE_BYTES:
        raise too_large(path.stat().st_size)
    return data


# -- what the model is shown ----------------------------------------------------------------------


def without_past_pictures(entries: Iterable[DraftT], inbound_id: str) -> list[DraftT]:
    """A log's entries, with pictures from before the turn of ``inbound_id`` replaced by a line."""
    named: list[DraftT] = []
    is_past = True
    for entry in entries:
        is_past = is_past and entry.inbound_id != inbound_id
        if is_past and _images(entry.message):
            assert entry.message is not None
            named.append(replace(entry, message=_named(entry.message, _past)))
        else:
            named.append(entry)
    return named


def as_shown(messages: Sequence[ChatMessage], *, vision: bool, model: str) -> list[ChatMessage]:
    """The messages of a request with the pictures that the model can see.

    A line replaces every picture for a model without ``vision``, else the oldest of too many.
    """

    def stand_in(image: Image) -> str:
        return _past(image) if vision else render.picture_unseen(model)

    count = sum(len(_images(message)) for message in messages)
    hidden = max(count - SHOWN_AT_ONCE, 0) if vision else count
    shown: list[ChatMessage] = []
    for message in messages:
        if hidden > 0 and (images := _images(message)):
            hidden -= len(images)
            shown.append(_named(message, stand_in))
        else:
            shown.append(message)
    return shown


def has_pictures(messages: Iterable[ChatMessage]) -> bool:
    """Whether any message brings a picture."""
    return any(_images(message) for message in messages)


def _past(image: Image) -> str:
    return render.picture_past(Path(image.path))


def _images(message: ChatMessage | None) -> tuple[Image, ...]:
    return message.images if isinstance(message, UserMessage | ToolMessage) else ()


def _named(message: ChatMessage, note: Callable[[Image], str]) -> ChatMessage:
    """The message with a line in place of each of its pictures."""
    assert isinstance(message, UserMessage | ToolMessage)
    lines = [message.content, *map(note, message.images)]
    return replace(message, content="\n".join(filter(None, lines)), images=())


# -- making a picture fit ------------------------------------------------------------------------


def prepare(data: bytes) -> Prepared:
    """The picture as JPEG or PNG within the limits, upright, without transparency or metadata.

    Of a moving picture the first frame. What is fit already stays as it is. Raises ToolError.
    Blocks; runs on any thread.
    """
    if mime_of(data[:12]) is None:
        raise ToolError("It is not a PNG, JPEG, GIF or WebP picture.")
    from PIL import Image as Pillow

    try:
        with Pillow.open(io.BytesIO(data), formats=tuple(_FORMATS)) as picture:
            return _prepared(picture, data)
    except ToolError:
        raise
    except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
        raise ToolError("The picture has too many pixels to be decoded.") from error
    except Exception as error:  # decoders raise what they like at what they cannot decode
        raise ToolError(f"The picture is damaged ({type(error).__name__}).") from error


def _prepared(picture: Picture, data: bytes) -> Prepared:
    from PIL import Image as Pillow

    kind, frames = picture.format or "", getattr(picture, "n_frames", 1)
    if kind == "MPO":  # a JPEG that holds small copies of itself, as cameras make them
        kind, frames = "JPEG", 1
    width, height = picture.size
    most = _MOST_PIXELS.get(kind, _MOST_PIXELS_ELSE)
    if width * height > most:
        raise ToolError(
            f"The picture has {_pixels(width, height)}; more than {most // 1_000_000} million are "
            "not decoded. Make it smaller first."
        )
    size = _fitting(width, height)
    picture.draft(None, size)
    picture.load()
    orientation = picture.getexif().get(_ORIENTATION, 1)
    is_fit = (
        picture.format in {"JPEG", "PNG"}
        and picture.mode in {"RGB", "L"}
        and size == (width, height)
        and frames == 1
        and orientation not in _TURNS
        and picture.info.keys() <= _HARMLESS
        and len(data) <= _LOSSLESS_BYTES
    )
    if is_fit:
        shown, sent, mime = picture, data, f"image/{kind.lower()}"
    else:
        shown = _flattened(_of_eight_bits(picture).resize(size, reducing_gap=2.0))
        if orientation in _TURNS:
            shown = shown.transpose(Pillow.Transpose[_TURNS[orientation]])
        sent, mime = _encoded(shown, lossless=kind in {"PNG", "GIF"})
    if orientation in _ON_ITS_SIDE:
        width, height = height, width
    scaled = "" if shown.size == (width, height) else f", shown at {_pixels(*shown.size)}"
    first = "" if frames == 1 else f", the first of {frames} frames"
    return Prepared(
        sent, mime, f"a {_FORMATS[kind]} picture of {_pixels(width, height)}{scaled}{first}"
    )


def _fitting(width: int, height: int) -> tuple[int, int]:
    """The size of a picture made to fit, in its own proportions."""
    scale = min(1.0, LONG_EDGE / max(width, height), math.sqrt(AREA / (width * height)))
    return max(int(width * scale), 1), max(int(height * scale), 1)


def _of_eight_bits(picture: Picture) -> Picture:
    """The picture in RGB, RGBA or grey, eight bits each."""
    if picture.mode.startswith("I"):
        return picture.point(lambda value: value * (1 / 257) + 0).convert("L")
    if picture.has_transparency_data:
        return picture.convert("RGBA")
    return picture.convert("L" if picture.mode in {"1", "L"} else "RGB")


def _flattened(picture: Picture) -> Picture:
    """The picture with white where it is transparent: models see nothing, or black, there."""
    from PIL import Image as Pillow

    if picture.mode != "RGBA":
        return picture
    white = Pillow.new("RGBA", picture.size, "white")
    return Pillow.alpha_composite(white, picture).convert("RGB")


def _encoded(picture: Picture, *, lossless: bool) -> tuple[bytes, str]:
    """(bytes, MIME type): PNG where that is small, for what had sharp edges, else JPEG."""
    picture.info.clear()
    if lossless:
        file = io.BytesIO()
        picture.save(file, "PNG")
        if file.tell() <= _LOSSLESS_BYTES:
            return file.getvalue(), "image/png"
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue(), "image/jpeg"


def _pixels(width: int, height: int) -> str:
    return f"{width:,} × {height:,} pixels"
