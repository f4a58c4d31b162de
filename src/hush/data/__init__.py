"""Data and its division among clients: datasets by name, partitions, and the clients' budgets.

Import `hush.data.budgets` and `hush.data.transforms` as modules.
"""

from hush.data.datasets import Dataset, check_finite, from_arrays, load
from hush.data.partition import Share, counts, holdout, split

__all__ = ["Dataset", "Share", "check_finite", "counts", "from_arrays", "holdout", "load", "split"]
