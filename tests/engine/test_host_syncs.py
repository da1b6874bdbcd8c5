"""One host sync a cycle: each waits until a GPU's queue has run dry.

On a CPU a sync costs nothing, so it is counted: every function of a tensor passes through
`HostSyncs`, which counts those that need a value on the host. (`numpy` is none: it takes tensors
that are on the host already.)
"""

import itertools
from collections import Counter

import pytest
import torch
from torch.overrides import TorchFunctionMode

from eagle_lab.engine.clock import Laps
from eagle_lab.engine.loop import decode
from eagle_lab.engine.sampling import Sampling
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from tests.methods.test_contract import METHODS

SYNCS = {
    getattr(torch.Tensor, name)
    for name in (
        "tolist item cpu nonzero unique __bool__ __int__ __float__ __index__ __iter__ "
        "__contains__ masked_select"
    ).split()
} | {torch.nonzero, torch.masked_select, torch.unique, torch.equal, torch.allclose}
UPLOADS = {torch.tensor, torch.as_tensor}
INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}


class HostSyncs(TorchFunctionMode):
    """Counts functions that wait for the device: fetched values, and uploads of host values."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in SYNCS or _is_indexed_by(function, args, torch.Tensor):
            self.counts["syncs"] += 1
        elif function in UPLOADS or _is_indexed_by(function, args, list):
            self.counts["uploads"] += 1
        return function(*args, **(kwargs or {}))


def _is_indexed_by(function, args, kind):
    """Whether `function` indexes by a mask (a sync: how many?) or by a list (an upload)."""
    if function not in INDEXING:
        return False
    places = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(
        isinstance(place, kind) and getattr(place, "dtype", torch.bool) == torch.bool
        for place in places
    )


NAMES = ("vanilla", "prompt_lookup", "eagle_chain", "eagle_static", "eagle_dynamic")


class Watched:
    """A proposer, with the counts and the number of rows at the start of each cycle."""

    def __init__(self, proposer, counts):
        self._proposer, self._counts = proposer, counts
        self.cycles = []

    def __getattr__(self, name):
        return getattr(self._proposer, name)

    def propose(self, context):
        self.cycles.append((len(context.tokens), Counter(self._counts)))
        return self._proposer.propose(context)


@pytest.mark.parametrize(
    ("attention", "temperature"), [("sdpa", 0.0), ("split", 0.0), ("sdpa", 1.0)]
)
@pytest.mark.parametrize("name", NAMES)
def test_one_sync_a_cycle_and_no_upload(name, attention, temperature):
    """In cycles in which no row ends: dropping one takes a few more.

    Uniforms are made on the host and copied drafts found there, so these are uploaded.
    """
    target = Target(*tiny_random("llama"), fast_layers=False, attention=attention)
    prompts = [[60, 61, 62, 63] * 4, [7], [20, 21, 20, 21, 20]]
    with HostSyncs() as mode:
        proposer = Vanilla() if name == "vanilla" else METHODS[name](target)
        method = Watched(proposer, mode.counts)
        decode(target, method, prompts, sampling=Sampling(temperature), max_new_tokens=24)
    waits = [
        after - before
        for (num_rows, before), (num_left, after) in itertools.pairwise(method.cycles)
        if num_rows == num_left
    ]
    assert len(waits) > 3
    assert {each["syncs"] for each in waits} == {1}
    if temperature == 0 and name != "prompt_lookup":
        assert not any(each["uploads"] for each in waits)


def test_the_counter_sees_what_it_is_for():
    values = torch.arange(3)
    with HostSyncs() as mode:
        int(values[1])
        bool(values.any())
        values.tolist()
        values[values > 1]
        values[[0, 1]]
        torch.tensor([1])
        values[values]
    assert mode.counts == {"syncs": 4, "uploads": 2}


def test_laps_add_up():
    laps = Laps(torch.device("cpu"))
    for _ in range(3):
        laps.end()
    seconds = laps.seconds()
    assert len(seconds) == 3 and min(seconds) >= 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_laps_on_cuda_time_the_work_and_do_not_wait():
    device = torch.device("cuda")
    laps = Laps(device)
    torch.cuda._sleep(200_000_000)  # clock ticks: about a tenth of a second
    laps.end()
    assert not torch.cuda.current_stream().query()
    laps.end()
    work, nothing = laps.seconds()
    assert work > 0.02 and nothing < 0.01
