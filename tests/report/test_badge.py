"""The badge: whole percent, rounded down, as an SVG that any parser reads."""

from fractions import Fraction
from xml.etree import ElementTree

import pytest

from evenload.report.certificates import badge


@pytest.mark.parametrize(
    ("share", "percent"), [(1.0, 100), (0.9999999, 99), (Fraction(19, 20), 95), (0.0, 0), (1.2, 100)]
)
def test_percent_rounded_down(share, percent):
    image = ElementTree.fromstring(badge(share))
    assert image.attrib["aria-label"] == f"evenload {percent} % of the best possible"
    texts = [one.text for one in image.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["evenload", f"{percent} % of the best possible"]
