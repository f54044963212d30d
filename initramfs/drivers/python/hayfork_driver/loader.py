"""Loads the driver's files so that user code can neither break nor see them.

Every file becomes a module object of its own that is kept here only, and its globals carry a private copy of the
builtins. In that copy `__import__` is `private_import` below, so that in the driver's files

- `from .streams import X` means the file of that name beside this one;
- `import traceback` means the standard library's module even where the user has a file `traceback.py`, has put
  something else under that name into `sys.modules`, or has changed `sys.path`.

Compiled code is taken from `__pycache__` if the image build has put it there (hash-based .pyc files only, which say for
themselves whether they fit the source), since compiling is the larger part of the start.
"""

import marshal
import sys
from _frozen_importlib_external import MAGIC_NUMBER
from _imp import source_hash
from posix import O_CLOEXEC, O_RDONLY, close, fstat, read
from posix import open as open_

HERE = globals()["HERE"]  # set by driver.py
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, ModuleType


ModuleKind = type(sys)
PRIVATE = __builtins__  # the private copy that driver.py made
STANDARD_PATH = sys.path[1:]
CACHE_TAG = sys.implementation.cache_tag
MODULES = sys.modules
REAL_IMPORT = PRIVATE["__import__"]  # type: ignore[index]
own_modules: "dict[str, ModuleType]" = {}
standard_modules: "dict[str, ModuleType]" = {}


def private_import(
    name: str,
    globals: "Mapping[str, object] | None" = None,
    locals: "Mapping[str, object] | None" = None,
    fromlist: "Sequence[str] | None" = (),
    level: int = 0,
) -> "ModuleType":
    """What an `import` statement in one of the driver's files does."""
    if level and fromlist and not name:  # from . import NAME
        return OwnFiles(fromlist[0])  # type: ignore[return-value]
    found = (own_modules if level else standard_modules).get(name)
    if found is None:
        found = shield(load if level else standard, name)
    return found


def shield(call: "Callable[[str], ModuleType]", name: str) -> "ModuleType":
    """Calls `call(name)`. Later replaced by `guard.shielded`: no signal must leave a module half loaded."""
    return call(name)


class OwnFiles:
    """What `from . import NAME` takes its name from."""

    def __init__(self, name: str) -> None:
        setattr(self, name, own_modules.get(name) or shield(load, name))


def read_file(path: str) -> bytes:
    """The whole of a file; `OSError` if there is none. `posix` only, since user code may have changed `open`."""
    fd = open_(path, O_RDONLY | O_CLOEXEC)
    try:
        size = fstat(fd).st_size + 1
        pieces = []
        while piece := read(fd, size):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        close(fd)


def compiled(name: str) -> "CodeType":
    """The code of one of our files."""
    path = f"{HERE}{name}.py"
    source = read_file(path)
    try:
        cached = read_file(f"{HERE}__pycache__/{name}.{CACHE_TAG}.pyc")
    except OSError:
        cached = b""
    key = int.from_bytes(MAGIC_NUMBER, "little")
    if cached[:4] == MAGIC_NUMBER and cached[4] & 1 and cached[8:16] == source_hash(key, source):
        code: CodeType = marshal.loads(cached[16:])
        return code
    return compile(source, path, "exec", 0, True)


def load(name: str) -> "ModuleType":
    """Runs one of our files."""
    module = ModuleKind(f"hayfork_driver.{name}")
    module.__dict__["__builtins__"] = PRIVATE
    own_modules[name] = module
    try:
        exec(compiled(name), module.__dict__)
    except BaseException:
        del own_modules[name]  # nobody must find it half loaded
        raise
    return module


def standard(name: str) -> "ModuleType":
    """A top-level module of the standard library, whatever the user has of that name."""
    if name == "__future__":  # wanted by the compiler only; the module itself need not be read
        future = ModuleKind(name)
        future.__dict__["annotations"] = None
        return future
    there = name in MODULES
    theirs = MODULES.get(name)
    try:
        origin = theirs.__spec__.origin  # type: ignore[union-attr]
    except Exception:  # something of the user's
        origin = None
    genuine = origin in ("built-in", "frozen") or (
        isinstance(origin, str) and any(origin.startswith(folder + "/") for folder in STANDARD_PATH)
    )
    if theirs is not None and genuine:
        standard_modules[name] = theirs
        return theirs
    path = getattr(sys, "path", None)
    sys.path = list(STANDARD_PATH)
    if there:
        del MODULES[name]
    try:
        module: ModuleType = REAL_IMPORT(name)
    finally:
        sys.path = path  # type: ignore[assignment]
        if there:
            MODULES[name] = theirs  # type: ignore[assignment]
    standard_modules[name] = module
    return module


def start(folder: str) -> None:
    """Makes the user's `__main__` and serves executions until the agent is gone."""
    PRIVATE["__import__"] = private_import
    loop = load("loop")
    global shield
    shield = own_modules["guard"].shielded
    loop.serve(folder)
