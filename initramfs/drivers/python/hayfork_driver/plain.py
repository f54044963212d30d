"""What the interpreter had before user code could change it, and how to tell the driver's code from the user's."""

import sys

modules = sys.modules
excepthook = sys.excepthook
displayhook = sys.displayhook
VERSION = sys.version_info[:2]
OWN_FOLDER = (lambda: None).__code__.co_filename.rpartition("/")[0] + "/"
OWN_ENTRY = OWN_FOLDER.rpartition("hayfork_driver/")[0] + "driver.py"


def is_own(filename: str) -> bool:
    """Whether code of that file belongs to the driver."""
    return filename.startswith(OWN_FOLDER) or filename == OWN_ENTRY
