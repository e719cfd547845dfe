"""Deliberate mistakes in what makes plain code take part."""

from .mutant import SPEC, Mutant

CALLBACKS = "tests/plain/test_callbacks.py::"
EXECUTORS = "tests/plain/test_executors.py::"
INSTALL = "tests/plain/test_install.py::"
NESTED = "tests/unit/test_nested_loops.py::"
POOLS = "tests/plain/test_pools.py::"
QUEUES = "tests/plain/test_queues.py::"
THREADS = "tests/plain/test_threads.py::"

PLAIN_MUTANTS = (
    Mutant(
        name="a callback begins after the stop",
        breaks="G1",
        file="_engine/executors.py",
        snippet='            LibraryBoundary("thread", user_code.name_of(function)),\n',
        replacement="",
        caught_by=(CALLBACKS + "test_after_the_stop_a_callback_is_not_begun[_on_future]",),
    ),
    Mutant(
        name="a callback raises the stop into the thread of a pool",
        breaks="G13",
        file="_engine/executors.py",
        snippet="            contextlib.suppress(AgentStopped),\n            scopes.performing(here),",
        replacement="            scopes.performing(here),",
        caught_by=(
            CALLBACKS + "test_a_callback_is_in_flight_and_the_run_is_not_stopped_before_it_has_ended[_on_thread_pool]",
        ),
    ),
    Mutant(
        name="code outside runs sees AgentStopped in the future of a call",
        breaks="G4",
        file="_engine/executors.py",
        snippet="    if run is None:\n        return concurrent.futures.CancelledError(str(stop))\n",
        replacement="    if run is None:\n        return stop\n",
        caught_by=(
            CALLBACKS
            + "TestACallThatTheStopSkipped::test_is_cancelled_for_others_and_stopped_for_the_run[instrumented]",
        ),
    ),
    Mutant(
        name="a callback of a library does not belong to the run",
        breaks="G1",
        file="_engine/executors.py",
        snippet="scopes.performing(scopes.OnForeignThread(here)):",
        replacement="contextlib.nullcontext():",
        caught_by=(CALLBACKS + "test_a_callback_of_a_library_is_called_after_the_stop_and_what_it_submits_is_skipped",),
    ),
    Mutant(
        name="the initializer of a pool is outside the run",
        breaks="G8",
        file="_engine/instrumentation/threads.py",
        snippet="    if place is None:\n",
        replacement="    if True:\n",
        caught_by=(CALLBACKS + "test_an_initializer_is_in_flight_and_is_completed[_thread_pool_executor]",),
    ),
    Mutant(
        name="the excepthook of a thread is outside the run",
        breaks="G8",
        file="_engine/instrumentation/threads.py",
        snippet="with scopes.performing(worker.scope), contextlib.suppress(AgentStopped):",
        replacement="with scopes.performing(DETACHED), contextlib.suppress(AgentStopped):",
        caught_by=(
            THREADS + "test_the_excepthook_of_a_thread_belongs_to_the_run_and_may_start_nothing_after_the_stop",
        ),
    ),
    Mutant(
        name="a thread that executes a function of a library belongs to nobody, whoever starts it",
        breaks="G8",
        file="_engine/instrumentation/user_code.py",
        snippet="    if _is_started_by_user(thread, starter):",
        replacement="    if False:",
        caught_by=(THREADS + "test_a_thread_that_the_runs_code_starts_takes_part_whatever_it_executes[method]",),
    ),
    Mutant(
        name="a library's thread with a function of the user belongs to nobody",
        breaks="G8",
        file="_engine/instrumentation/user_code.py",
        snippet="any(map(_is_users_work, _arguments(code)))",
        replacement="False",
        caught_by=(THREADS + "test_a_thread_that_a_library_starts_takes_part_if_it_was_given_work_of_the_user",),
    ),
    Mutant(
        name="CANCEL leaves the task alone that a thread runs to its end",
        breaks="G6",
        file="_engine/tasks.py",
        snippet="    if task is not None:\n",
        replacement="    if False:\n",
        caught_by=(
            THREADS + "test_cancel_ends_the_task_that_a_thread_runs_to_its_end",
            NESTED + "test_an_immediate_stop_cancels_the_task_that_a_thread_runs_to_its_end[blocking]",
        ),
    ),
    Mutant(
        name="a stop cancels the main task of a loop that calls a function of the run",
        breaks="G9",
        file="_engine/tasks.py",
        snippet="or home is None or not home.is_within(run)",
        replacement="",
        caught_by=(NESTED + "test_the_stop_of_a_run_does_not_cancel_the_main_task_of_a_loop_that_calls_its_function",),
    ),
    Mutant(
        name="CANCEL cuts the clean-up that blocking code runs in a loop",
        breaks="G7",
        file="_engine/tasks.py",
        snippet="isinstance(scope, shielded) and not participant.is_shielded()",
        replacement="False",
        caught_by=(NESTED + "test_clean_up_in_a_loop_of_its_own_is_not_cut_at_cancel",),
    ),
    Mutant(
        name="the thread of a shared event loop is lost with the run that started it",
        breaks="G13",
        file="_engine/instrumentation/threads.py",
        snippet="if tasks.main_task(self.thread) is None and any(",
        replacement="if False and any(",
        caught_by=(THREADS + "test_a_loop_that_runs_for_ever_on_a_thread_outlives_the_run_that_started_it[function]",),
    ),
    Mutant(
        name="a worker that waits for its next job belongs to the run that started it",
        breaks="G13",
        file="_engine/instrumentation/threads.py",
        snippet="if self._is_shared or not can_wake_itself:",
        replacement="if False:",
        caught_by=(QUEUES + "test_a_worker_that_waits_when_its_run_is_stopped_serves_whoever_comes_later",),
    ),
    Mutant(
        name="a job belongs to the run that started its worker",
        breaks="G4",
        file="_engine/instrumentation/threads.py",
        snippet="worker.take(_take_origin(self, item))",
        replacement="worker.take(None)",
        caught_by=(QUEUES + "test_a_job_is_in_flight_in_the_run_that_made_it_and_a_stop_refuses_its_effects[waits]",),
    ),
    Mutant(
        name="a refused job ends the worker that all runs use",
        breaks="G13",
        file="_engine/instrumentation/scopes.py",
        snippet="            raise concurrent.futures.CancelledError(str(stop)) from stop",
        replacement="            raise stop",
        caught_by=(QUEUES + "test_a_job_is_in_flight_in_the_run_that_made_it_and_a_stop_refuses_its_effects[waits]",),
    ),
    Mutant(
        name="a worker leaves its run although the run has put more jobs into the queue",
        breaks="G8",
        file="_engine/instrumentation/threads.py",
        snippet="            item = original(self, False)",
        replacement="            raise queue.Empty",
        caught_by=(QUEUES + "test_the_items_of_a_stopped_run_are_worked_off_before_it_is_stopped_and_start_nothing",),
    ),
    Mutant(
        name="a call that died with its process has finished",
        breaks="Fates",
        file="_engine/instrumentation/processes.py",
        snippet="if not (is_forced and isinstance(error, concurrent.futures.BrokenExecutor)):",
        replacement="if True:",
        caught_by=(
            POOLS + "test_a_call_that_dies_with_its_process_was_cut_and_one_that_had_not_begun_is_skipped[kill-killed]",
        ),
    ),
    Mutant(
        name="a call that no process has begun was cut",
        breaks="Fates",
        file="_engine/instrumentation/processes.py",
        snippet="elif self._has_begun(future):",
        replacement="elif True:",
        caught_by=(
            POOLS + "test_a_call_that_dies_with_its_process_was_cut_and_one_that_had_not_begun_is_skipped[kill-killed]",
        ),
    ),
    Mutant(
        name="a call in a shared pool of multiprocessing is outside the run",
        breaks="G8",
        file="_engine/instrumentation/processes.py",
        snippet="    if any(_owners.get(pool) is each for each in run.lineage()):",
        replacement="    if True:",
        caught_by=(POOLS + "test_of_a_shared_pool_of_multiprocessing_the_call_takes_part[apply_async]",),
    ),
    Mutant(
        name="a queued call is skipped though another run waits for it",
        breaks="G4",
        file="_engine/executors.py",
        snippet="            self._waiter = scope\n",
        replacement="            pass\n",
        caught_by=("tests/plain/test_callbacks.py::TestACallThatTheStopSkipped",),
    ),
    Mutant(
        name="a tool was cancelled though its thread works on",
        breaks="Fates",
        file="_engine/executors.py",
        snippet="working_inside(inside), self._boundary()",
        replacement="working_inside(None), self._boundary()",
        caught_by=(
            SPEC
            + "test_fates.py::test_a_tool_whose_thread_works_on_after_cancel_ends_with_the_thread[plain-to_thread]",
        ),
    ),
    Mutant(
        name="a tool was cancelled though the thread of a task that it waits for works on",
        breaks="Fates",
        file="_core/boundary.py",
        snippet="    if entry is None and here is not None:",
        replacement="    if False:",
        caught_by=(
            SPEC
            + "test_fates.py::test_a_tool_whose_thread_works_on_after_cancel_ends_with_the_thread[plain-_in_gather]",
        ),
    ),
    Mutant(
        name="calls in an executor that the loop already has are outside the run",
        breaks="G1",
        file="_engine/executors.py",
        snippet="        carry_runs(executor)",
        replacement="        pass",
        caught_by=(EXECUTORS + "test_without_instrument_calls_in_an_executor_that_the_loop_already_has_take_part_too",),
    ),
    Mutant(
        name="a module keeps the loader of instrument()",
        breaks="the host",
        file="_engine/instrumentation/patches.py",
        snippet="        module.__loader__ = self._loader\n",
        replacement="",
        caught_by=(INSTALL + "test_a_loader_that_serves_many_modules_is_left_as_it_is",),
    ),
    Mutant(
        name="a second instrument() forgets what the first included",
        breaks="the host",
        file="_engine/instrumentation/user_code.py",
        snippet="dict.fromkeys((*_included, *modules))",
        replacement="modules",
        caught_by=(INSTALL + "test_a_second_call_adds_to_what_is_included_and_spared_and_undoing_forgets_both",),
    ),
)
