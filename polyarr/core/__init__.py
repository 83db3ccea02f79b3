"""The mechanism: specs, ops, arrays, the tape and what a backend is. It mentions no op and no backend."""
