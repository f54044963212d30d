"""The driver's loop: takes executions from the agent one at a time and says when each is done.

    idle ──"exec ID TOKEN HAS 0 NAME"──▶ attach ──▶ user code ──▶ report, flush ──"TOKEN done N"──▶ detach ──▶ idle
         ──"exec ID TOKEN HAS 1 NAME"──▶ attach ──▶ user code ──▶ report ──▶ the interpreter's own end
         ──"renew SEED"──▶ fresh random numbers ──"renewed"──▶ idle

All of it runs with signals blocked, except user code, what may call user code (`__repr__`, `sys.excepthook`), and the
wait for work; see `guard`. Files and FIFOs are opened by path when they are wanted and closed at once, and whatever
the loop calls was fetched when the driver started, so that user code can do what it likes to descriptors and modules.
"""

from __future__ import annotations

import builtins
import sys
from posix import (
    O_NONBLOCK,
    O_RDONLY,
    O_WRONLY,
    _exit,
    close,
    fstat,
    getpid,
    read,
    readv,
    sched_yield,
    stat,
    write,
)

from .cell import Cell
from .display import display
from .environment import apply, parse, restore
from .guard import border, call_user, idle, part, run_user
from .guard import install as install_guard
from .imports import install as install_imports
from .plain import modules
from .processes import flush_c_streams, leave, wind_up
from .processes import install as install_processes
from .records import current
from .streams import attach, close_quietly, detach, flush, open_path, outputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType

LONGEST_LINE = 4096
PIECE = 16384
#: What an execution has, in its line.
STDIN, VARIABLES = 1, 2
ModuleKind = type(sys)


def serve(folder: str) -> None:
    """Serves until the agent is gone. `folder` is the context's folder."""
    install_guard()
    install_imports()
    install_processes()
    main = ModuleKind("__main__")
    main.__dict__["__builtins__"] = builtins
    builtins.display = display  # type: ignore[attr-defined]
    sys.argv[:] = [""]
    sys.path[0] = ""
    settle(main)
    tell(folder, "ready\n")
    while True:
        number, token, has, last, filename = wait(folder)
        if last:
            raise part(execute_last(main, f"{folder}/{number}", token, has, filename))
        code, before = execute(main, f"{folder}/{number}", token, has, filename)
        border.incoming = bytearray(LONGEST_LINE)
        border.noted = False
        tell(folder, f"{token} done {code}\n")
        sched_yield()  # to the agent, which has something to tell the host; for what follows here nobody waits
        detach(folder)
        restore(before)


def settle(main: ModuleType) -> None:
    """What every execution may count on, whatever earlier ones did: its `__main__`, and no stale lists of files."""
    modules["__main__"] = main
    main.__dict__.setdefault("__name__", "__main__")
    try:
        for name, finder in list(sys.path_importer_cache.items()):
            if finder is None:
                sys.path_importer_cache.pop(name, None)
            elif hasattr(finder, "_path_mtime"):
                finder._path_mtime = -1  # as importlib.invalidate_caches does, which imports much
    except Exception:  # the user has put something else in its place
        pass


def tell(folder: str, line: str) -> None:
    """Writes a line to the agent."""
    fd = open_path(folder + "/events", O_WRONLY)
    write(fd, line.encode())
    close(fd)


def read_file(path: str) -> bytes:
    """The whole of a file."""
    fd = open_path(path, O_RDONLY)
    content = read(fd, PIECE)
    if len(content) == PIECE:
        content += read(fd, fstat(fd).st_size)
    close(fd)
    return content


def wait(folder: str) -> tuple[str, str, int, bool, str]:
    """Until the agent has an execution for us.

    Gives its number, its token, what it has (`STDIN`, `VARIABLES`), whether it is the last one, and its name.

    A handler of the user's may raise at any moment here, even between the end of a read and the moment its result is
    known. So the line is read into an empty buffer, and the buffer says whether it has come.
    """
    border.incoming = line = bytearray(LONGEST_LINE)
    renewed = False
    while True:
        while not line[0]:
            error = idle(lambda: listen(folder, line))
            if error is not None and not line[0]:
                if isinstance(error, FileNotFoundError):
                    leave_if_gone(folder)
                call_user(complain, error)
        end = line.index(b"\n")
        if line[:6] != b"renew ":
            break
        renewed = True
        seed = line[6:end].decode()
        # The next line may have come with it. A bytearray that shrank would not take the longest one.
        line[:] = line[end + 1 :] + bytearray(end + 1)
        call_user(renew, seed)
        tell(folder, "renewed\n")
        if not line[0]:
            border.noted = False
    _, number, token, has, last, filename = line[:end].decode().split(" ", 5)
    if (renewed or border.missed) and exists(f"{folder}/{number}/interrupted"):
        border.noted = True  # the signal came before the line was read
    border.missed = False
    return number, token, int(has), last == "1", filename


def renew(seed: str) -> None:
    """Loads what is needed only then."""
    from .renew import renew as fresh

    fresh(bytes.fromhex(seed))


def exists(path: str) -> bool:
    """Whether there is such a file."""
    try:
        stat(path)
        return True
    except OSError:
        return False


def listen(folder: str, line: bytearray) -> None:
    """Waits for a line. Tasks that the user has left in the event loop go on meanwhile."""
    tasks = Cell.tasks
    if tasks is None or not tasks.has_work():
        fd = open_path(folder + "/control", O_RDONLY)
        try:
            if not readv(fd, [line]):
                _exit(0)  # the agent has closed its end
        finally:
            close_quietly(fd)
        return

    def look() -> bool:
        try:
            readv(fd, [line])
        except BlockingIOError:
            pass
        return line[0] != 0

    fd = open_path(folder + "/control", O_RDONLY | O_NONBLOCK)
    border.look = look
    try:
        tasks.run_idle(fd, look)
    finally:
        border.look = None
        close_quietly(fd)


def leave_if_gone(folder: str) -> None:
    """Ends the driver if the agent has taken its folder away."""
    if not exists(folder + "/control"):
        _exit(0)


def complain(error: BaseException) -> None:
    """Shows what a signal handler or a task raised while nothing ran."""
    from .errors import print_error

    print_error(error)


def execute(main: ModuleType, place: str, token: str, has: int, filename: str) -> tuple[int, dict[bytes, bytes | None]]:
    """One execution. Returns its exit code, and the variables that its environment has replaced."""
    process = current.process
    cell, before = prepare(main, place, token, has, filename)
    _, error = run_user(cell.run, main)
    if getpid() != process:
        current.folder = ""
        call_user(leave, exit_code(error, cell.codes))
        _exit(1)
    if error is not None or "matplotlib.pyplot" in modules:
        close_quietly(0)  # makes room for what follows, should user code have used up all descriptors
    code = exit_code(error, cell.codes)
    del error
    show_figures()
    current.folder = current.token = ""
    if not untouched():
        call_user(flush_streams)
    flush()
    return code, before


def execute_last(main: ModuleType, place: str, token: str, has: int, filename: str) -> int:
    """An execution with which the interpreter ends. Returns the exit code, with everything still in its place.

    Forked children come here too, when they are at the end of the user's code, and end in the same way.
    """
    cell, _ = prepare(main, place, token, has, filename)
    _, error = run_user(cell.run, main)
    code = exit_code(error, cell.codes)
    del error
    show_figures()
    _, failure = run_user(wind_up, Cell.tasks)
    return code if failure is None else exit_code(failure, [])


def prepare(
    main: ModuleType, place: str, token: str, has: int, filename: str
) -> tuple[Cell, dict[bytes, bytes | None]]:
    """Makes everything ready for an execution; gives its code, and the variables that its environment replaces."""
    source = read_file(place + "/code").decode("utf-8", "replace").removeprefix("\ufeff")
    before = apply(parse(read_file(place + "/env"))) if has & VARIABLES else {}
    attach(place, has & STDIN != 0)
    settle(main)
    current.folder, current.token = place, token
    return Cell(source, filename), before


def exit_code(error: BaseException | None, codes: list[CodeType]) -> int:
    """Shows an uncaught exception, and gives the exit code as a process would."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        code, failure = call_user(exit_status, error)
        return code if failure is None else 1
    _, failure = call_user(show_error, error, codes)
    if failure is not None:  # the user's own __str__ or excepthook did not come to an end
        call_user(show_barely, error)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def exit_status(error: SystemExit) -> int:
    """What `sys.exit` means: None is 0, a number its low eight bits, anything else is printed and means 1."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    stderr = getattr(sys, "stderr", None)
    if stderr is not None:
        stderr.write(f"{code}\n")
    return 1


def show_error(error: BaseException, codes: list[CodeType]) -> None:
    """Loads what is needed only then."""
    from .errors import report

    report(error, codes)


def show_barely(error: BaseException) -> None:
    """Without asking the exception for its text."""
    from .errors import bare, write

    write(bare(error, "<exception str() failed>"))


def show_figures() -> None:
    """Shows what Matplotlib has left open, if it is there."""
    if "matplotlib.pyplot" in modules:
        _, failure = call_user(show_rest)
        if failure is not None:
            call_user(complain, failure)


def show_rest() -> None:
    """Loads what is needed only then."""
    from .figures import show_rest as show

    show()


def untouched() -> bool:
    """Whether only our own output objects can hold output, so that no code of the user's is called to flush it."""
    ours = all(getattr(sys, name, None) is output for name, output in outputs.items())
    return ours and "_ctypes" not in modules


def flush_streams() -> None:
    """Flushes what user code may have put in the place of the usual streams, and the C library's own."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if stream is not None:
            try:
                stream.flush()
            except Exception:
                pass
    flush_c_streams()
