"""A module of another package that ends Python while it is imported, as a script without a guard does."""

import sys

sys.exit(3)
