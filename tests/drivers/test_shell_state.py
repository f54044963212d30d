"""Shell driver: what lasts between executions, exit codes, errors (BEHAVIOURS 1, 7, 9, 10, 13, 18, 19, 26)."""

from __future__ import annotations

import signal

import pytest
from driver_harness import Driver

LANGUAGE = "shell"


def test_code_that_does_nothing(driver: Driver) -> None:
    for code in ("", "\n\n", "# only a comment", "   # indented", ":"):
        result = driver.run(code)
        assert (result.exit_code, result.out, result.err, result.records) == (0, b"", b"", []), code


def test_bom_is_ignored(driver: Driver) -> None:
    assert driver.run(b"\xef\xbb\xbfecho ok").out == b"ok\n"


def test_everything_lasts(driver: Driver) -> None:
    driver.run(
        "x='a  b'; declare -a a=(1 '2 3' [7]=z); declare -A m=([k y]='v\n'); declare -i n=3; export E=env; readonly R=r; declare -n ref=x"
    )
    driver.run(
        "f() { local y=$1; echo \"f $y $x\"; }; alias ll='echo aliased'; shopt -s extglob nullglob; set -o pipefail; umask 027; mkdir d; cd d"
    )
    result = driver.run(
        'f 1; echo "${a[1]} ${!a[*]} ${m[k y]}$n $E $R $ref"; n+=1; echo $n; umask; basename "$PWD"; shopt -q nullglob && echo null'
    )
    assert result.out.decode() == "f 1 a  b\n2 3 0 1 7 v\n3 env r a  b\n4\n0027\nd\nnull\n"
    assert driver.run("bash -c 'echo $E'; false | true; echo $?").out == b"env\n1\n"
    assert driver.run("shopt -s expand_aliases").exit_code == 0
    assert driver.run("ll yes").out == b"aliased yes\n"
    assert driver.run("set -- p 'q r'; exec 7>kept.txt").exit_code == 0
    assert driver.run('echo "$# $2"; echo to7 >&7; cat kept.txt').out == b"2 q r\nto7\n"


ENDS = [
    "exit 3",
    "set -e; (exit 3)",
    "exec 2>&1; exit 3",
    "g() { exit 3; }; g",
    "set -e; h() { return 3; }; h",
    "eval 'exit 3'",
    "set -eo pipefail; true | (exit 3) | true",
]


@pytest.mark.parametrize("end", ENDS)
def test_everything_lasts_over_the_end_of_the_shell(driver: Driver, end: str) -> None:
    driver.run(
        "x='a  b'\"'\"'c\n$(d)'; declare -a a=(1 '2 3' [7]=z); declare -A m=([k y]='v\n'); declare -i n=3; export E=env; readonly R=r; declare -n ref=x; shopt -s extglob"
    )
    driver.run(
        "f() { local y=$1; case $y in +(1)) echo \"f $y\";; esac; }; alias ll='echo aliased'; umask 027; mkdir d; cd d; set -- p 'q r'"
    )
    driver.run("e() { echo \"e $1\"; }; export -f e; trap 'echo usr' USR1; u=ü€😀; exec 7>kept.txt")
    pid = driver.run("echo $$").out
    result = driver.run(f"echo before; echo err >&2; {end}; echo not reached")
    assert (result.exit_code, result.out, result.died) == (3, b"before\n", False)
    if "2>&1" not in end:
        assert result.err == b"err\n"
    driver.run("set +e")
    result = driver.run(
        'f 1; echo "${a[1]} ${!a[*]} ${m[k y]}$n $E $R $u"; echo "$ref"; n+=1; echo $n; umask; basename "$PWD"; shopt -q extglob && echo ext'
    )
    assert result.out.decode() == "f 1\n2 3 0 1 7 v\n3 env r ü€😀\na  b'c\n$(d)\n4\n0027\nd\next\n"
    assert result.err == b""
    assert driver.run("R=5").exit_code == 1
    assert (
        driver.run("bash -c 'e 1; echo $E'; kill -USR1 $$; alias ll").out == b"e 1\nenv\nusr\nalias ll='echo aliased'\n"
    )
    assert driver.run("echo to7 >&7; cat kept.txt").out == b"to7\n"
    assert driver.run("echo $$").out == pid


def test_positional_parameters_last_over_the_end_of_the_shell(driver: Driver) -> None:
    driver.run("set -- p 'q r'; exit 1")
    assert driver.run('echo "$# $2"').out == b"2 q r\n"


def test_locals_do_not_become_globals_at_exit(driver: Driver) -> None:
    driver.run("x=global; f() { local x=local y=2; exit 3; }; f")
    assert driver.run('echo "$x ${y-unset}"').out == b"global unset\n"


def test_exit_codes(driver: Driver) -> None:
    driver.run("kept=5")
    cases = [
        ("exit", 0),
        ("exit 256", 0),
        ("exit -1", 255),
        ("exit 255", 255),
        ("exit 137", 137),
        ("false", 1),
        ("(exit 42)", 42),
    ]
    cases += [("false; exit", 1), ("exit nonsense", 2), ("nosuch", 127), ("/etc/passwd", 126), ("true | false", 1)]
    for code, exit_code in cases:
        result = driver.run(code)
        assert (result.exit_code, result.died) == (exit_code, False), code
    assert driver.run("echo $kept").out == b"5\n"


def test_fatal_errors_keep_the_session(driver: Driver) -> None:
    driver.run("kept=5")
    for code, message in [
        ("set -u; echo $nosuch; echo not reached", b"nosuch: unbound variable"),
        ("set +u; echo ${nosuch?why}; echo not reached", b"nosuch: why"),
        ("readonly r=1; r=2", b"r: readonly variable"),
        ("echo $((1/0)); echo not reached", b"division by 0"),
        ("exec /nosuch/file", b"/nosuch/file"),
        (". /nosuch/file", b"/nosuch/file"),
        ("shift 5 || shift nonsense", b"numeric argument required"),
        ("cd /nosuch", b"/nosuch: No such file"),
        ("echo >/nosuch/file", b"/nosuch/file"),
        ("exec >/nosuch/file", b"/nosuch/file"),
        ("set -o nonsense", b"invalid option name"),
        ("f() { f; }; FUNCNEST=50; f", b"maximum function nesting"),
    ]:
        result = driver.run(code)
        assert result.exit_code != 0, code
        assert not result.died or code.startswith("exec /"), code  # plain bash has thrown its traps away by then
        if result.died:
            driver.run("kept=5")
        assert b"not reached" not in result.out
        assert message in result.err, (code, result.err)
        assert b"hayfork" not in result.err
    assert driver.run("echo $kept").out == b"5\n"


@pytest.mark.parametrize(
    "code",
    ["if x; fi", "echo 'open", "echo a\n)", "for", "case x in", "f() {", "echo $(", "cat <<E\nx\nE\n}", "&&", "((1"],
)
def test_syntax_error_is_2_and_keeps_the_session(driver: Driver, code: str) -> None:
    driver.run("kept=5")
    result = driver.run(code)
    assert result.exit_code in (2, 1) if "((" in code else result.exit_code == 2
    assert result.err.startswith(b"bash: ")
    assert b"hayfork" not in result.err
    assert driver.run("echo $kept").out == b"5\n"


def test_messages_and_line_numbers_are_those_of_plain_bash(driver: Driver) -> None:
    result = driver.run(
        'echo $LINENO\nnosuch\n\ncd /nosuch\nf() {\n  nosuch2\n}\nf; echo $0 $# "${BASH_SOURCE[0]-}" $BASH_SUBSHELL $-'
    )
    assert result.err.decode().splitlines() == [
        "bash: line 2: nosuch: command not found",
        "bash: line 4: cd: /nosuch: No such file or directory",
        "environment: line 6: nosuch2: command not found",
    ]
    assert result.out == b"1\nbash 0  0 hBc\n"
    driver.run("set -eu; exit 3")
    assert driver.run("\nnosuch").err == b"bash: line 2: nosuch: command not found\n"


def test_here_documents_and_long_lines(driver: Driver) -> None:
    assert driver.run("x=v; cat <<E; cat <<'Q'\na $x\nE\nb $x\nQ\n").out == b"a v\nb $x\n"
    assert driver.run("cat <<E\nno end").out == b"no end\n"
    assert driver.run("cat <<< 'here string'").out == b"here string\n"
    assert driver.run("echo " + "x" * 200_000).out == b"x" * 200_000 + b"\n"
    assert driver.run("echo a \\\n b # c\necho 'l1\nl2'").out == b"a b\nl1\nl2\n"


def test_hash_bang_runs_a_script(driver: Driver) -> None:
    driver.run("x=outer; export y=exported")
    assert driver.run('#!/bin/bash\necho "${x-unset} $y"; x=inner; exit 4').exit_code == 4
    assert driver.run('#!/bin/bash\necho "${x-unset} $y"; x=inner').out == b"unset exported\n"
    assert driver.run("echo $x").out == b"outer\n"
    result = driver.run("#! /usr/bin/env python3\nimport sys\nprint(sys.argv[0][-4:], sys.stdin.read())", stdin=b"in")
    assert result.out == b"code in\n"
    assert driver.run('#!/usr/bin/awk -f\nBEGIN { print "awk" }').out == b"awk\n"
    assert driver.run("#!/nosuch/interpreter\necho").exit_code == 127
    assert driver.run("#!/bin/sh\r\necho crlf").out.startswith(b"crlf")
    assert driver.run("#!\necho plain").out == b"plain\n"


def test_set_options_last_and_do_not_touch_the_driver(driver: Driver) -> None:
    driver.run("set -euo pipefail; set -fC")
    assert driver.run("echo $-; false; echo not reached").out == b"efhuBCc\n"
    assert driver.run("echo *; echo x >f1; echo y >f1").exit_code == 1
    assert driver.run("set +euC +o pipefail +f; cat f1; false; echo reached").out == b"x\nreached\n"
    for option in (
        "-a",
        "-k",
        "-v",
        "-T",
        "-E",
        "-b",
        "-P",
        "-h",
        "-m",
        "-B",
        "-H",
        "-o posix",
        "-o nolog",
        "-o ignoreeof",
    ):
        driver.run(f"set {option}")
        result = driver.run("echo fine", timeout=10)
        assert (result.exit_code, result.out) == (0, b"fine\n"), option
        assert driver.run(f"set {option.replace('-', '+', 1)}; echo off").out == b"off\n"


def test_shopt_options_last_and_do_not_touch_the_driver(driver: Driver) -> None:
    names = driver.run("shopt | cut -f1").out.decode().split()
    for name in names:
        if name in ("login_shell", "restricted_shell"):
            continue
        driver.run(f"shopt -s {name} 2>/dev/null || :")
        result = driver.run(f"shopt -q {name}; echo $?; x=5")
        assert result.out == b"0\n", (name, result)
        assert driver.run("exit 3").exit_code == 3, name
        assert driver.run(f"shopt -q {name}; echo $? $x; shopt -u {name} 2>/dev/null").out == b"0 5\n", name
    assert len(names) > 30


def test_noexec_ends_or_is_ignored(driver: Driver) -> None:
    assert driver.run("echo a; set -n\necho b", timeout=10).out == b"a\n"
    assert driver.run("echo next", timeout=10).out == b"next\n"


def test_xtrace_shows_user_code_only(driver: Driver) -> None:
    assert driver.run("set -x\necho one").err.decode().replace("+", "") == " echo one\n"
    assert driver.run("echo two").err.decode().replace("+", "") == " echo two\n"
    assert driver.run("exit 3").err.decode().replace("+", "") == " exit 3\n"
    result = driver.run("echo three\nset +x")
    assert result.err.decode().replace("+", "") == " echo three\n set x\n"
    assert (driver.run("echo four").err, bytes(driver.idle_err.data)) == (b"", b"")
    assert driver.run("set -v; echo five").exit_code == 0
    assert driver.run("echo six").err == b"echo six\n"


@pytest.mark.parametrize(
    "name",
    "printf read eval echo exec trap unset set export local declare builtin command exit return source . : test [ mapfile shopt readonly cd kill enable compgen type alias shift wait".split(),
)
def test_functions_with_the_names_of_builtins(driver: Driver, name: str) -> None:
    driver.run("kept=5")
    driver.run(f'function {name} {{ /bin/echo "mine {name}"; }}')
    result = driver.run("/bin/echo again $kept", timeout=10)
    assert (result.exit_code, result.out, result.died) == (0, b"again 5\n", False)
    if name != "builtin":
        assert driver.run(f"{name}").out == f"mine {name}\n".encode()
    if name != "exit":
        driver.run("\\exit 3" if name not in (".", ":") else "exit 3")
        assert driver.run("/bin/echo still $kept").out == b"still 5\n"


def test_functions_with_the_names_of_all_builtins_at_once(driver: Driver) -> None:
    driver.run(
        'kept=5; for n in $(compgen -b) if while; do [[ $n == builtin ]] || eval "function $n { /bin/echo mine; }"; done 2>/dev/null',
        timeout=10,
    )
    assert driver.run("/bin/echo $kept", timeout=10).out == b"5\n"
    driver.run("readonly -f exec eval printf trap 2>/dev/null; function builtin { :; }", timeout=10)
    assert driver.run("/bin/echo $kept", timeout=10).out == b"5\n"


def test_aliases_with_the_names_of_builtins_and_keywords(driver: Driver) -> None:
    driver.run("shopt -s expand_aliases; kept=5")
    driver.run(
        "for n in builtin eval unset trap set exec printf command __hayfork_done __hayfork_calm if for '{'; do alias \"$n=/bin/echo mine\"; done 2>/dev/null"
    )
    assert driver.run("/bin/echo $kept").out == b"5\n"
    assert driver.run("printf x").out == b"mine x\n"
    driver.run("\\unalias '{'; \\exit 3")
    assert driver.run("/bin/echo $kept").out == b"5\n"
    assert driver.run("printf x").out == b"mine x\n"


def test_disabled_builtins(driver: Driver) -> None:
    for name in ("printf", "read", "exec", "eval", "trap", "builtin", "mapfile", "local", "unset"):
        driver.run(f"enable -n {name}", timeout=10)
        result = driver.run("/bin/echo again", timeout=10)
        if result.died:  # allowed: the session goes on in a new shell
            result = driver.run("/bin/echo again", timeout=10)
        assert result.out == b"again\n", name
        driver.run(f"enable {name}", timeout=10)


def test_variables_of_any_name_and_kind(driver: Driver) -> None:
    driver.run("IFS=0123456789abcdef; kept=ok")
    assert driver.run("echo $kept").out == b"ok\n"
    driver.run(
        "IFS=' execdone>'; TMOUT=1; REPLY=mine; line=1; code=2; token=3; status=4; sentinel_id=5; POSIXLY_CORRECT_=1"
    )
    driver.settle(1.3)
    assert (
        driver.run("IFS=' '; echo $kept $REPLY $line $code $token $status $sentinel_id").out == b"ok mine 1 2 3 4 5\n"
    )
    driver.run("readonly IFS LINENO SECONDS PS4 BASHOPTS OPTIND _ RANDOM REPLY")
    assert driver.run("echo $kept").out == b"ok\n"
    driver.run("unset -v PATH HOME PWD; LC_ALL=C; LANG=xx_YY; BASH_ENV=/nosuch; export SHELLOPTS BASHOPTS BASH_ENV")
    assert driver.run("echo $kept ä").out == "ok ä\n".encode()
    driver.run("exit 3")
    assert driver.run("echo $kept ä $BASH_ENV").out == "ok ä /nosuch\n".encode()
    result = driver.run(
        'for v in $(compgen -v); do unset -v "$v"; done 2>/dev/null; for f in $(compgen -A function); do unset -f $f; done 2>/dev/null; echo done'
    )
    assert result.out == b"done\n"
    assert driver.run("echo alive").out == b"alive\n"


def test_names_of_ours_cannot_break_anything(driver: Driver) -> None:
    driver.run("kept=5")
    for name in driver.run("compgen -v | grep hayf; compgen -A function | grep hayf").out.decode().split():
        driver.run(f"{name}=x; unset -v {name}; unset -f {name}; {name}() {{ :; }}", timeout=10)
        assert driver.run("echo $kept", timeout=10).out == b"5\n", name
    for name in ("text", "status", "options", "probe", "last", "code", "line"):
        driver.run(f"__hayfork_{name}=x", timeout=10)
        assert driver.run("echo $kept", timeout=10).out == b"5\n", name
    result = driver.run("readonly __hayfork_text=1 __hayfork_status=2", timeout=10)
    result = driver.run("echo again", timeout=10)
    if result.died:
        result = driver.run("echo again", timeout=10)
    assert result.out == b"again\n"


def test_control_flow_words_out_of_place(driver: Driver) -> None:
    driver.run("kept=5")
    for word in ("break", "break 99", "continue", "continue 99", "return", "return 7"):
        result = driver.run(f"echo a\n{word}\necho b")
        assert (result.exit_code, result.out) == (0, b"a\nb\n"), word
    assert driver.run("f() { return 7; }; f").exit_code == 7
    assert driver.run("for i in 1 2 3; do [[ $i == 2 ]] && break; echo $i; done; echo $kept").out == b"1\n5\n"


def test_exit_trap(driver: Driver) -> None:
    driver.run("kept=5; trap 'echo bye $?' EXIT")
    assert driver.run("trap -p EXIT >/dev/null; echo $kept").out == b"5\n"
    result = driver.run("echo a; exit 3")
    assert (result.exit_code, result.out) == (3, b"a\nbye 3\n")
    assert driver.run("echo $kept").out == b"5\n"
    result = driver.run("trap 'echo other' EXIT; exit 4")
    assert (result.exit_code, result.out) == (4, b"other\n")
    assert driver.run("echo alive").out == b"alive\n"
    assert driver.run("trap - EXIT; exit 5").exit_code == 5
    assert driver.run("echo alive").out == b"alive\n"
    driver.run("trap 'exit 9' EXIT")
    assert driver.run("exit 1").exit_code == 9
    assert driver.run("echo alive").out == b"alive\n"


def test_traps_of_all_kinds(driver: Driver) -> None:
    driver.run("kept=5; trap 'echo ERR $LINENO' ERR")
    assert driver.run("false").out.startswith(b"ERR")
    assert driver.run("true\nfalse\ntrue").out.count(b"ERR") == 1
    driver.run("trap - ERR; trap 'echo DBG' DEBUG")
    result = driver.run("echo $kept")
    assert result.out.endswith(b"5\n")
    driver.run("set -T; trap 'echo RET' RETURN; trap 'echo D' DEBUG; shopt -s extdebug")
    assert driver.run("echo $kept").out.endswith(b"5\n")
    driver.run("set +T; shopt -u extdebug; trap 'false' DEBUG; trap 'echo chld' CHLD; trap '' TERM HUP PIPE")
    assert b"5\n" in driver.run("/bin/echo $kept").out
    driver.run("trap 'return 5' DEBUG RETURN ERR; set -eET", timeout=10)  # may end the shell for good
    driver.run("kept=5; set +eET; trap - DEBUG RETURN ERR", timeout=10)
    assert b"5\n" in driver.run("echo $kept", timeout=10).out
    assert (
        driver.run('set +eET; for s in $(compgen -A signal); do trap "echo $s" $s; done 2>/dev/null', timeout=10).died
        is False
    )
    assert b"5\n" in driver.run("echo $kept", timeout=10).out
    driver.run("for s in $(compgen -A signal); do trap - $s; done 2>/dev/null", timeout=10)
    assert driver.run("echo alive", timeout=10).out == b"alive\n"


def test_environment_holds_for_one_execution(driver: Driver) -> None:
    show = 'echo "${A-unset} ${B-unset}"; bash -c \'echo "${A-unset} ${B-unset}"\''
    assert driver.run(show, env={"A": "ä=\n '\"$x", "B": ""}).out.decode() == "ä=\n '\"$x \nä=\n '\"$x \n"
    assert driver.run(show).out == b"unset unset\nunset unset\n"
    driver.run("A=mine; export B=also")
    assert driver.run(show, env={"A": "theirs", "B": "theirs"}).out == b"theirs theirs\ntheirs theirs\n"
    assert driver.run(show).out == b"mine also\nunset also\n"
    assert driver.run("exit 3", env={"A": "theirs", "C": "x"}).exit_code == 3
    assert driver.run(show + "; echo ${C-unset}").out == b"mine also\nunset also\nunset\n"
    driver.run("A=changed", env={"A": "theirs"})
    assert driver.run("echo $A").out == b"mine\n"


def test_a_thousand_executions(driver: Driver) -> None:
    driver.run("n=0; ls /proc/$$/fd >before")
    for number in range(1, 601):
        result = driver.run("echo $((++n))")
        assert result.out == b"%d\n" % number
    assert driver.run("ls /proc/$$/fd >after; diff before after && echo same").out == b"same\n"


def test_death_of_the_shell(driver: Driver) -> None:
    driver.run("kept=5")
    for name, number in (("TERM", 143), ("HUP", 129), ("USR1", 138)):
        assert driver.run(f"kill -{name} $$; sleep 5").exit_code == number
    assert driver.run("echo $kept").out == b"5\n"
    result = driver.run("echo a; kill -KILL $$; sleep 5")
    assert (result.exit_code, result.out, result.died) == (128 + signal.SIGKILL, b"a\n", True)
    assert driver.run("echo ${kept-unset}").out == b"unset\n"
    result = driver.run("exec bash -c 'echo replaced; exit 6'")
    assert (result.exit_code, result.out, result.died) == (6, b"replaced\n", True)


def test_current_folder_removed(driver: Driver) -> None:
    driver.run("kept=5; mkdir gone; cd gone; rmdir ../gone")
    assert driver.run("echo $kept").out == b"5\n"
    driver.run("exit 3")
    assert driver.run("echo $kept; cd ~; pwd").out == f"5\n{driver.home}\n".encode()


def test_home_and_cwd(driver: Driver) -> None:
    result = driver.run("pwd; echo ~; echo $SHLVL; id -u")
    assert result.out.split()[:3] == [str(driver.home).encode()] * 2 + [b"1"]


def test_large_state_lasts_over_exit(driver: Driver) -> None:
    driver.run("big=$(head -c 300000 /dev/zero | tr '\\0' x); for i in {1..2000}; do declare v$i=$i; done")
    assert driver.run("exit 2").exit_code == 2
    assert driver.run("echo ${#big} $v2000").out == b"300000 2000\n"
