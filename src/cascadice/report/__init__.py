"""The HTML report of a run, of reproduced figures and of studies (`page`), also while a run trains (`live`)."""
