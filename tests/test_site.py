"""The documentation's pages work from a folder, with no server and no network: the search finds things."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from report import browser

ROOT = Path(__file__).parent.parent
pytest.importorskip("material", reason="`make docs` installs mkdocs-material")
pytestmark = pytest.mark.skipif(browser.find() is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two pages with the settings of the real ones, less those that read the source."""
    folder = tmp_path_factory.mktemp("site")
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = re.sub(r"^nav:\n(  .*\n)+", "", settings, flags=re.MULTILINE)
    settings = re.sub(r"^  - mkdocstrings:\n(    .*\n)+", "", settings, flags=re.MULTILINE)
    settings = re.sub(r"^(exclude_docs|not_in_nav):.*\n", "", settings, flags=re.MULTILINE)
    (folder / "mkdocs.yml").write_text(settings)
    script = folder / "docs" / "javascripts" / "iframe-worker.js"
    script.parent.mkdir(parents=True)
    script.write_bytes((ROOT / "docs" / "javascripts" / "iframe-worker.js").read_bytes())
    (folder / "docs" / "index.md").write_text("# Home\n\nNothing here.\n")
    (folder / "docs" / "topologies.md").write_text("# Topologies\n\nThe torus wraps around.\n")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q"], cwd=folder, check=True)
    return folder / "site"


def test_search_finds_a_page_from_disk(site, tmp_path):
    with browser.browser(tmp_path) as tab:
        tab.call("Page.navigate", url=(site / "index.html").as_uri())
        tab.wait("document.readyState === 'complete' && document.querySelector('.md-search__input')")
        tab.js("document.querySelector('.md-search__input').focus()")
        tab.write("torus")
        result = "document.querySelector('.md-search-result__link')"
        tab.wait(f"{result} || performance.now() > 10000")
        assert "/topologies.html" in (tab.js(f"{result}?.href") or "")
        assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []
