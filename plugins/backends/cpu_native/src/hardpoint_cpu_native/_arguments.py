"""What both backends check of a layer's arguments, beside what every backend checks."""

from __future__ import annotations

import math

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint.errors import ConfigError


def check_scale(scale: float) -> None:
    """Finite. Errors: `ConfigError`."""
    if not math.isfinite(scale):
        raise ConfigError(f"scale={scale}: must be finite", field="scale")


def check_device(device: torch.device | str) -> None:
    """The host's memory. Errors: `ConfigError`."""
    if torch.device(device).type != "cpu":
        raise ConfigError(f"device={device}: these kernels run on the CPU", field="device")
