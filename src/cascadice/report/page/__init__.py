"""A run as one HTML page: `collect` gathers what there is to show, `page` and `write` make the page of it."""

from cascadice.report.page.collecting import collect
from cascadice.report.page.writing import page, write

__all__ = ["collect", "page", "write"]
