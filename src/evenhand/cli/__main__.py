"""``python -m evenhand.cli``."""

import sys

from evenhand.cli import main

sys.exit(main())
