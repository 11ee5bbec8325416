"""A worker program that turns web pages and PDF documents into text.

A hostile document can make a parser take for ever, or all memory, so parsers run in a process of
their own that can be killed. The program (``python -I reading_worker.py``) reads one request from
standard input (a line of JSON, then the document's bytes; pages in UTF-8) and writes one JSON
object to standard output. A slow step has a time limit, after which a simpler one takes its place.
"""

from __future__ import annotations

import copy
import io
import json
import re
import resource
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypedDict
from urllib.parse import urljoin

from lxml import etree, html  # type: ignore[import-untyped]

HtmlElement: TypeAlias = Any
"""An element of lxml, which has no types of its own."""

_MAX_MEMORY = 1024**3
_MAX_CPU_S = 60
# Markdown is made by recursion, three calls a level.
_MAX_DEPTH = 120
_MIN_SHARE = 0.4
_MIN_HELD = 0.9
_MIN_BLOCK = 60
_MAX_BLOCKS = 300

_NOT_CONTENT = (
    *("script", "style", "noscript", "template", "svg", "math", "iframe", "object", "embed"),
    *("applet", "canvas", "audio", "video", "map", "button", "input", "select", "textarea"),
    *("dialog", "link", "meta"),
)
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "center", "dd", "details", "dir"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2"),
        *("h3", "h4", "h5", "h6", "header", "hr", "li", "main", "menu", "nav", "ol", "p", "pre"),
        *("section", "summary", "table", "tr", "ul"),
    }
)
_LINES = frozenset({"dd", "div", "dt", "figcaption", "li", "summary", "tr"})
_PROSE = frozenset(
    {"p", "ul", "ol", "dl", "table", "pre", "blockquote", "figure", "h1", "h2", "h3"}
)
"""Elements of content, never its container."""
_CONTENT = "self::main or self::article or @role='main' or @role='article'"
_ROLES = ("navigation", "contentinfo", "complementary", "search", "dialog", "alertdialog")
_BESIDE = ".//*[self::nav or self::footer or self::aside{}][not(ancestor::*[{}])]".format(
    "".join(f" or @role='{role}'" for role in _ROLES), _CONTENT
)
"""Elements that a page itself marks as not its content."""
_CHROME = re.compile(
    r"(?:^|[\s_-])(?:cookies?|consent|gdpr|nav|navigation|sidebar|footer|breadcrumbs?|newsletter"
    r"|subscribe|share|social|related|promo|sponsored|adverts?|ads?|popup|modal)(?:$|[\s_-])",
    re.IGNORECASE,
)
_HIDDEN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_LANGUAGE = re.compile(r"\b(?:language|lang|highlight-source)-([A-Za-z0-9_+#-]{1,20})")
_SPACE = re.compile(r"[ \t\r\n\f\v\xa0]+")


class Request(TypedDict):
    """What to read: ``kind`` is markdown, text (of a page) or pdf; ``url`` is the page's own.

    ``limit`` is the number of characters wanted, ``step`` the seconds a step may take. ``first``
    is the page of a PDF to begin with, from 1; ``pages`` how many are wanted, None for all.
    """

    kind: str
    url: str
    limit: int
    step: float
    first: int
    pages: int | None


class Result(TypedDict):
    """What was read: ``total`` characters of which ``text`` has the first ones.

    ``note`` is what the reader has to know, ``error`` why there is no text; both may be "".
    """

    title: str
    text: str
    total: int
    note: str
    error: str


class TooSlow(BaseException):
    """A step has used up its time; a BaseException, since parsers catch every Exception."""


class Unreadable(Exception):
    """No text can be read; the reason never quotes the document."""


def read(request: Request, data: bytes) -> Result:
    """Read a document; a parser's failure becomes the result's ``error``."""
    result = Result(title="", text="", total=0, note="", error="")
    try:
        if request["kind"] == "pdf":
            title, text, note = read_pdf(
                data,
                request["limit"],
                seconds=3 * request["step"],
                first=request["first"],
                most=request["pages"],
            )
        else:
            title, text, note = read_page(
                data,
                request["url"],
                as_markdown=request["kind"] == "markdown",
                step=request["step"],
            )
    except Unreadable as error:
        result["error"] = str(error)
    except Exception as error:  # the process's supervision point: parsers raise what they like
        result["error"] = f"The document cannot be parsed ({type(error).__name__})."
    else:
        text = tidied(text)
        result["title"] = " ".join(tidied(title).split())[:300]
        result["text"], result["total"], result["note"] = text[: request["limit"]], len(text), note
    return result


def tidied(text: str) -> str:
    """``text`` without trailing spaces and without runs of empty lines."""
    lines: list[str] = []
    for line in text.replace("\xa0", " ").splitlines():
        line = line.rstrip()
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip("\n").encode("utf-8", "replace").decode()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooSlow when the block takes longer; only for a program's main thread."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- pages --------------------------------------------------------------------------------------


def read_page(data: bytes, url: str, *, as_markdown: bool, step: float) -> tuple[str, str, str]:
    """(title, text, note) of an HTML page: its article, or its whole body where it has none."""
    parser = html.HTMLParser(
        encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True
    )
    try:
        page = html.document_fromstring(data or b"<html></html>", parser=parser)
    except etree.ParserError:  # nothing but white space or comments
        return "", "", ""
    title = page.findtext(".//title") or ""
    body = page.find("body")
    if body is None:
        return title, _stripped(data), ""
    _clean(body, url)
    if not _words(body):
        return title, _stripped(data), ""
    article, left_out = _article(body, title, step)
    note = f"{left_out:,} characters beside the main content are left out" if left_out else ""
    if not as_markdown:
        return title, plain(article), note
    try:
        with limited(step):
            return title, _markdown(article), note
    except (TooSlow, RecursionError):
        text = "too large to be formatted: plain text"
        return title, plain(article), f"{text}; {note}" if note else text


def _clean(body: HtmlElement, url: str) -> None:
    """Drop what is not text or is invisible, make links absolute, bound the depth."""
    for element in list(body.iter(*_NOT_CONTENT)):
        element.drop_tree()
    for element in [*body.iterfind(".//*[@hidden]"), *body.iterfind(".//*[@style]")]:
        is_hidden = element.get("hidden") is not None or _HIDDEN.search(element.get("style"))
        if is_hidden and element.getparent() is not None:
            element.drop_tree()
    for picture in list(body.iter("img")):
        # The address of a picture is of no use here, and showing it again would fetch it.
        words = _one_line(picture.get("alt") or "")
        picture.tail = (f"[{words}]" if words else "") + (picture.tail or "")
        picture.drop_tree()
    base = body.getroottree().getroot().find(".//base[@href]")
    _resolve(body, url, "" if base is None else base.get("href"))
    _flatten(body)


def _resolve(body: HtmlElement, url: str, base: str) -> None:
    for link in list(body.iter("a")):
        target = (link.get("href") or "").strip()
        try:
            whole = urljoin(urljoin(url, base), target)
        except ValueError:
            whole = ""
        if not target or target.startswith("#") or not whole.startswith(("http:", "https:")):
            link.drop_tag()
        else:
            link.attrib.clear()
            link.set("href", whole.replace(" ", "%20"))


def _flatten(body: HtmlElement) -> None:
    """Replace elements nested too deep by their text."""
    level = [body]
    for _ in range(_MAX_DEPTH):
        level = [child for element in level for child in element]
    for element in level:
        text = element.text_content()
        for child in list(element):
            element.remove(child)
        element.text = text


def _article(body: HtmlElement, title: str, step: float) -> tuple[HtmlElement, int]:
    """The part of a page that is its content, and how many characters of prose that leaves out.

    A page that names its content (``main``, ``article``) is taken at its word: all of that is kept,
    and what looks like content elsewhere. Of any other page readability says where the content is;
    since it drops short paragraphs, lists and tables, only what is known to be none is left out
    round that place.
    """
    content = copy.deepcopy(body)
    for element in content.xpath(_BESIDE):
        element.drop_tree()
    visible = len(_words(content))
    if visible < _MIN_BLOCK:
        return body, 0
    named = content.xpath(f"//*[{_CONTENT}][not(ancestor::*[{_CONTENT}])]")
    if sum(len(_words(element)) for element in named) >= _MIN_SHARE * visible:
        for menu in [nav for element in named for nav in element.iter("nav") if _is_menu(nav)]:
            menu.drop_tree()
        return content, _prune([*named, *_others(content, named)], lambda beside: True)
    try:
        with limited(step):
            found = _readable(content, title)
            if found is None or len(_words(found)) < _MIN_SHARE * visible:
                return content, 0
            place = _place_of(found, content)
    except TooSlow:
        return body, 0

    def is_dropped(block: HtmlElement) -> bool:
        names = f"{block.get('class')} {block.get('id')}"
        return _is_menu(block) or _CHROME.search(names) is not None

    return content, _prune([place], is_dropped)


def _prune(kept: Sequence[HtmlElement], is_dropped: Callable[[HtmlElement], bool]) -> int:
    """Drop elements beside those to keep; returns how many characters of prose they held."""
    above = {ancestor for element in kept for ancestor in element.iterancestors()}
    path = above.union(kept)
    left_out = 0
    for ancestor in above:
        for beside in list(ancestor):
            if beside not in path and is_dropped(beside):
                left_out += 0 if _is_menu(beside) else len(_words(beside))
                beside.drop_tree()
    return left_out


def _readable(content: HtmlElement, title: str) -> HtmlElement | None:
    """The article according to readability; None if it finds none."""
    from readability import Document  # type: ignore[import-untyped]
    from readability.readability import Unparseable  # type: ignore[import-untyped]

    head = html.Element("title")
    head.text = title
    source = (
        f"<html><head>{html.tostring(head, encoding='unicode')}</head>"
        f"{html.tostring(content, encoding='unicode')}</html>"
    )
    try:
        summary = Document(source).summary(html_partial=True)
        return html.fragment_fromstring(summary, create_parent="div")
    except (Unparseable, etree.LxmlError):
        return None


def _place_of(found: HtmlElement, content: HtmlElement) -> HtmlElement:
    """The smallest element that holds nearly all of the text that was found."""
    paragraphs = [_words(part) for part in _outermost(found, ("p", "li", "td", "pre"))]
    wanted = _MIN_HELD * len(_words(found))
    place = content
    while containers := [child for child in place if child.tag not in _PROSE]:
        largest = max(containers, key=lambda child: len(_words(child)))
        words = _words(largest)
        held = sum(len(paragraph) for paragraph in paragraphs if paragraph in words)
        # Paragraphs that are all alike are found in the first of them.
        if min(held, len(words)) < wanted:
            break
        place = largest
    return place


def _others(content: HtmlElement, named: list[HtmlElement]) -> list[HtmlElement]:
    """The tables, lists and blocks of code outside the named content, menus aside."""
    taken = {inner for element in named for inner in (*element.iter(), *element.iterancestors())}
    blocks = _outermost(content, ("table", "ul", "ol", "dl", "pre"))[:_MAX_BLOCKS]
    return [
        block
        for block in blocks
        if block not in taken and len(_words(block)) >= _MIN_BLOCK and not _is_menu(block)
    ]


def _outermost(body: HtmlElement, tags: tuple[str, ...]) -> list[HtmlElement]:
    """The elements of these tags that lie in no other of them."""
    found: list[HtmlElement] = []
    inside: set[HtmlElement] = set()
    for element in body.iter(*tags):
        if element not in inside:
            found.append(element)
            inside.update(element.iter(*tags))
    return found


def _is_menu(block: HtmlElement) -> bool:
    """Whether most of a block are links."""
    return 2 * sum(len(_words(link)) for link in block.iter("a")) > len(_words(block))


def _words(element: HtmlElement) -> str:
    """The visible text of an element without any space, for comparing."""
    return _SPACE.sub("", element.text_content())


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown(article: HtmlElement) -> str:
    from markdownify import MarkdownConverter

    converter = MarkdownConverter(
        heading_style="atx",
        bullets="-",
        escape_asterisks=False,
        escape_underscores=False,
        table_infer_header=True,
        code_language_callback=_language,
    )
    text: str = converter.convert(html.tostring(article, encoding="unicode"))
    return text


def _language(pre: Any) -> str:
    """The language of a code block, as highlighters write it into its class."""
    for element in (pre, pre.find("code"), pre.parent):
        classes = element.get("class") if element is not None else None
        found = _LANGUAGE.search(" ".join(classes) if isinstance(classes, list) else classes or "")
        if found:
            return found[1]
    return ""


def plain(root: HtmlElement) -> str:
    """The text of an element as it would look without style: paragraphs, lines, tabs."""
    pieces: list[str] = []
    breaks = 2  # at the end of what there is so far
    open_pre = 0

    def add(text: str | None) -> None:
        nonlocal breaks
        if not open_pre:
            text = _SPACE.sub(" ", text or "")
            text = text.lstrip(" ") if breaks else text
        if text:
            pieces.append(text)
            breaks = 0

    def end_line(wanted: int) -> None:
        nonlocal breaks
        if breaks < wanted:
            pieces.append("\n" * (wanted - breaks))
            breaks = wanted

    for event, element in etree.iterwalk(root, events=("start", "end")):
        tag = element.tag
        if tag in _BLOCKS:
            end_line(1 if tag in _LINES else 2)
        if event == "start":
            if tag == "li":
                pieces.append("- ")
            open_pre += tag == "pre"
            add(element.text)
        else:
            open_pre -= tag == "pre"
            if tag == "br":
                pieces.append("\n")
                breaks += 1
            elif tag in {"td", "th"}:
                pieces.append("\t")
            if element is not root:
                add(element.tail)
    return "".join(pieces)


def _stripped(data: bytes) -> str:
    """The text between the tags of a page in which the parser finds no body or no words."""
    kept: list[str] = []
    skipped = ""
    for piece in re.split(r"(<[^<>]*>)", data.decode("utf-8", "replace")):
        tag = piece[1:9].lower() if piece.startswith("<") else ""
        if skipped:
            skipped = "" if tag.startswith(f"/{skipped}") else skipped
        elif tag.startswith(("script", "style")):
            skipped = tag[:5]
        else:
            kept.append(" " if tag else piece)
    return _SPACE.sub(" ", "".join(kept)).strip()


# -- PDF ----------------------------------------------------------------------------------------


def read_pdf(
    data: bytes, limit: int, *, seconds: float, first: int = 1, most: int | None = None
) -> tuple[str, str, str]:
    """(title, text, note) of a PDF document: its pages from ``first`` on.

    As many as ``limit`` asks for, but at most ``most``.
    """
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    try:
        document = PdfReader(io.BytesIO(data))
        if document.is_encrypted and not document.decrypt(""):
            raise Unreadable("The document is encrypted with a password.")
        count = len(document.pages)
    except DependencyError as error:
        raise Unreadable("The document is encrypted in a way that is not supported.") from error
    except PyPdfError as error:
        raise Unreadable("The document is damaged.") from error
    if first > count > 0:
        raise Unreadable(f"It has {count} pages; page {first} is beyond its end.")
    last = count if most is None else min(count, first + most - 1)
    pages: list[str] = []
    room = limit
    note = ""
    try:
        with limited(seconds):
            for number in range(first - 1, last):
                if room < 0:
                    break
                text = _page_text(document, number)
                room -= len(text)
                pages.append(f"[page {number + 1}]\n{text}" if count > 1 else text)
    except TooSlow:
        note = "the rest takes too long to read"
    if not any(page.partition("]\n")[2] if count > 1 else page for page in pages):
        raise Unreadable("The document holds no text that can be read, only pictures perhaps.")
    if len(pages) < count:
        shown = f"pages {first}-{first - 1 + len(pages)} of {count}"
        note = f"{shown}; {note}" if note else shown
    information = document.metadata
    return str(information.title or "") if information else "", "\n\n".join(pages), note


def _page_text(document: Any, number: int) -> str:
    try:
        text: str = document.pages[number].extract_text()
    except TooSlow:
        raise
    except Exception as error:  # one bad page is no reason to lose the others
        return f"(this page cannot be read: {type(error).__name__})"
    return text.strip()


def main() -> None:
    bounds: tuple[tuple[int, int], ...] = ((resource.RLIMIT_CPU, _MAX_CPU_S),)
    if sys.platform == "linux":
        bounds += ((resource.RLIMIT_AS, _MAX_MEMORY),)
    for kind, bound in bounds:
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (bound if most < 0 else min(bound, most), most))
    request: Request = json.loads(sys.stdin.buffer.readline())
    json.dump(read(request, sys.stdin.buffer.read()), sys.stdout)


if __name__ == "__main__":
    main()
