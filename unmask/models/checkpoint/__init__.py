"""Checkpoint folders: find, read, check, load and save them."""
