"""How far a model's loss is from the call that trains it: an error in it is read through all that is between."""

import sys
from pathlib import Path

import pytest

import evenhand as eh

ROOT = str(Path(eh.__file__).parent)
MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()


def calls():
    """The functions of this package that are running, outermost first, each with its file."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_filename.startswith(ROOT):
            found.append((code.co_filename, code.co_qualname))
    return list(dict.fromkeys(found[::-1]))


@pytest.mark.parametrize("how", [{}, {"devices": 2, "lanes": 2}, {"devices": 2, "lanes": 1}], ids=str)
def test_a_loss_is_fourteen_functions_in_seven_files_below_simulate(how):
    stacks = []

    def losses(outputs, y):
        stacks.append(calls())
        return MODEL.losses(outputs, y)

    work = eh.local.sgd(MODEL._replace(losses=losses), 0.1, epochs=1, batch_size=4)
    eh.simulate(eh.algorithms.fedavg(work), DATA, rounds=1, cohort=4, **how)
    in_rounds = [stack for stack in stacks if any(path.endswith("engine.py") for path, _ in stack)]
    assert in_rounds or not how, "the rounds trace the loss on several devices"
    assert stacks and all(stack[0][1] == "simulate" for stack in in_rounds)
    for stack in stacks:
        assert len(stack) <= 14, stack
        assert len({path for path, _ in stack}) <= 7, stack
