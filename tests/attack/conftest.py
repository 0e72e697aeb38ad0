"""The attacker is a package beside the tests, not part of the product; test modules are no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
