"""Lets multiprocessing send functions that were defined in an execution to its workers.

Workers are forks of the session, so what they know by name already is found by name, as usual. Lambdas, local functions
and functions defined since the fork are sent by value: code, defaults and closure; their globals are the worker's
`__main__`. Only multiprocessing's own pickler does this, and only with functions of `__main__`.
"""

from __future__ import annotations

import marshal

from .plain import modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CellType, FunctionType, ModuleType
    from typing import Any
else:
    FunctionType = type(lambda: None)
    CellType = type((lambda x: lambda: x)(0).__closure__[0])  # noqa: PLC3002


def install(reduction: ModuleType) -> None:
    """Teaches the pickler. What rebuilds a function is put beside it, since pickles name it by its module."""
    pickler: Any = reduction.ForkingPickler
    if "reducer_override" in vars(pickler):
        return
    for helper in (rebuild_main_function, fill_main_function):
        helper.__module__ = reduction.__name__
        setattr(reduction, helper.__name__, helper)
    pickler.reducer_override = reduce_main_function


def named(qualname: str) -> Any:
    """What `__main__` has under that name."""
    found: Any = modules.get("__main__")
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def reduce_main_function(pickler: Any, thing: Any) -> Any:
    """The pickler's `reducer_override`: how to make `thing` again, or NotImplemented for the usual way."""
    if type(thing) is not FunctionType or thing.__module__ != "__main__":
        return NotImplemented
    cells = thing.__closure__ or ()
    known = named(thing.__qualname__) is thing
    if known and any((thing.__defaults__, thing.__kwdefaults__, cells, thing.__dict__)):
        return NotImplemented  # by name: what it carries may be anything
    make = (marshal.dumps(thing.__code__), thing.__name__, thing.__qualname__, len(cells), known)
    if known:
        return rebuild_main_function, make
    # The closure goes into the state, which is pickled after the function: it may refer to the function itself.
    contents = tuple(content(cell) for cell in cells)
    state = (thing.__defaults__, thing.__kwdefaults__, contents, thing.__dict__)
    return rebuild_main_function, make, state, None, None, fill_main_function


def content(cell: CellType) -> tuple[Any, ...]:
    """What a cell holds: nothing or one thing."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def rebuild_main_function(code: bytes, name: str, qualname: str, cells: int, known: bool) -> FunctionType:
    """In the worker: the function of that name if it is the same, else a new one."""
    made = marshal.loads(code)
    if known:
        found = named(qualname)
        if type(found) is FunctionType and found.__code__ == made:
            return found
    closure = tuple(CellType() for _ in range(cells))
    function = FunctionType(made, modules["__main__"].__dict__, name, None, closure)
    function.__qualname__ = qualname
    return function


def fill_main_function(function: FunctionType, state: tuple[Any, ...]) -> None:
    """In the worker: what the new function carries."""
    function.__defaults__, function.__kwdefaults__, contents, attributes = state
    for cell, held in zip(function.__closure__ or (), contents, strict=True):
        if held:
            cell.cell_contents = held[0]
    function.__dict__.update(attributes)
