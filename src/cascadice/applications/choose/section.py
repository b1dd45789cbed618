"""choose on the report page: who should listen to whom."""

from functools import partial

from cascadice.applications.sections import Section, build_section

LEAD = (
    "Gave: how much a participant lowered the loss of its neighbours; took: how much they lowered its own, summed over "
    "the recorded rounds. Here positive = the loss went down = it helped. Group −1: in no group. W is the mixing "
    "matrix: the weight that each receiver gives to each source."
)
BUILD = partial(build_section, lead=LEAD)
SECTION = Section("Who should collaborate with whom?", "cascadice choose {run}", BUILD)
