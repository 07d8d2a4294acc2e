from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from hardpoint import _log, _log_node
from hardpoint._log import REMEMBERED_TEXTS, forget_logged, log_once, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("young_objects")


class Kept(logging.Handler):
    """Keeps every record, as handlers of applications do."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger of its own that hands nothing up."""
    forget_logged()
    found = logging.getLogger("application_of_a_test")
    found.setLevel(logging.INFO)
    found.propagate = False
    yield found
    for handler in list(found.handlers):
        found.removeHandler(handler)
    forget_logged()


@pytest.fixture
def bare() -> logging.Logger:
    """A logger outside of the tree, to which pytest adds no handler of its own."""
    forget_logged()
    return logging.Logger("bare")  # noqa: LOG001  # as its docstring says


@pytest.fixture
def kept(log: logging.Logger) -> Kept:
    """The handler of `log`."""
    handler = Kept()
    log.addHandler(handler)
    return handler


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Unhashable(dict[str, int]):
    """As every dict."""


def test_once(log: logging.Logger, kept: Kept) -> None:
    """An equal text is logged once, from wherever it comes; another text, level or logger counts apart."""
    for _ in range(3):
        log_once(log, logging.WARNING, "no %s", "GPU")
        log_once(log, logging.WARNING, "no GPU")
    log_once(log, logging.ERROR, "no GPU")
    log_once(log, logging.WARNING, "no TPU")
    assert kept.texts == ["no GPU", "no GPU", "no TPU"]
    child = log.getChild("other")
    log_once(child, logging.WARNING, "no GPU")
    assert len(kept.texts) == 4


def test_record_names_the_caller(log: logging.Logger, kept: Kept) -> None:
    """The record's place is where log_once was called."""
    log_once(log, logging.WARNING, "here")
    assert kept.records[0].funcName == "test_record_names_the_caller"


def test_percent_sign_is_no_format(log: logging.Logger, kept: Kept) -> None:
    """A text that holds a percent sign is logged as it is."""
    log_once(log, logging.WARNING, "100% of %s", "%d")
    log_once(log, logging.WARNING, "50% off")
    assert kept.texts == ["100% of %s [%d] (could not be formatted: TypeError)", "50% off"]


def test_equal_failures_are_one(log: logging.Logger, kept: Kept) -> None:
    """Two distinct exceptions with one text make one record, two texts make two."""
    for text in ("x", "x", "y"):
        log_once(log, logging.WARNING, "failed: %s", OSError(text))
    assert kept.texts == ["failed: x", "failed: y"]


def test_one_is_not_true(log: logging.Logger, kept: Kept) -> None:
    """Arguments that are equal and read differently are two texts."""
    log_once(log, logging.WARNING, "value %s", 1)
    log_once(log, logging.WARNING, "value %s", True)
    log_once(log, logging.WARNING, "value %s", 1.0)
    assert kept.texts == ["value 1", "value True", "value 1.0"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((Unhashable(a=1),), "got {'a': 1}"),
        (([1, {2}],), "got [1, {2}]"),
        (
            (Unprintable(),),
            "got %s [<Unprintable that raises ValueError when printed>] (could not be formatted: ValueError)",
        ),
        ((1, 2), "got %s [1, 2] (could not be formatted: TypeError)"),
    ],
    ids=["unhashable", "nested", "unprintable", "too many"],
)
def test_any_argument(log: logging.Logger, kept: Kept, arguments: tuple[object, ...], text: str) -> None:
    """An argument that cannot be hashed, printed or placed disturbs nobody, and is shown as far as it goes."""
    for _ in range(2):
        log_once(log, logging.WARNING, "got %s", *arguments)
    assert kept.texts == [text]


def test_arguments_by_name(log: logging.Logger, kept: Kept) -> None:
    """One dictionary fills a format of names, as it does for a logger; a name that it lacks disturbs nobody."""
    for _ in range(2):
        log_once(log, logging.WARNING, "%(what)s failed", {"what": OSError(2, "gone")})
        log_once(log, logging.WARNING, "%(that)s failed", {"what": 1})
    assert kept.texts == [
        "[Errno 2] gone failed",
        "%(that)s failed [{'what': 1}] (could not be formatted: KeyError)",
    ]


def test_adapter_of_a_logger(log: logging.Logger, kept: Kept) -> None:
    """A LoggerAdapter is as good as its logger."""
    for _ in range(2):
        log_once(logging.LoggerAdapter(log, {"rank": 1}), logging.WARNING, "adapted")
    assert kept.texts == ["adapted"]


def test_suppressed_record_does_not_count(log: logging.Logger, kept: Kept) -> None:
    """What the level suppressed is logged when it is allowed; its arguments are not even printed before."""
    log_once(log, logging.DEBUG, "detail")
    logging.disable(logging.WARNING)
    try:
        log_once(log, logging.WARNING, "muted")
    finally:
        logging.disable(logging.NOTSET)
    log.setLevel(logging.DEBUG)
    log_once(log, logging.DEBUG, "detail")
    log_once(log, logging.WARNING, "muted")
    assert kept.texts == ["detail", "muted"]


def test_record_that_no_handler_takes_does_not_count(bare: logging.Logger) -> None:
    """Before the application has set up its handlers, or under a handler of a higher level, the once is not used up."""
    bare.addHandler(logging.NullHandler())
    log_once(bare, logging.WARNING, "early")
    errors = Kept()
    errors.setLevel(logging.ERROR)
    bare.addHandler(errors)
    log_once(bare, logging.WARNING, "early")
    handler = Kept()
    bare.addHandler(handler)
    for _ in range(2):
        log_once(bare, logging.WARNING, "early")
    assert (handler.texts, errors.texts) == (["early"], [])


def test_last_resort(bare: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """A logger without any handler prints through logging's last resort: once."""
    for _ in range(2):
        log_once(bare, logging.WARNING, "to standard error")
    assert capsys.readouterr().err == "to standard error\n"


def test_handler_of_an_ancestor_counts() -> None:
    """A handler further up takes the record."""
    forget_logged()
    parent, child = logging.getLogger("hardpoint_test_parent"), logging.getLogger("hardpoint_test_parent.child")
    handler = Kept()
    parent.addHandler(handler)
    try:
        for _ in range(2):
            log_once(child, logging.WARNING, "up")
    finally:
        parent.removeHandler(handler)
    assert handler.texts == ["up"]


class Failing(logging.Handler):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException | None = error

    def emit(self, record: logging.LogRecord) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("shown", [True, False])
def test_failing_handler(log: logging.Logger, monkeypatch: pytest.MonkeyPatch, shown: bool) -> None:
    """A handler that raises does not reach the caller, whatever logging.raiseExceptions says."""
    monkeypatch.setattr(logging, "raiseExceptions", shown)
    log.addHandler(Failing(RuntimeError("disk full")))
    log_once(log, logging.WARNING, "text")


def test_interrupt_in_a_handler_propagates(log: logging.Logger) -> None:
    """KeyboardInterrupt is nobody's to swallow."""
    log.addHandler(Failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        log_once(log, logging.WARNING, "text")


def test_exception_text(log: logging.Logger, kept: Kept) -> None:
    """exc_info adds the traceback as text, once for equal failures, and the record holds no exception."""
    for _ in range(2):
        try:
            os.stat("/nowhere/at/all")
        except OSError:
            log_once(log, logging.WARNING, "failed", exc_info=True)
    assert len(kept.records) == 1
    assert kept.texts[0].startswith("failed\nTraceback (most recent call last):\n")
    assert kept.texts[0].endswith("\nFileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at/all'")
    assert kept.records[0].exc_info is None


def test_exception_given_as_it_is(log: logging.Logger, kept: Kept) -> None:
    """exc_info may be an exception, a triple, or nothing at all; the exception's text tells failures apart."""
    error = OSError("one")
    log_once(log, logging.WARNING, "failed", exc_info=error)
    log_once(log, logging.WARNING, "failed", exc_info=(OSError, error, None))
    log_once(log, logging.WARNING, "failed", exc_info=OSError("two"))
    log_once(log, logging.WARNING, "failed", exc_info=Unprintable())
    log_once(log, logging.WARNING, "failed", exc_info=True)
    log_once(log, logging.WARNING, "failed", exc_info=False)
    log_once(log, logging.WARNING, "failed", exc_info=(None, None, None))
    one, two, unprintable, plain = (text.splitlines()[-1] for text in kept.texts)
    assert (one, two, plain) == ("OSError: one", "OSError: two", "failed")
    assert "Unprintable: " in unprintable


def test_extra(log: logging.Logger, kept: Kept) -> None:
    """What is in `extra` reaches the handler as text and numbers; a name that records have already does no harm."""
    log_once(log, logging.WARNING, "text", extra={"device": 3, "error": OSError("gone"), "message": "m", "name": "n"})
    fields = vars(kept.records[0])
    assert (fields["device"], fields["error"], fields["message_"], fields["name_"]) == (3, "gone", "m", "n")


def _fail(use: Callable[[Exception], None]) -> weakref.ref[Kept]:
    """Raise with a local alive in the failing frame, use the exception, and return a weak reference to the local."""

    def fail() -> None:
        local = Kept()
        references.append(weakref.ref(local))
        raise OSError("gone")

    references: list[weakref.ref[Kept]] = []
    try:
        fail()
    except OSError as error:
        use(error)
    return references[0]


@pytest.mark.parametrize("way", ["argument", "message", "dict", "tuple", "extra", "exc_info", "true", "unprintable"])
def test_nothing_is_kept_alive(log: logging.Logger, kept: Kept, way: str) -> None:
    """However an exception reaches log_once, the frames that it came from are free afterwards."""

    class Holder:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def __str__(self) -> str:
            raise self.error

    ways: dict[str, Callable[[Exception], None]] = {
        "argument": lambda error: log_once(log, logging.WARNING, "failed: %s", error),
        "message": lambda error: log_once(log, logging.WARNING, error),
        "dict": lambda error: log_once(log, logging.WARNING, "failed: %s", {"error": error}),
        "tuple": lambda error: log_once(log, logging.WARNING, "failed: %s", (error, 1)),
        "extra": lambda error: log_once(log, logging.WARNING, "failed", extra={"error": error, "all": [error]}),
        "exc_info": lambda error: log_once(log, logging.WARNING, "failed", exc_info=error),
        "true": lambda error: log_once(log, logging.WARNING, "failed", exc_info=True),
        "unprintable": lambda error: log_once(log, logging.WARNING, "failed: %s", Holder(error)),
    }
    reference = _fail(ways[way])
    gc.collect()
    assert len(kept.records) == 1
    assert reference() is None


def test_failing_handler_keeps_nothing_alive(log: logging.Logger) -> None:
    """Nor does a handler that raises, in the middle of handling an exception."""
    handler = Failing(RuntimeError("disk full"))
    log.addHandler(handler)
    reference = _fail(lambda error: log_once(log, logging.WARNING, "failed: %s", error))
    handler.error = None
    gc.collect()
    assert reference() is None


def test_memory_is_bounded(log: logging.Logger, kept: Kept) -> None:
    """Of ten thousand distinct texts only the latest are remembered, and of a long one only a part."""
    for number in range(10_000):
        log_once(log, logging.WARNING, "text %d", number)
    assert len(kept.records) == 10_000
    assert len(_log._seen) == REMEMBERED_TEXTS
    log_once(log, logging.WARNING, "text %d", 9_999)
    assert len(kept.records) == 10_000
    long = "x" * 1_000_000
    for text in (long + "a", long + "b", long + "a"):
        log_once(log, logging.WARNING, text)
    assert [text[-1] for text in kept.texts[10_000:]] == ["a", "b"]
    assert max(len(text) for _, _, text in _log._seen) < 1_000


def test_sixteen_threads(log: logging.Logger, kept: Kept) -> None:
    """Sixteen threads that say the same at once make one record per text."""
    barrier = threading.Barrier(16)

    def say() -> None:
        barrier.wait()
        for number in range(50):
            log_once(log, logging.WARNING, "text %d", number)

    threads = [threading.Thread(target=say) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kept.texts) == sorted(f"text {number}" for number in range(50))


def test_forgetting(log: logging.Logger, kept: Kept) -> None:
    """After reset the same text is logged again."""
    log_once(log, logging.WARNING, "text")
    forget_logged()
    log_once(log, logging.WARNING, "text")
    assert len(kept.records) == 2


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timer signals")
def test_signal_handler_that_logs(log: logging.Logger, kept: Kept) -> None:
    """A signal's handler that logs while the main thread is inside log_once does not wait for ever."""
    before = signal.signal(signal.SIGALRM, lambda *_: log_once(log, logging.WARNING, "from the handler"))
    try:
        with _log._lock:
            os.kill(os.getpid(), signal.SIGALRM)
            # Python runs the handler between two of these.
            for _ in range(1000):
                pass
    finally:
        signal.signal(signal.SIGALRM, before)
    assert kept.texts == ["from the handler"]


def _python(script: str, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _log_node.RANK_VARIABLES}
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{textwrap.dedent(script)}"],
        env={**environment, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _output(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate("go\n", timeout=60)
    assert process.returncode == 0, errors
    assert errors == ""
    return output


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_that_was_made_while_another_thread_logged() -> None:
    """The child can log although a thread that it does not have held the lock at the fork."""
    output = _output(
        _python(
            """
            import logging, os, threading, warnings
            from hardpoint import _log
            # Python 3.12 warns at every fork of a process with threads; that is the very case here.
            warnings.simplefilter("ignore", DeprecationWarning)
            logging.basicConfig(stream=sys.stdout, format="%(message)s")
            held, end = threading.Event(), threading.Event()
            def hold():
                with _log._lock:
                    held.set()
                    end.wait()
            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            child = os.fork()
            if child == 0:
                _log.log_once(_log.logger, logging.WARNING, "from the child")
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)
            end.set()
            thread.join()
            """
        )
    )
    assert output == "from the child\n"


RANK = """
    import logging
    from hardpoint._log import log_once, logger
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    log_once(logger, logging.WARNING, "no GPU")
    variable = __import__("os").environ.get
    log_once(logger, logging.WARNING, "rank " + variable("LOCAL_RANK", "none"))
    if text := variable("LONG_TEXT"):
        log_once(logger, logging.WARNING, text)
    print("ready", flush=True)
    sys.stdin.readline()
"""


def _run_ranks(environments: list[dict[str, str]]) -> list[str]:
    """Start the ranks, let all of them log before any ends, and return the lines that they logged."""
    processes = [_python(RANK, **environment) for environment in environments]
    lines: list[str] = []
    for process in processes:
        assert process.stdout is not None
        for line in iter(process.stdout.readline, "ready\n"):
            assert line, "a rank ended early"
            lines.append(line.strip())
    for process in processes:
        _output(process)
    return sorted(lines)


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks")
def test_ranks_of_one_node(tmp_path: Path) -> None:
    """Of eight local ranks of one launcher one logs a common text, each its own; ranks started again log again."""
    text = "a text that is too long to be remembered as it is " * 20
    ranks = [{"LOCAL_RANK": str(rank), "TMPDIR": str(tmp_path), "LONG_TEXT": text} for rank in range(8)]
    expected = [text.strip(), "no GPU", *(f"rank {rank}" for rank in range(8))]
    assert _run_ranks(ranks) == expected
    assert _run_ranks(ranks) == expected
    (file,) = tmp_path.iterdir()
    assert (file.name, file.stat().st_size) == (f"hardpoint-{os.getuid()}.ranks", 0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks")
def test_runs_of_one_launcher_are_apart(tmp_path: Path) -> None:
    """Two runs that one launcher started side by side log for themselves."""
    ranks = [{"LOCAL_RANK": "0", "MASTER_PORT": port, "TMPDIR": str(tmp_path)} for port in ("1", "2")]
    assert _run_ranks(ranks).count("no GPU") == 2


def test_processes_without_a_rank(tmp_path: Path) -> None:
    """Where no rank is known each process logs for itself, and no file is made."""
    assert _run_ranks([{"TMPDIR": str(tmp_path)}] * 3) == ["no GPU"] * 3 + ["rank none"] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks")
def test_ranks_without_a_usable_file(tmp_path: Path) -> None:
    """Where the file cannot be had, or is not what it should be, each rank logs for itself."""
    (tmp_path / f"hardpoint-{os.getuid()}.ranks").symlink_to(tmp_path / "elsewhere")
    ranks = [{"LOCAL_RANK": "0", "TMPDIR": folder} for folder in (str(tmp_path), str(tmp_path / "missing"))]
    assert _run_ranks(ranks) == ["no GPU"] * 2 + ["rank 0"] * 2
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs a file of another user")
def test_file_of_another_user_is_not_taken(tmp_path: Path) -> None:
    """Somebody else's file under our name cannot silence us."""
    file = tmp_path / f"hardpoint-{os.getuid()}.ranks"
    file.touch()
    os.chown(file, 12345, 12345)
    ranks = [{"LOCAL_RANK": str(rank), "TMPDIR": str(tmp_path)} for rank in range(2)]
    assert _run_ranks(ranks).count("no GPU") == 2


def test_importing_leaves_logging_as_it_is() -> None:
    """What the application set up, the root and standard streams are untouched by import and resolve."""
    output = _output(
        _python(
            """
            import logging, os
            application = logging.getLogger("app")
            handler = logging.StreamHandler()
            application.addHandler(handler)
            root = logging.getLogger()
            before = (list(root.handlers), root.level, root.manager.disable, dict(os.environ), logging.lastResort)
            import hardpoint
            try: hardpoint.resolve()
            except ValueError: pass  # no platform plugin is installed
            after = (list(root.handlers), root.level, root.manager.disable, dict(os.environ), logging.lastResort)
            ours = logging.getLogger("hardpoint")
            print(before == after, application.disabled, application.handlers == [handler], application.level)
            print([type(item).__name__ for item in ours.handlers], ours.level, ours.propagate, ours.filters)
            print([name for name in ("torch", "pynvml", "numpy") if name in sys.modules])
            """
        )
    )
    assert output.splitlines() == ["True False True 0", "['NullHandler'] 0 True []", "[]"]


def test_logger_is_quiet() -> None:
    """Our logger has a NullHandler and no level of its own."""
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]
    assert logger.level == logging.NOTSET
