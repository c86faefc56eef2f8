"""``python -m stopwise.cli``: the same as the command ``stopwise``."""

import sys

from stopwise.cli.main import main

sys.exit(main())
