"""choose on the report page: who should listen to whom."""

from functools import partial

from cascadice.applications.sections import Section, build_section

LEAD = (
    "What participants gave and took is the loss they removed from their neighbours and had removed by them, summed "
    "over the recorded rounds. In this section positive = the loss went down = it helped. W is the mixing matrix: the "
    "weight that each receiver gives to each source."
)
SECTION = Section("Who should collaborate with whom?", "cascadice choose {run}", partial(build_section, lead=LEAD))
