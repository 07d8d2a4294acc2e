"""Loads nothing. The script, JSON in the file that FAKE_SCRIPT names, says what happens.

`load`: how the import fails (`missing`: as where there is no library; `symbol`: as where it lacks a function; or the
name of a built-in error); `fail`: by function a status or the name of a built-in error; `devices`: what each answers.
"""

import builtins
import json
import os

SCRIPT = json.loads(open(os.environ["FAKE_SCRIPT"]).read())  # noqa: SIM115


class Library:
    _name = "/opt/rocm/lib/libamd_smi.so"

    def __init__(self) -> None:
        self.amdsmi_init = True


_libraries: dict[str, Library] = {}

if SCRIPT.get("load") == "missing":
    print("libamd_smi.so: cannot open shared object file: No such file or directory")  # noqa: T201  # so does the real one
elif SCRIPT.get("load") not in (None, "symbol"):
    raise getattr(builtins, SCRIPT["load"])("what the fake says")
else:
    _libraries["libamd_smi.so"] = Library()

amdsmi_init = _libraries["libamd_smi.so"].amdsmi_init
if SCRIPT.get("load") == "symbol":
    amdsmi_get_gpu_new_things = _libraries["libamd_smi.so"].amdsmi_get_gpu_new_things  # type: ignore[attr-defined]
