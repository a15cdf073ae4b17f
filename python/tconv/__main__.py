"""`python -m tconv`."""

import sys

from tconv.cli import main

if __name__ == "__main__":
    sys.exit(main())
