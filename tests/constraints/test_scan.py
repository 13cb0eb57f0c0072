"""Reachable sets by a tree of products equal those of the loop over columns."""

from __future__ import annotations

import pytest
import torch

from unmask.constraints.automaton import END, TokenAutomaton
from unmask.constraints.reach import Columns, Machine
from unmask.constraints.scan import Tree

MASK = 0
STATES, CLASSES, ROWS = 7, 5, 3


def automaton(generator):
    """A random automaton; its token 0 is the mask, and the others are classes of their own."""
    moves = torch.randint(STATES, (STATES, CLASSES), generator=generator)
    moves[torch.rand(moves.shape, generator=generator) < 0.5] = STATES - 1
    moves[-1] = moves[:, END] = moves[:, 0] = STATES - 1
    accept = torch.rand(STATES, generator=generator) < 0.5
    accept[-1] = False
    return TokenAutomaton(moves, torch.arange(CLASSES), accept)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("width", [1, 2, 5, 8, 13])
def test_a_tree_reaches_the_states_that_the_loop_reaches(width, gaps):
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        machine = Machine(automaton(generator), gaps=gaps)
        tokens = torch.randint(1, CLASSES, (ROWS, width), generator=generator)
        tokens[torch.rand(tokens.shape, generator=generator) < 0.6] = MASK
        closed = torch.rand(ROWS, width, generator=generator) < 0.3
        last = torch.rand(width, generator=generator) < 0.4 if gaps else None
        columns = Columns.read(machine, tokens, MASK, closed, last)
        tree = Tree(columns.matrices(machine))
        start = torch.eye(machine.states)[:1].expand(ROWS, -1)
        accept = machine.accept.float().expand(ROWS, -1)
        before, behind = columns.forward(machine, start), columns.backward(machine, accept)
        dead = machine.states - 1
        assert torch.equal(tree.forward(start)[..., :dead], before[..., :dead])
        assert torch.equal(tree.backward(accept), behind)
        assert torch.equal(tree.end(start), tree.forward(start)[:, -1])
        fits = columns.classes(machine, before, behind)
        assert torch.equal(columns.classes(machine, tree.forward(start), tree.backward(accept)), fits)
