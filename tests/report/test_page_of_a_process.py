"""The page of one process in a real browser: it shows its own participants, and draws the others as unknown."""

import pytest
from report import browser
from report.pages import ask_everything, train

from cascadice.report.page import collect, page

pytestmark = pytest.mark.skipif(browser.find() is None, reason="needs a browser (apt install chromium)")


def test_participants_of_other_processes_are_not_ranked(tmp_path):
    folder = train(tmp_path / "run")
    ask_everything(folder)
    data = collect(folder)
    for cascade in data["influence"]["cascades"].values():
        own = [place for place, source in enumerate(cascade["source"]) if source in (1, 2)]
        cascade.update({name: [column[place] for place in own] for name, column in cascade.items()})
    (tmp_path / "page.html").write_text(page(data | {"members": [1, 2]}))
    with browser.browser(tmp_path / "profile") as tab:
        tab.open(tmp_path / "page.html")
        ranked = tab.js("[...document.querySelectorAll('#ranking button')].map(b => Number(b.dataset.row))")
        assert sorted(ranked) == [1, 2]
        assert tab.js("document.querySelectorAll('#graph .unknown').length") == data["nodes"] - 2
        assert "Participants of this process" in tab.text("#panel-title")
        assert tab.errors == []
