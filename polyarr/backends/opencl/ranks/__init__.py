"""All-reduce over the devices of several processes, by NCCL or through shared memory of the host."""
