"""reward on the report page: what each participant is paid, and for what."""

from functools import partial

from cascadice.applications.sections import Section, build_section

LEAD = (
    "Payments share out the budget, in its unit, by credit. Helped by and harmed by: how much a participant's updates "
    "lowered and raised the loss on the test data, summed over the rounds in the ledger. Credit: the help less the "
    "part of the harm that is charged (--clawback)."
)
BUILD = partial(build_section, lead=LEAD)
SECTION = Section("What should each participant be paid?", "cascadice reward {run} --budget 1000", BUILD)
