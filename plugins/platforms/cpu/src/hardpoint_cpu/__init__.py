"""The CPU platform for Hardpoint. The entry point names `hardpoint_cpu.plugin:plugin`."""
