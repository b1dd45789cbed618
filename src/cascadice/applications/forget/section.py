"""forget on the report page: how far the models are from ones that never used the data."""

from functools import partial

from cascadice.applications.sections import Section, build_section

LEAD = (
    "Membership AUC: how well the forgotten samples can be told from unseen ones by their loss; 0.5 is guessing, 1 is "
    "certain. Distance left: how far the models still are from models that never used the data; 1 = as trained, "
    "0 = exact."
)
BUILD = partial(build_section, lead=LEAD)
SECTION = Section("How can a participant's data be removed?", "cascadice forget {run} --participant 0", BUILD)
