"""Paged attention kernels in Triton, dense and latent, as attention backends for Hardpoint."""
