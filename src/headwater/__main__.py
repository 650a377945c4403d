"""`python -m headwater`: the command line."""

import sys

from headwater.cli.app import main

sys.exit(main())
