"""AMD AITER as attention backends for Hardpoint."""
