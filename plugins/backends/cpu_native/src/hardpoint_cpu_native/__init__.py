"""Compiled paged attention for CPUs, as an attention backend for Hardpoint."""
