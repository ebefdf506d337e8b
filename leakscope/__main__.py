"""`python -m leakscope`."""

import sys

from leakscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
