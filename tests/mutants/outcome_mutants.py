"""Deliberate mistakes in what receipts and outcomes say, and in who takes part."""

from .mutant import SPEC, Mutant

_AGENTS = SPEC + "test_ordinary_agents.py::"
_CODE = SPEC + "test_ordinary_code.py::"
_STREAMS = "tests/supervisor/test_streams.py::"

OUTCOME_MUTANTS = (
    Mutant(
        name="a stream that the stop closes counts as cancelled",
        breaks="fates",
        file="_core/stop.py",
        snippet="return Fate.INTERRUPTED if cause.by_force else Fate.CLOSED",
        replacement="return Fate.CANCELLED",
        caught_by=(SPEC + "test_fates.py::test_a_tool_that_takes_the_stop_at_a_wait_inside_it_is_closed",),
    ),
    Mutant(
        name="an error after a rung counts as its work",
        breaks="fates",
        file="_core/stop.py",
        snippet="return Fate.INTERRUPTED if run.was_interrupted else Fate.FINISHED",
        replacement="return Fate.INTERRUPTED",
        caught_by=(SPEC + "test_fates.py::test_an_error_of_its_own_after_cancel_is_how_an_effect_finished",),
    ),
    Mutant(
        name="a boundary ends with its task though a thread goes on",
        breaks="fates",
        file="_core/boundary.py",
        snippet="            if other.inside is self and other is not ending and other.alive():",
        replacement="            if False:",
        caught_by=(
            SPEC + "test_fates.py::test_a_thread_that_outlives_cancel_has_finished_though_nobody_waited_for_it[False]",
        ),
    ),
    Mutant(
        name="a cancel outside any boundary is clean",
        breaks="G7",
        file="_engine/tasks.py",
        snippet="            if node.noticed or not is_inside:",
        replacement="            if node.noticed:",
        caught_by=(
            SPEC + "test_clean.py::test_a_cancel_that_hits_an_await_outside_a_boundary_may_have_hit_a_clean_up",
        ),
    ),
    Mutant(
        name="a task below task groups is cancelled beside them",
        breaks="G7",
        file="_engine/tasks.py",
        snippet="            if participant.task.cancelling() > before:",
        replacement="            if False:",
        caught_by=(SPEC + "test_clean.py::test_a_leaf_under_nested_task_groups_is_cancelled_once",),
    ),
    Mutant(
        name="a second cancel by the user is clean",
        breaks="G7",
        file="_engine/tasks.py",
        snippet="            if task.cancelling() > 1 and run.first_stop is not None:",
        replacement="            if False:",
        caught_by=(SPEC + "test_clean.py::test_clean_is_not_said_if_the_users_own_code_cancels_a_task_again",),
    ),
    Mutant(
        name="whoever should_stop told takes no part",
        breaks="G8",
        file="_core/node.py",
        snippet="        participants.engine.attend(self)\n",
        replacement="",
        caught_by=(_AGENTS + "test_a_thread_that_should_stop_told_to_stop_takes_part_until_its_call_returns",),
    ),
    Mutant(
        name="seeing a child stopped is no delivery",
        breaks="G8",
        file="_engine/handle.py",
        snippet="        here.deliver(raised=True)\n",
        replacement="        pass\n",
        caught_by=(_AGENTS + "test_a_parent_that_sees_its_child_stopped_by_its_own_stop_was_told",),
    ),
    Mutant(
        name="a fork keeps the run",
        breaks="G1",
        file="_core/context.py",
        snippet="        current.set(FORKED)\n",
        replacement="        pass\n",
        caught_by=(_AGENTS + "test_a_fork_has_no_run_and_says_so",),
    ),
    Mutant(
        name="a cancel that the body took back counts as ours",
        breaks="G9",
        file="_engine/edge.py",
        snippet="        return not is_own_cancel(outsider)\n",
        replacement="        return False\n",
        caught_by=(_AGENTS + "test_a_timeout_around_a_body_that_took_our_cancel_back_is_a_timeout[False]",),
    ),
    Mutant(
        name="a half-read generator outlives its parent",
        breaks="G8",
        file="_engine/tasks.py",
        snippet="            self.reader_left()\n",
        replacement="            pass\n",
        caught_by=(_AGENTS + "test_a_half_read_generator_agent_that_is_kept_ends_with_its_parent",),
    ),
    Mutant(
        name="a stream stays in the run that began it",
        breaks="G1",
        file="_core/boundary.py",
        snippet="        if run is not scope.run_here():\n            if run is not None:",
        replacement="        if False:\n            if run is not None:",
        caught_by=(_CODE + "test_a_decorated_generator_is_listed_in_the_run_that_reads_it[False]",),
    ),
    Mutant(
        name="open_run in a generator that is read is let in",
        breaks="G1",
        file="_engine/open_run.py",
        snippet="        frame, is_generator = frame.f_back, True\n",
        replacement="        frame, is_generator = frame.f_back, False\n",
        caught_by=(_CODE + "test_open_run_in_a_generator_that_is_read_is_refused_and_says_what_works",),
    ),
    Mutant(
        name="open_run of a supervisor is let in by a generator that is read",
        breaks="G1",
        file="supervisor/_async/supervisor.py",
        snippet='        refuse_generators(sys._getframe(1), "open_run()")  # before anything is in the store\n',
        replacement="",
        caught_by=(_STREAMS + "test_open_run_in_a_generator_that_is_read_is_refused_as_that_of_the_core_is[memory]",),
    ),
    Mutant(
        name="a reader that leaves is not noticed",
        breaks="on_disconnect",
        file="supervisor/core.py",
        snippet='    if on_disconnect == "stop" and run.outcome is None:\n',
        replacement="    if False:\n",
        caught_by=(
            _STREAMS + "test_a_reader_that_leaves_stops_the_run_if_that_was_asked_for[memory-break]",
            _STREAMS + "test_a_blocking_reader_that_leaves_stops_the_run_too[memory]",
        ),
    ),
    Mutant(
        name="a worker counts no boundaries",
        breaks="limits",
        file="_engine/isolation/child.py",
        snippet="        run.budget = _Allowance(run, message.left, line) if message.left else None\n",
        replacement="",
        caught_by=(_AGENTS + "test_a_limit_of_boundaries_is_kept_in_a_worker_process",),
    ),
)
