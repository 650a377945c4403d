"""Small displays for notebooks: valid, self-contained, and safe with any text."""

from __future__ import annotations

from xml.etree import ElementTree

from headwater.report.notebook import MOST_ROWS, bar, card, grid, sectors, sparkline, table


def parsed(html: str) -> ElementTree.Element:
    for word in ("<script", "href", "src=", "@import", "url("):
        assert word not in html
    return ElementTree.fromstring(html)


def test_a_card_escapes_text_and_keeps_drawings() -> None:
    root = parsed(card("<b>&", [("a<", "1 > 0"), ("chart", sparkline([0.1, 0.5], "a & b"))], notes=["x < y"]))
    assert next(text.strip() for text in root.itertext()) == "<b>&"
    assert "1 > 0" in "".join(root.itertext())
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 1


def test_a_table_marks_cells() -> None:
    root = parsed(table("t", ["m", "n"], [["a", "1"], ["b", "2"]], bold=[(1, 1)]))
    cells = list(root.iter("td"))
    assert [cell.text for cell in cells] == ["a", "1", "b", "2"]
    assert ["bold" in cell.get("style", "") for cell in cells] == [False, False, False, True]


def heights(drawing: str) -> list[float]:
    line = next(ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}polyline"))
    return [float(point.split(",")[1]) for point in line.get("points", "").split()]


def test_lines_share_a_scale_if_they_are_compared() -> None:
    low, high = (heights(sparkline(values, "", (0.0, 1.0))) for values in ([0.0, 0.1], [0.9, 1.0]))
    assert min(low) > max(high)  # lower on the page
    assert heights(sparkline([0.5, 0.5], "")) == [15.0, 15.0]  # equal values are in the middle
    assert len(heights(sparkline([0.5], ""))) == 1
    assert sparkline([], "") == ""


def test_a_grid_shows_the_first_clients() -> None:
    root = parsed(grid([[0, 3], [1, 0]], "samples"))
    squares = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    assert [square[0].text for square in squares] == ["client 0, class 1: 3", "client 1, class 0: 1"]
    many = parsed(grid([[1]] * 500, "samples"))
    assert len(list(many.iter("{http://www.w3.org/2000/svg}rect"))) == MOST_ROWS
    parsed(bar(0.0, "none"))
    assert (sectors(1), sectors(2)) == ("1 sector", "2 sectors")
