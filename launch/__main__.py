"""`python -m fastsample_dist.launch` is `fastsample-launch`."""

import sys

from fastsample_dist.launch.cli import main

sys.exit(main())
