"""A run as one HTML page: `collect` gathers plain data, `page` makes HTML of it, `write` does both.

`collect_results`, `page_of_results` and `write_results` do the same for what `cascadice reproduce` or a study wrote.
"""

from cascadice.report.page.collecting import collect
from cascadice.report.page.comparing import compare
from cascadice.report.page.results import collect_results
from cascadice.report.page.writing import REPORT, page, page_of_results, write, write_results

__all__ = ["REPORT", "collect", "collect_results", "compare", "page", "page_of_results", "write", "write_results"]
