"""FlashInfer as attention backends for Hardpoint."""
