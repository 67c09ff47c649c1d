"""``python -m sglang_lp``, the same as ``sglang-lp``."""

import sys

from sglang_lp.cli import main

if __name__ == "__main__":
    sys.exit(main())
