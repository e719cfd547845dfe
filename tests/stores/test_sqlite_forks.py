"""A child that was forked while its parent had the file open: it is told what to do, and harms nobody."""

import apsw

from .sqlite_tools import Script


def test_a_forked_child_is_told_to_open_a_store_of_its_own(path):
    code = """
store.open_worker(WorkerInfo(id="w"), 30).result(10)
store.register(RunRecord(id="a", name="agent", worker="w"), "r").result(10)
child = os.fork()
if child == 0:
    try:
        store.append("a", 1, [Draft(type=EventType.LOG)]).result(10)
    except OSError as error:
        say("before a fork" in str(error))
    store.close()
    mine = SqliteStore(sys.argv[1])
    mine.open()
    say(mine.append("a", 1, [Draft(type=EventType.LOG)]).result(10))
    mine.close()
    store.open()
    say(store.append("a", 1, [Draft(type=EventType.LOG)]).result(10))
    store.close()
    os._exit(0)
say(os.waitpid(child, 0)[1])
say(store.append("a", 1, [Draft(type=EventType.LOG)]).result(10))
store.close()
"""
    with Script(code, path) as script:
        assert [script.hears() for _ in range(5)] == ["True", "1", "2", "0", "3"]
        assert script.ends() == 0


def test_what_a_forked_child_writes_outlives_the_store_of_its_parent(path):
    code = """
store.open_worker(WorkerInfo(id="w"), 30).result(10)
store.register(RunRecord(id="a", name="agent", worker="w"), "r").result(10)
(opened, has_opened), (closed, has_closed) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    mine = SqliteStore(sys.argv[1])
    mine.open()
    mine.append("a", 1, [Draft(type=EventType.LOG)]).result(10)
    os.write(has_opened, b"!")
    os.read(closed, 1)
    say(mine.append("a", 1, [Draft(type=EventType.LOG)]).result(10))
    mine.close()
    os._exit(0)
os.read(opened, 1)
store.close()
os.write(has_closed, b"!")
os.waitpid(child, 0)
store.open()
say(store.get("a").result(10).last_event)
store.close()
"""
    with Script(code, path) as script:
        assert [script.hears(), script.hears()] == ["2", "2"]
        assert script.ends() == 0


def test_a_child_that_is_forked_while_its_parent_writes_gets_the_file(path):
    code = """
from stoppable.stores.sqlite import lite_connection
lite_connection.BUSY_SECONDS = 3.0
store.open_worker(WorkerInfo(id="w"), 30).result(10)
store.register(RunRecord(id="a", name="agent", worker="w"), "r").result(10)
end = threading.Event()

def write():
    while not end.is_set():
        store.append("a", 1, [Draft(type=EventType.LOG)]).result(10)

threads = [threading.Thread(target=write) for _ in range(2)]
for thread in threads:
    thread.start()
codes = []
for number in range(20):
    child = os.fork()
    if child == 0:
        try:
            mine = SqliteStore(sys.argv[1], synchronous="normal")
            mine.open()
            mine.register(RunRecord(id=f"of {number}", name="agent", worker="w"), "r").result(10)
            mine.close()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    codes.append(os.waitpid(child, 0)[1])
end.set()
for thread in threads:
    thread.join(60)
say(sum(codes))
store.close()
store.open()
say(store.counts().result(10)["pending"])
store.close()
"""
    with Script(code, path) as script:
        assert [script.hears(), script.hears()] == ["0", "21"]
        assert script.ends() == 0
    assert apsw.Connection(str(path)).pragma("integrity_check") == "ok"


def test_a_fork_waits_for_a_writer_no_longer_than_a_moment_and_its_child_is_told_why_it_has_no_file(path):
    code = """
busy, go_on = threading.Event(), threading.Event()

def stay(tx):
    busy.set()
    go_on.wait(30)

reply = store._write(stay)
busy.wait(60)
child = os.fork()
if child == 0:
    try:
        SqliteStore(sys.argv[1]).open()
    except OSError as error:
        say("start processes anew" in str(error))
    os._exit(0)
os.waitpid(child, 0)
say(go_on.is_set())
go_on.set()
reply.result(10)
store.close()
"""
    with Script(code, path) as script:
        assert [script.hears(), script.hears()] == ["True", "False"]
        assert script.ends() == 0


# Leases
