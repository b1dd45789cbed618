"""reward on the report page: what each participant is paid, and for what."""

from functools import partial

from cascadice.applications.sections import Section, build_section

LEAD = (
    "Payments are in the unit of the budget. They share it out by how much loss each participant's updates removed on "
    "the test data. In this section positive = the loss went down = it helped."
)
SECTION = Section(
    "What should each participant be paid?", "cascadice reward {run} --budget 1000", partial(build_section, lead=LEAD)
)
