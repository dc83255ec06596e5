"""`python -m launch` is `fastsample-launch`."""

import sys

from launch.cli import main

sys.exit(main())
