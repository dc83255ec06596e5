"""`python -m fastsample_dist.train` is `fastsample-train`."""

import sys

from fastsample_dist.entry import train

sys.exit(train())
