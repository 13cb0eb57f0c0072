"""Timed runs. Every published number stands beside the command that made it."""
