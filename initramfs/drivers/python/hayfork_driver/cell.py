"""Compiles and runs the code of one execution in the user's `__main__`.

The code is compiled as a notebook does: top-level `await` is allowed, and if the last statement is an expression its
value is reported (unless a semicolon follows). Features imported from `__future__` hold for the rest of the session,
as in the interactive interpreter. Nothing is inherited from the driver's own files.
"""

from __future__ import annotations

import builtins
import sys
from _ast import (
    AST,
    AsyncFunctionDef,
    Call,
    Expr,
    Expression,
    FunctionDef,
    Lambda,
    PyCF_ALLOW_TOP_LEVEL_AWAIT,
    PyCF_ONLY_AST,
)

from .display import show_value
from .guard import take_interrupt
from .plain import displayhook
from .sources import remember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

FUTURES = 0x1FE0000  # the compiler flags of all features of __future__
CO_COROUTINE = 0x80
LOOP_NAMES = ("create_task", "ensure_future", "get_running_loop")
RUN_NAMES = ("run", "run_until_complete", "run_forever", "Runner")


def wants_loop(tree: Any) -> bool:
    """Whether code without `await` counts on a running event loop, which notebooks have and scripts do not.

    It does if it calls one of `LOOP_NAMES` outside functions, and starts no event loop itself.
    """
    called = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (FunctionDef, AsyncFunctionDef, Lambda)):
            continue
        if isinstance(node, Call):
            called.add(getattr(node.func, "attr", None) or getattr(node.func, "id", None))
        for field in node._fields:
            value = getattr(node, field, None)
            nodes.extend(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, AST))
    return any(name in called for name in LOOP_NAMES) and not any(name in called for name in RUN_NAMES)


class Cell:
    """One execution's code. `codes` are the code objects that make it up, once compiled."""

    #: Compiler flags that earlier executions have switched on.
    futures = 0
    #: The file `tasks`, once an execution has used a top-level `await`.
    tasks: Any = None

    def __init__(self, source: str, filename: str) -> None:
        self.source = source
        self.filename = filename
        self.codes: list[CodeType] = []
        self.silent = True
        self.in_loop = False

    def run(self, main: ModuleType) -> None:
        """Compiles and runs; what the code raises comes out."""
        take_interrupt()
        remember(self.filename, self.source)
        self.compile()
        namespace = main.__dict__
        if self.in_loop:
            value = self.tasks_ready().run(self.codes, namespace)
        else:
            value = None
            for code in self.codes:
                namespace.setdefault("__builtins__", builtins)
                value = eval(code, namespace)
        if not self.silent:
            hook = getattr(sys, "displayhook", None)
            if callable(hook) and hook is not displayhook:
                hook(value)
            else:
                show_value(value)

    def tasks_ready(self) -> Any:
        """What runs code that awaits."""
        if Cell.tasks is None:
            from . import tasks

            Cell.tasks = tasks
        return Cell.tasks

    def compile(self) -> None:
        """Fills `codes`: all statements, or all but the last and its value."""
        flags = PyCF_ALLOW_TOP_LEVEL_AWAIT | Cell.futures
        tree: Any = compile(self.source, self.filename, "exec", flags | PyCF_ONLY_AST, True)
        self.in_loop = any(name in self.source for name in LOOP_NAMES) and wants_loop(tree)
        last = None
        if tree.body and isinstance(tree.body[-1], Expr):
            last = Expression(tree.body.pop().value)
            self.silent = self.ends_with_semicolon(last.body)
        codes = []
        if tree.body or last is None:
            codes.append(compile(tree, self.filename, "exec", flags, True))
            flags |= codes[0].co_flags & FUTURES
        if last is not None:
            codes.append(compile(last, self.filename, "eval", flags, True))
        Cell.futures |= flags & FUTURES
        self.codes = codes
        self.in_loop = self.in_loop or any(code.co_flags & CO_COROUTINE for code in codes)

    def ends_with_semicolon(self, node: Any) -> bool:
        """Whether a semicolon follows the last expression. Positions are in bytes of UTF-8."""
        line = self.source.encode("utf-8", "replace").splitlines()[node.end_lineno - 1]
        rest: bytes = line[node.end_col_offset :]
        return rest.lstrip(b" \t)").startswith(b";")
