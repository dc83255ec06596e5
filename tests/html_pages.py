"""Reading the pages that commands write: their elements, their tables and the plots inside them."""

import base64
from html.parser import HTMLParser
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


class Elements(HTMLParser):
    """Collects the page's elements, and checks that they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.found.append((tag, dict(attributes)))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(page: str) -> list[tuple[str, dict]]:
    parser = Elements()
    parser.feed(page)
    assert parser.open == []
    return parser.found


def pictures(page: str) -> list[ElementTree.Element]:
    """The page's plots, read as XML."""
    sources = [attributes["src"] for tag, attributes in elements(page) if tag == "img"]
    prefix = "data:image/svg+xml;base64,"
    assert all(source.startswith(prefix) for source in sources)
    return [ElementTree.fromstring(base64.b64decode(source.removeprefix(prefix))) for source in sources]


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table, as text."""
    parser = Rows()
    parser.feed(page)
    return parser.found


class Rows(HTMLParser):
    """Collects the rows of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[str]] = []
        self.inside = False

    def handle_starttag(self, tag: str, attributes: list) -> None:
        if tag == "tr":
            self.found.append([])
        elif tag in ("th", "td"):
            self.found[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found[-1][-1] += data


def check_self_contained(page: str) -> None:
    """Fail for a page that asks for anything from outside, or runs a script."""
    assert "http" not in page and "url(" not in page
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in elements(page)}
    for root in pictures(page):
        for element in root.iter():
            links = [value for key, value in element.attrib.items() if key.endswith("href")]
            assert all(link.startswith("#") for link in links)
            assert element.tag != f"{SVG}script"
