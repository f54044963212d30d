"""Python driver: values, display, pictures (BEHAVIOURS 20)."""

from __future__ import annotations

import json

import pytest
from driver_harness import Driver

LANGUAGE = "python"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 3\nx", "3"),
        ("x = 3\nx;", None),
        ("x = 3\nx ; # comment", None),
        ("(1,\n 2)", "(1, 2)"),
        ("'ä;'", "'ä;'"),
        ("None", None),
        ("x = 3", None),
        ("print(5)", None),
        ("if True: 5", None),
        ("def f(): return 1", None),
        ("await __import__('asyncio').sleep(0, 'v')", "'v'"),
        ("x = await __import__('asyncio').sleep(0, 'v')\nx", "'v'"),
        ('"""only a string"""', "'only a string'"),
        ("lambda: 0", None),
        ("[i async for i in g()] if 0 else 1", "1"),
    ],
)
def test_value_of_the_last_expression(driver: Driver, code: str, value: str | None) -> None:
    result = driver.run(code)
    assert (result.exit_code, result.out) == (0, b"5\n" if "print" in code else b"")
    if "lambda" in code:
        assert result.value is not None and "lambda" in result.value
    else:
        assert result.value == value
    assert driver.run("sorted(n for n in globals() if n not in ('x', 'f') and n[:2] != '__')").value == "[]"


def test_underscore_is_the_last_value(driver: Driver) -> None:
    driver.run("6 * 7")
    assert driver.run("_ + 1").value == "43"
    driver.run("_ = 'mine'\n5")
    assert driver.run("_").value == "'mine'"


def test_display_hook_of_the_user(driver: Driver) -> None:
    driver.run("import sys\nsys.displayhook = lambda v: print('hook', v)")
    result = driver.run("5")
    assert (result.out, result.records) == (b"hook 5\n", [])
    assert driver.run("sys.displayhook = sys.__displayhook__\n7").value is None or True


RICH = """
class R:
    def __repr__(self): return 'plain ä'
    def _repr_html_(self): return '<b>ä</b>'
    def _repr_markdown_(self): return '**m**'
    def _repr_latex_(self): return '$x$'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n\\0\\xff'
    def _repr_jpeg_(self): return 'AAEC'
    def _repr_json_(self): return {'a': [1, None]}
    def _repr_pdf_(self): return None
    def _repr_javascript_(self): raise NotImplementedError
"""


def test_all_forms(driver: Driver) -> None:
    (record,) = driver.run(RICH + "R()").of_kind("result")
    assert next(iter(record.parts)) == "text/plain"
    assert json.loads(record.parts.pop("application/json")) == {"a": [1, None]}
    assert record.parts == {
        "text/plain": "plain ä".encode(),
        "text/html": "<b>ä</b>".encode(),
        "text/markdown": b"**m**",
        "text/latex": b"$x$",
        "image/svg+xml": b"<svg/>",
        "image/png": b"\x89PNG\r\n\x1a\n\0\xff",
        "image/jpeg": b"\0\1\2",
    }


def test_mime_bundles(driver: Driver) -> None:
    code = "class M:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/html': 'h', 'application/vnd.x+json': {'k': 1}}, {}\nM()"
    (record,) = driver.run(code).of_kind("result")
    assert record.parts["text/html"] == b"h"
    assert json.loads(record.parts["application/vnd.x+json"]) == {"k": 1}


def test_display_in_the_middle_and_several_at_once(driver: Driver) -> None:
    result = driver.run(
        RICH + "display(1, R())\nprint('text')\ndisplay({'text/html': 'raw'}, raw=True)\ndisplay('s', metadata={})\n2"
    )
    assert [record.kind for record in result.records] == ["display"] * 4 + ["result"]
    assert result.records[0].parts == {"text/plain": b"1"}
    assert result.records[2].parts == {"text/html": b"raw"}
    assert result.records[3].text() == "'s'"
    assert (result.value, result.out) == ("2", b"text\n")


def test_display_does_not_pollute_and_the_users_own_wins(driver: Driver) -> None:
    assert driver.run("'display' in globals()").value == "False"
    assert driver.run("def display(x): print('mine', x)\ndisplay(1)").out == b"mine 1\n"
    assert driver.run("del display\ndisplay(2)").of_kind("display")[0].text() == "2"


def test_objects_that_lie(driver: Driver) -> None:
    result = driver.run("from unittest.mock import MagicMock\nMagicMock()")
    assert list(result.of_kind("result")[0].parts) == ["text/plain"]
    result = driver.run(
        "class P:\n    def __getattr__(self, n): raise RuntimeError(n)\n    def __repr__(self): return 'P'\nP()"
    )
    assert result.value == "P"
    result = driver.run(RICH + "R")
    assert list(result.of_kind("result")[0].parts) == ["text/plain"]
    result = driver.run(
        "class H:\n    def _repr_html_(self): raise ValueError('broken')\n    def __repr__(self): return 'H'\nH()"
    )
    assert (result.value, result.exit_code) == ("H", 0)
    assert b"ValueError: broken" in result.err
    result = driver.run(
        "class V:\n    def _repr_html_(self): return 5\n    def _repr_json_(self): return {1, 2}\n    def __repr__(self): return 'V'\nV()"
    )
    assert result.of_kind("result")[0].parts["text/html"] == b"5"


def test_large_values(driver: Driver) -> None:
    result = driver.run("'x' * 1_000_000")
    assert len(result.value or "") == 1_000_002
    result = driver.run("'x' * 40_000_000")
    assert result.exit_code == 0
    assert 100_000 < len(result.value or "") < 16 << 20
    code = "class B:\n    def _repr_png_(self): return bytes(20_000_000)\n    def _repr_html_(self): return 'h' * 5_000_000\n    def __repr__(self): return 'B'\nB()"
    (record,) = driver.run(code).of_kind("result")
    assert set(record.parts) == {"text/plain", "text/html"}
    result = driver.run("raise ValueError('ä' * 10_000_000)")
    assert len(json.dumps(result.error)) < 64 << 10
    assert "[...]" in result.error["value"]


def test_errors_of_deep_chains_are_bounded(driver: Driver) -> None:
    code = "def f(n):\n    try: 1/0\n    except Exception as e:\n        if n: f(n - 1)\n        raise ValueError(str(n) * 100)\nf(150)"
    result = driver.run(code)
    assert len(json.dumps(result.error)) < 64 << 10
    assert result.error["name"] == "ValueError"


def test_display_from_threads(driver: Driver) -> None:
    code = (
        "import threading\ndef f(i):\n    for j in range(20): display({'text/plain': f'{i} ' * 5000}, raw=True)\n"
        "ts = [threading.Thread(target=f, args=(i,)) for i in range(4)]\nfor t in ts: t.start()\nfor t in ts: t.join()"
    )
    result = driver.run(code)
    texts = sorted(record.text() for record in result.of_kind("display"))
    assert texts == sorted([f"{i} " * 5000 for i in range(4)] * 20)


def test_display_from_a_thread_while_idle_is_text(driver: Driver) -> None:
    driver.run("import threading\nthreading.Timer(0.1, lambda: display('later')).start()")
    driver.settle(0.4)
    assert bytes(driver.idle_out.data) == b"later\n"


def test_display_is_not_cut_by_signals(driver: Driver) -> None:
    code = (
        "import signal\ndef h(s, f): raise TimeoutError\nsignal.signal(signal.SIGALRM, h)\nn = 0\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "while n < 200:\n    try:\n        display({'text/plain': 'y' * 200_000}, raw=True)\n    except TimeoutError: pass\n    finally: n += 1\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    result = driver.run(code)
    assert {len(record.text()) for record in result.of_kind("display")} == {200_000}


PYPLOT = '''
"""A stand-in with the few names of Matplotlib that the driver uses."""
class Figure:
    def __init__(self, number): self.number, self.axes = number, []
    def savefig(self, file, format, bbox_inches=None): file.write(b"\\x89PNG" + bytes([self.number]))
    def get_children(self): return [None]
    def __repr__(self): return f"<Figure {self.number}>"
Figure.__module__ = "matplotlib.figure"
figures = {}
def get_backend(): return "agg"
def get_fignums(): return sorted(figures)
def figure(number=None):
    number = number or max(figures, default=0) + 1
    return figures.setdefault(number, Figure(number))
def plot():
    (figures[max(figures)] if figures else figure()).axes.append(1)
def close(which):
    figures.pop(which.number)
def show(block=None): raise RuntimeError("the usual show")
'''


def install_pyplot(driver: Driver) -> None:
    (driver.home / "matplotlib").mkdir()
    (driver.home / "matplotlib" / "__init__.py").write_text("")
    (driver.home / "matplotlib" / "pyplot.py").write_text(PYPLOT)


def test_open_figures_are_shown_at_the_end_and_closed(driver: Driver) -> None:
    install_pyplot(driver)
    result = driver.run(
        "import matplotlib.pyplot as plt\nplt.plot(); plt.figure(); plt.plot()\nplt.figure()\nprint('text')"
    )
    assert [record.parts for record in result.of_kind("display")] == [
        {"text/plain": b"<Figure 1>", "image/png": b"\x89PNG\1"},
        {"text/plain": b"<Figure 2>", "image/png": b"\x89PNG\2"},
    ]
    assert driver.run("plt.get_fignums()").value == "[]"
    result = driver.run("plt.plot()\n1/0")
    assert (len(result.of_kind("display")), result.exit_code) == (1, 1)


def test_show_in_a_loop_gives_one_picture_each(driver: Driver) -> None:
    install_pyplot(driver)
    result = driver.run("import matplotlib.pyplot as plt\nfor i in range(3):\n    plt.plot(); plt.show()")
    assert (len(result.of_kind("display")), result.exit_code, result.err) == (3, 0, b"")


def test_figure_as_value_is_shown_once(driver: Driver) -> None:
    install_pyplot(driver)
    result = driver.run("import matplotlib.pyplot as plt\nf = plt.figure(); plt.plot()\nf")
    assert [(record.kind, sorted(record.parts)) for record in result.records] == [
        ("result", ["image/png", "text/plain"])
    ]


def test_matplotlib_is_not_imported_by_us(driver: Driver) -> None:
    install_pyplot(driver)
    assert driver.run("import sys\n'matplotlib' in sys.modules").value == "False"
    assert (
        driver.run("sys.modules.keys() & {'asyncio', 'json', 'traceback', 're', 'signal', 'linecache'}").value
        == "set()"
    )


def test_broken_figures_do_not_break_the_end(driver: Driver) -> None:
    install_pyplot(driver)
    result = driver.run(
        "import matplotlib.pyplot as plt\nplt.plot()\nplt.Figure.savefig = lambda *a, **k: 1/0\nprint('text')"
    )
    assert (result.out, result.died) == (b"text\n", False)
    assert b"ZeroDivisionError" in result.err
    assert driver.run("print('alive')").out == b"alive\n"
