"""Split problems into training and test by a hash of the problem."""

from __future__ import annotations

import hashlib
import random

from unmask.training.tasks.item import Item, Task

TEST_SHARE = 20  # one problem in this many is a test problem
SALT = b"unmask tasks 1"


def is_test(key: str) -> bool:
    """Whether a problem belongs to the test split."""
    digest = hashlib.blake2b(key.encode(), digest_size=4, key=SALT).digest()
    return int.from_bytes(digest, "big") % TEST_SHARE == 0


def draw_train(task: Task, rng: random.Random) -> Item:
    """Draw an item whose problem is in the training split."""
    item = task.draw(rng)
    while not task.training_only and is_test(item.key):
        item = task.draw(rng)
    return item


def draw_test(task: Task, rng: random.Random) -> Item:
    """Draw an item whose problem is in the test split."""
    item = task.draw(rng)
    while not is_test(item.key):
        item = task.draw(rng)
    return item
