"""BEHAVIOURS 29 and 31: what user code can see and do in its guest."""

from __future__ import annotations

import os

import hayfork
import pytest


def errno_of(sandbox, statement: str) -> str:
    code = f"import os, socket, ctypes\ntry:\n    {statement}\n    print('allowed')\nexcept OSError as e:\n    import errno; print(errno.errorcode[e.errno])"
    return sandbox.run_code(code).stdout.strip()


LIBC = "libc = ctypes.CDLL(None, use_errno=True)"
RAISE = "\n    if r == -1: raise OSError(ctypes.get_errno(), '')"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("os.kill(1, 9)", {"EPERM"}),
        ("open('/proc/1/environ').read()", {"EACCES", "EPERM", "ENOENT"}),
        ("open('/proc/1/mem', 'rb').read(1)", {"EACCES", "EPERM", "ENOENT"}),
        ("os.mknod('dev', 0o600 | 0o020000, os.makedev(1, 1))", {"EPERM"}),
        ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", {"EPERM", "EACCES"}),
        ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", {"EPERM", "EACCES", "EAFNOSUPPORT"}),
        ("socket.socket().bind(('127.0.0.1', 80))", {"EACCES", "EPERM"}),
        ("open('/etc/x', 'w')", {"EROFS", "EACCES"}),
        ("open('/usr/bin/x', 'w')", {"EROFS", "EACCES"}),
        ("open('/usr/lib/hayfork/python/driver.py', 'a')", {"EROFS", "EACCES"}),
        ("os.setuid(0)", {"EPERM"}),
        ("os.chroot('/')", {"EPERM"}),
        (
            "os.unshare(os.CLONE_NEWUSER)" if hasattr(os, "CLONE_NEWUSER") else "os.unshare(0x10000000)",
            {"EPERM", "EINVAL", "ENOSYS"},
        ),
        (f"{LIBC}; r = libc.mount(b't', b'/tmp', b'tmpfs', 0, 0){RAISE}", {"EPERM"}),
        (f"{LIBC}; r = libc.ptrace(16, 1, 0, 0){RAISE}", {"EPERM", "ESRCH"}),
        (f"{LIBC}; r = libc.syscall(321, 0, 0, 0){RAISE}", {"EPERM", "ENOSYS"}),  # bpf
        (f"{LIBC}; r = libc.syscall(425, 1, 0){RAISE}", {"EPERM", "ENOSYS"}),  # io_uring_setup
        (f"{LIBC}; r = libc.syscall(323, 0){RAISE}", {"EPERM", "ENOSYS"}),  # userfaultfd
        (f"{LIBC}; r = libc.syscall(250, 0, 0, 0, 0, 0){RAISE}", {"EPERM", "ENOSYS"}),  # keyctl
        (f"{LIBC}; r = libc.syscall(298, 0, 0, -1, -1, 0){RAISE}", {"EPERM", "ENOSYS", "EACCES"}),  # perf_event_open
        (f"{LIBC}; r = libc.syscall(175, 0, 0, b''){RAISE}", {"EPERM", "ENOSYS"}),  # init_module
        (f"{LIBC}; r = libc.syscall(246, 0, 0, 0, 0){RAISE}", {"EPERM", "ENOSYS"}),  # kexec_load
        (f"{LIBC}; r = libc.reboot(0x1234567){RAISE}", {"EPERM"}),
    ],
)
def test_what_user_code_may_not_do(python, statement, expected):
    assert errno_of(python, statement) in expected


def test_no_set_uid_file_exists(python, shell, javascript):
    for sandbox in (python, shell, javascript):
        found = sandbox.commands.run("find / -xdev -perm /6000 -type f 2>/dev/null")
        assert found.stdout == ""


def test_no_capability_and_no_new_privileges(python):
    status = python.run_code("print(open('/proc/self/status').read())").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Seccomp"].strip() == "2"
    assert fields["Groups"].strip() in ("", "1000")


def test_no_interface_but_loopback_which_works(python):
    code = """
import socket, threading
print([name for _, name in socket.if_nameindex()])
server = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b'hello'), daemon=True).start()
print(socket.create_connection(server.getsockname(), 5).recv(5))
try:
    socket.create_connection(('192.0.2.1', 80), 3)
except OSError as error:
    print(type(error).__name__)
"""
    lines = python.run_code(code).stdout.splitlines()
    assert lines[0] == "['lo']"
    assert lines[1] == "b'hello'"
    assert lines[2] in ("OSError", "ConnectionRefusedError")


def test_names_fail_at_once(python):
    execution = python.run_code(
        "import socket, time\nt = time.monotonic()\ntry:\n    socket.getaddrinfo('example.com', 443)\nexcept OSError as e:\n    print(type(e).__name__, time.monotonic() - t < 5)"
    )
    assert execution.stdout == "gaierror True\n"


def test_a_program_that_looks_finds_nothing_of_the_host(tmp_path, monkeypatch):
    secret = "host-secret-7d1f"
    (tmp_path / secret).write_text(secret)
    monkeypatch.setenv("HAYFORK_TEST_SECRET", secret)
    looker = f"""
import os, socket
found = []
for root, folders, files in os.walk('/'):
    if root.startswith(('/proc', '/sys')):
        folders[:] = []
        continue
    for name in files:
        path = os.path.join(root, name)
        if {secret!r} in path:
            found.append(path)
for pid in filter(str.isdigit, os.listdir('/proc')):
    for file in ('environ', 'cmdline'):
        try:
            if {secret.encode()!r} in open(f'/proc/{{pid}}/{{file}}', 'rb').read():
                found.append((pid, file))
        except OSError:
            pass
print(found, {secret.split("-", maxsplit=1)[0]!r} in os.environ, os.path.exists({str(tmp_path)!r}))
print(open('/proc/mounts').read())
print(open('/proc/cmdline').read())
"""
    output = hayfork.run(looker).stdout
    assert output.startswith("[] False False\n")
    assert secret not in output.replace(repr(secret), "")
    assert "9p" not in output
    assert "virtiofs" not in output


def test_root_is_an_exception_that_the_host_grants(python):
    with pytest.raises(hayfork.RootNotGrantedError):
        python.commands.run("id", user="root")
    with hayfork.Sandbox.create(language="shell", allow_root=True) as sandbox:
        assert sandbox.commands.run("id -u", user="root").stdout == "0\n"
        assert sandbox.commands.run("id -u").stdout == "1000\n"
