"""SVG of matplotlib made fit for a page: no styles in attributes, colours of the page, words to point at."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

from pkb_gym.engine.support.printable import printable
from pkb_gym.report.figures.drawing import Drawing, Part
from pkb_gym.report.figures.theme import VARIABLES

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
SHAPES = (f"{{{SVG}}}use", f"{{{SVG}}}path")
DECIMALS = re.compile(r"(\d{1,20}\.\d\d)\d+")


def page_svg(drawing: Drawing, name: str, label: str) -> str:
    """The picture as an element of a page.

    matplotlib writes `style` attributes, which a content security policy without `unsafe-inline` refuses: they become
    attributes of their own. Ids get a prefix, as a page holds several pictures.

    Args:
        drawing: Drawing that was made under `style(PAGE)`.
        name: Name of the picture, a prefix of its ids.
        label: Description for those who do not see the picture.
    """
    text = io.StringIO()
    drawing.figure.savefig(text, format="svg", metadata={"Date": None})
    root = ET.fromstring(text.getvalue())
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for definitions in root.findall(f"{{{SVG}}}defs"):
        for sheet in definitions.findall(f"{{{SVG}}}style"):  # joins and caps of lines, which the page's sheet has
            definitions.remove(sheet)
    _add_parts(root, drawing.parts)
    for element in root.iter():
        _tidy(element, name)
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": label}
    ET.register_namespace("", SVG)
    return ET.tostring(root, encoding="unicode").replace("<svg:", "<").replace("</svg:", "</")


def _add_parts(root: ET.Element, parts: dict[str, Part]) -> None:
    for group in list(root.iter(f"{{{SVG}}}g")):
        part = parts.get(group.get("id", ""))
        if part is None:
            continue
        if part.agent is not None:
            group.set("data-agent", str(part.agent))
        shapes = [shape for shape in group.iter() if shape.tag in SHAPES and not _is_definition(group, shape)]
        if len(part.titles) == 1:
            _add_title(group, part.titles[0])
        elif len(part.titles) == len(shapes):
            for shape, title in zip(shapes, part.titles, strict=True):
                _add_title(shape, title)
        elif part.titles:
            raise ValueError(f"{len(part.titles)} titles for {len(shapes)} shapes")


def _is_definition(group: ET.Element, shape: ET.Element) -> bool:
    return any(shape in list(definitions.iter()) for definitions in group.iter(f"{{{SVG}}}defs"))


def _add_title(element: ET.Element, text: str) -> None:
    title = ET.Element(f"{{{SVG}}}title")
    title.text = printable(text)
    element.insert(0, title)


def _tidy(element: ET.Element, name: str) -> None:
    for declaration in element.attrib.pop("style", "").split(";"):
        key, colon, value = declaration.partition(":")
        if colon:
            _set_style(element, key.strip(), value.strip())
    for key, value in list(element.attrib.items()):
        if key == "id":
            element.set(key, f"{name}-{value}")
        elif key == f"{{{XLINK}}}href":
            del element.attrib[key]
            element.set("href", f"#{name}-{value.removeprefix('#')}")
        elif value.startswith("url(#"):
            element.set(key, f"url(#{name}-{value[5:]}")
        elif key in ("d", "x", "y", "transform", "points"):
            element.set(key, DECIMALS.sub(r"\1", value))
        else:
            element.set(key, VARIABLES.get(value.lower(), value))
    if element.text is not None and not element.text.strip():
        element.text = None
    element.tail = None


def _set_style(element: ET.Element, key: str, value: str) -> None:
    if key == "font":  # "10px 'DejaVu Sans', ..."; the family is that of the page
        size = re.search(r"([\d.]+)px", value)
        key, value = "font-size", size[1] if size else "9"
    element.set(key, value)
