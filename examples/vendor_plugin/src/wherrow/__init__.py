"""An invented vendor's device under torch and Hardpoint. Importing this imports nothing else."""
