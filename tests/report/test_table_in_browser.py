"""The table of a page in a real browser: searched, sorted, turned and downloaded."""

import re

import pytest


def test_the_table_is_searched_sorted_and_downloaded(tab):
    tab.js("URL.createObjectURL = (blob) => { blob.text().then((text) => saved.push(text)); return 'blob:x'; }")
    tab.js("window.saved = []")
    tab.js("HTMLAnchorElement.prototype.click = function () { window.file = this.download; }")
    tab.click("#search")
    tab.write("kind:truth source:2 hop:1 round:3")
    rows = tab.js("[...document.querySelectorAll('#rows tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert len(rows) > 1
    assert all(row[:4] + row[5:6] == ["influence", "truth", "3", "2", "1"] for row in rows)
    assert tab.text("#table-count").startswith(f"{len(rows)} rows of ")
    tab.click("#rows th:last-child button")
    values = [
        float(row.replace("−", "-"))
        for row in tab.js("[...document.querySelectorAll('#rows td:last-child')].map(c => c.textContent)")
    ]
    assert values == sorted(values)
    assert tab.js("document.querySelector('#rows th:last-child').getAttribute('aria-sort')") == "ascending"
    tab.click("#download")
    tab.wait("saved.length === 1")
    lines = tab.js("saved[0]").splitlines()
    assert lines[0] == "folder,kind,round,source,sample,hop,receiver,value"
    assert [float(line.split(",")[-1]) for line in lines[1:]] == values
    assert tab.js("file") == "run-influence.csv"


@pytest.mark.parametrize(
    ("words", "same"),
    [("source: 2", "source:2"), ("round:>3", "round:6"), ("ROUND: < 3 hop 1", "round:0 hop:1"),
     ("Participant 3 as source", "source:3"), ("hop 1 participant 2 as a receiver", "hop:1 receiver:2"),
     ("participant 1 as source, hop 1", "source:1 hop:1")],
)  # fmt: skip
def test_the_table_is_searched_by_column(tab, words, same):
    said = []
    for text in (words, same):
        tab.js("document.getElementById('search').value = ''")
        tab.click("#search")
        tab.write(text)
        said.append((tab.text("#table-count").split(" with ")[0], tab.text("#rows tbody")))
    assert said[0] == said[1]
    assert re.match(r"[1-9]\d* rows of ", said[0][0])


def test_pages_of_the_table_are_turned(tab):
    first = tab.text("#rows tbody")
    tab.click("#later")
    assert tab.text("#rows tbody") != first
    assert tab.text("#place").startswith("2 / ")
    tab.click("#earlier")
    assert tab.text("#rows tbody") == first


def test_a_search_for_a_participant_says_what_it_found(tab):
    tab.click("#search")
    tab.write("Participant 3 kind:truth hop 1")
    assert tab.text("#table-count").endswith(" of 642 with participant 3 as source or receiver, kind truth, hop 1")
    pairs = tab.js("[...document.querySelectorAll('#rows tbody tr')].map(r => [3, 6].map(i => r.cells[i].textContent))")
    assert all("3" in pair for pair in pairs)
    assert {pair.index("3") for pair in pairs} == {0, 1}
    tab.js("document.getElementById('search').value = ''")
    tab.write("participant 3 as source, hop 1")
    assert re.fullmatch(r"\d+ rows of 642 with participant 3 as source, hop 1", tab.text("#table-count"))
    tab.write(" nonsense")
    assert tab.text("#table-count").endswith(
        "Search for a word, participant 3, or a column and its value, such as round > 0."
    )
    tab.js("window.fresh = JSON.parse(document.getElementById('data').textContent)")
    tab.js("fresh.table.values[2].fill(-1); cascadice.render(fresh)")  # summed over rounds
    assert tab.text("#table-count").endswith("or a column and its value, such as sample > 4.")
