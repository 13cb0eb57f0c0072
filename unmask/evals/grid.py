"""The models of a trained grid, for experiments."""

from __future__ import annotations

from unmask.training.grid import Trained, read_summary

__all__ = ["Trained", "read_summary"]
