"""`python -m pkb_gym.cli` is `pkb`."""

import sys

from . import main

sys.exit(main())
