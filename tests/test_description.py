"""How the package presents itself: links that work from an index, and a citation of this version."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ADDRESS = "https://host.test/owner/cascadice"
described = runpy.run_path(str(ROOT / "hatch_build.py"))
README = (ROOT / "README.md").read_text()


def test_links_of_the_description_are_absolute_and_lead_to_files():
    links = re.findall(r"\]\(([^)\s]+)\)", described["absolute"](README, ADDRESS))
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", README)) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    places = [link.removeprefix(f"{ADDRESS}/") for link in links if link.startswith(ADDRESS)]
    assert [place for place in places if not (ROOT / re.sub(r"^(blob|raw)/main/|#.*", "", place)).exists()] == []


def test_pictures_are_linked_as_bytes_and_complete_addresses_are_left_alone():
    assert described["absolute"]("![a](b.png) [c](https://d.test) [e](#f)", ADDRESS) == (
        f"![a]({ADDRESS}/raw/main/b.png) [c](https://d.test) [e](#f)"
    )


def test_without_an_address_no_link_of_the_description_is_broken():
    unlinked = described["unlinked"](README)
    assert [link for link in re.findall(r"\]\(([^)\s]+)\)", unlinked) if not link.startswith(("https://", "#"))] == []
    assert "[glossary]" not in unlinked
    assert " glossary ·" in unlinked
    given = "![a](b.png) see [the\nd](docs/d.md#e), [f](https://g.test) and [h](#i)"
    assert described["unlinked"](given) == " see the\nd, [f](https://g.test) and [h](#i)"


def test_urls_are_under_the_address():
    assert described["urls"](ADDRESS)["Homepage"] == ADDRESS
    assert described["urls"](ADDRESS)["Changelog"] == f"{ADDRESS}/blob/main/CHANGELOG.md"


@pytest.mark.parametrize("field", ["version", "license"])
def test_the_citation_is_of_this_package(field):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\n{field}: {project[field]}\n" in (ROOT / "CITATION.cff").read_text()
