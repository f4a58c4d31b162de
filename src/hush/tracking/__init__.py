"""Trackers: log runs with MLflow, TensorBoard or Weights & Biases, by `track="mlflow"` and so on.

Nothing leaves the machine unless the tracker's own environment variables say so.
"""

from __future__ import annotations

from hush.tracking.names import TRACKERS, Tracking, tracking_of
from hush.tracking.tracker import Tracker

__all__ = ["TRACKERS", "Tracker", "Tracking", "tracking_of"]
