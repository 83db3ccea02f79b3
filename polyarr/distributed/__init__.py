"""Data parallelism over MPI: one process per device, each running the same script, started with `mpiexec -n N`.

world = polyarr.distributed.init()                    # without mpiexec: one rank, and every collective is the identity
model = world.broadcast(model)
loss, grads = world.mean(step(model, batch(seed, i, world.rank)))
"""

from polyarr.distributed.sharding import Sharded
from polyarr.distributed.start import init
from polyarr.distributed.world import World

__all__ = ["Sharded", "World", "init"]
