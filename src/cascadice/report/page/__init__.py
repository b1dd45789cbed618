"""A run as one HTML page: `collect` gathers what there is to show, `page` and `write` make the page of it.

`collect_results`, `page_of_results` and `write_results` do so of what `cascadice reproduce` made.
"""

from cascadice.report.page.collecting import collect
from cascadice.report.page.results import collect_results
from cascadice.report.page.writing import REPORT, page, page_of_results, write, write_results

__all__ = ["REPORT", "collect", "collect_results", "page", "page_of_results", "write", "write_results"]
