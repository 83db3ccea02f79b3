"""The core: specs, ops, arrays, the tape and the backend contract. Defines no particular op and no backend."""
