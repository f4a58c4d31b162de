"""Data and its division among clients: datasets by name, your own data, schemas, partitions, and budgets.

Import `hush.data.budgets` and `hush.data.transforms` as modules.
"""

from hush.data.client_data import ClientData, clients
from hush.data.datasets import Dataset, check_finite, from_arrays, load
from hush.data.partition import Share, counts, holdout, split
from hush.data.preprocessing import infer_schema
from hush.data.schema import Column, Schema

__all__ = [
    "ClientData",
    "Column",
    "Dataset",
    "Schema",
    "Share",
    "check_finite",
    "clients",
    "counts",
    "from_arrays",
    "holdout",
    "infer_schema",
    "load",
    "split",
]
