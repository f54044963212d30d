"""Tells the driver's frames from the user's, and holds the table of modules, which user code may rebind in `sys`."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

modules = sys.modules
OWN_FOLDER = (lambda: None).__code__.co_filename.rpartition("/")[0] + "/"
OWN_ENTRY = OWN_FOLDER.rpartition("hayfork_driver/")[0] + "driver.py"


def is_own(filename: str) -> bool:
    """Whether code of that file belongs to the driver."""
    return filename.startswith(OWN_FOLDER) or filename == OWN_ENTRY


def is_own_code(code: "CodeType") -> bool:
    """Whether that code belongs to the driver."""
    return is_own(code.co_filename)
