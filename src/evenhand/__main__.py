"""``python -m evenhand``: the command ``evenhand``, which ends as quietly on Ctrl-C while the package is imported."""

import sys

from evenhand_command import main

if __name__ == "__main__":
    sys.exit(main())
