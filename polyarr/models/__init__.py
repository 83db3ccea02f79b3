"""Models, for whatever backend is current: none of them names one."""
