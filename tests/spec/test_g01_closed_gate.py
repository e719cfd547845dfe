"""G1: after a process acknowledged, no unshielded boundary is entered there; every one still open is in the receipt."""

import contextvars
import itertools
import signal
import threading

import pytest

import stoppable
from stoppable._core import context
from stoppable._core.node import RunNode
from stoppable.testing.participant_suite import (
    test_a_boundary_in_flight_finishes_and_the_next_is_not_entered,
    test_a_shielded_boundary_is_entered_after_the_stop_and_the_receipt_says_so,
    test_a_swallowed_stop_buys_no_further_effect,
)

__all__ = [  # what every kind of participant must do, for those of others too
    "test_a_boundary_in_flight_finishes_and_the_next_is_not_entered",
    "test_a_shielded_boundary_is_entered_after_the_stop_and_the_receipt_says_so",
    "test_a_swallowed_stop_buys_no_further_effect",
]


async def test_a_finished_runs_gate_is_closed_too(kind, probe):
    probe.release()
    handle = await kind.start([], probe)
    await handle.result()
    leftover = contextvars.copy_context()
    leftover.run(context.current.set, handle.run)
    with pytest.raises(stoppable.AgentStopped):
        leftover.run(stoppable.boundary("tool", "late").__enter__)
    assert leftover.run(stoppable.should_stop)
    assert handle.status == "completed"
    assert not handle.run.token.stopped


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("restless")
def test_no_effect_slips_past_an_acknowledged_gate_under_thread_stress():
    """300 trials, 8 threads, a switch interval of 1 µs: every effect after the stop is in the receipt."""
    assert sum(_gate_trial() for _ in range(300)) == 0


def _gate_trial() -> int:
    run = RunNode("trial")
    run.begin(None)
    effects: list[str] = []
    started = threading.Barrier(9)

    def enter_boundaries(number: int) -> None:
        context.current.set(run)
        started.wait(60)
        try:
            for turn in itertools.count():
                name = f"{number}-{turn}"
                with stoppable.boundary("tool", name):
                    effects.append(f"tool:{name}")
        except stoppable.AgentStopped:
            pass

    threads = [threading.Thread(target=enter_boundaries, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    started.wait(60)
    while not effects:
        pass
    receipt = run.stop("cooperative")
    before = len(effects)
    for thread in threads:
        thread.join(60)
    return len(set(effects[before:]) - set(receipt.in_flight))


@pytest.mark.timeout(60)
def test_a_signal_handler_may_stop_the_run_whose_gate_it_interrupted():
    """1 000 rounds: the handler runs in the thread that is inside the gate, and neither deadlocks nor is lost."""
    stopped = 0
    run = RunNode("none")

    def stop(signum, frame):
        run.stop("cooperative")

    previous = signal.signal(signal.SIGALRM, stop)
    outer = context.current.get()
    try:
        for round_ in range(1000):
            run = RunNode("round")
            run.begin(None)
            context.current.set(run)
            signal.setitimer(signal.ITIMER_REAL, 0.00001 + (round_ % 50) * 0.000002)
            try:
                while True:
                    with stoppable.boundary("tool"):
                        RunNode("child", run).skip()
            except stoppable.AgentStopped:
                stopped += 1
    finally:
        context.current.set(outer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert stopped == 1000
