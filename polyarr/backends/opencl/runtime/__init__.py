"""One device and its driver: memory, layout, programs, queue, faults, and quirks of drivers."""
