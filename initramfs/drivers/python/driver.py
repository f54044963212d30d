"""Starts the Python driver: `python3 driver.py FOLDER`, where FOLDER holds the FIFOs of this context.

This file is the interpreter's `__main__` for a moment only, until the driver has put the user's own `__main__` in its
place. All it does is to run `hayfork_driver/loader.py`, which loads the other files of that folder. They are not
imported in the usual way, because user code can change everything that usual modules depend on: each of them gets a
private copy of the builtins, and none of them shows up in `sys.modules` or can be found through `sys.path`.
"""

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = __file__.rpartition("/")[0] + "/hayfork_driver/"
PRIVATE = dict(vars(builtins))

with open(HERE + "loader.py", "rb") as file:
    CODE = compile(file.read(), HERE + "loader.py", "exec", 0, True)
LOADER: "dict[str, Any]" = {"__name__": "hayfork_driver.loader", "__builtins__": PRIVATE, "HERE": HERE}
exec(CODE, LOADER)
LOADER["start"](sys.argv[1])
