"""FlashAttention 2, 3 and 4 as attention backends for Hardpoint."""
