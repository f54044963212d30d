"""`python -m hayfork.cli` is the `hayfork` command."""

import sys

from hayfork.cli import main

sys.exit(main())
