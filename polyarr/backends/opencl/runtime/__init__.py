"""One device and its driver: choice, memory, layout, programs, queue, faults, and what drivers get wrong."""
