"""`python -m cascadice`."""

import sys

from cascadice.cli import main

sys.exit(main())
