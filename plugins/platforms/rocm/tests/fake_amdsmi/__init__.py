"""A stand-in for AMD's package of the same name: its names, its types of errors, its ways to fail."""

from . import amdsmi_wrapper as amdsmi_wrapper  # noqa: TID252  # as the real one does
from .amdsmi_exception import AmdSmiException as AmdSmiException  # noqa: TID252
from .amdsmi_exception import AmdSmiLibraryException as AmdSmiLibraryException  # noqa: TID252
from .amdsmi_interface import *  # noqa: F403, TID252
