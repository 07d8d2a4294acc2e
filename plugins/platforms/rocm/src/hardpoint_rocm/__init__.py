"""The ROCm platform for Hardpoint. The entry point names `hardpoint_rocm.plugin:plugin`."""
