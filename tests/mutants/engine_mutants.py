"""Deliberate mistakes in the engine."""

from .mutant import FOUND, GAPS, GENERATORS, PLAIN, SPEC, UNIT, Mutant

_TOLD = SPEC + "test_fates.py::test_a_remote_that_cannot_confirm_its_end_is_told_and_its_run_is_not_lost"

ENGINE_MUTANTS = (
    Mutant(
        name="a branch that meets the stop cuts the call of its sibling",
        breaks="G11",
        file="_engine/waits.py",
        snippet="return run.rung is None and all(",
        replacement="return False and all(",
        caught_by=(UNIT + "test_siblings.py::test_it_waits_no_longer_than_the_grace[False]",),
    ),
    Mutant(
        name="the run's own task waits for its branches before it cleans up",
        breaks="G7",
        file="_engine/waits.py",
        snippet="me is not run.main and ",
        replacement="",
        caught_by=(UNIT + "test_siblings.py::test_the_runs_own_task_cleans_up_at_once",),
    ),
    Mutant(
        name="a final receipt changes when something looks that the run left behind",
        breaks="G2",
        file="_core/stop.py",
        snippet="for stop in stops) if outcome is None else run.was_blind",
        replacement="for stop in stops)",
        caught_by=(FOUND + "test_the_final_receipt_of_a_child_stays_when_its_parent_turns_out_not_to_be_blind",),
    ),
    Mutant(
        name="a run that looked once, long ago, gets the full grace",
        breaks="G6",
        file="_core/stop.py",
        snippet="since = self.requested_at - max(self.target.policy.blind_grace, _FRESH_SECONDS)",
        replacement="since = 0.0",
        caught_by=(
            SPEC + "test_g06_bounded.py::"
            "test_a_run_that_has_not_looked_for_longer_than_its_blind_grace_is_blind_again[_looks_by_checking]",
        ),
    ),
    Mutant(
        name="the time at which runs look stands still",
        breaks="G11",
        file="_engine/control.py",
        snippet="                clock.coarse.now = clock.now()\n                self._wakes_at = math.inf",
        replacement="                self._wakes_at = math.inf",
        caught_by=(SPEC + "test_g06_bounded.py::test_a_run_that_keeps_looking_is_not_blind_however_long_it_works",),
    ),
    Mutant(
        name="a run is blind though it has a hook that is told of the stop",
        breaks="G11",
        file="_core/node.py",
        snippet="if member.is_look and member.moment in _LISTENING:",
        replacement="if False:",
        caught_by=(
            SPEC + "test_g06_bounded.py::"
            "test_a_run_in_which_something_would_notice_the_stop_is_not_blind[True-_looks_by_a_hook]",
        ),
    ),
    Mutant(
        name="a handler of any cancelled error passes for clean-up",
        breaks="G5",
        file="_engine/instrumentation/scopes.py",
        snippet="return tasks.is_own(error) or _is_passed_down(run)",
        replacement="return True",
        caught_by=(
            PLAIN
            + "test_cleanup.py::test_a_handler_of_another_exception_is_ordinary_work[_cancelled_a_child-graceful]",
        ),
    ),
    Mutant(
        name="an error that a framework made of the stop passes for clean-up",
        breaks="G5",
        file="_engine/instrumentation/scopes.py",
        snippet="if error is not replaced_error and _is_stop_of(run, error) and _is_handled_above(error):",
        replacement="if _is_stop_of(run, error):",
        caught_by=(PLAIN + "test_cleanup.py::test_an_error_that_a_framework_made_of_the_stop_is_no_clean_up",),
    ),
    Mutant(
        name="a cancelled error of the body's own is a stop",
        breaks="G8",
        file="_engine/edge.py",
        snippet="return not is_own_cancel(outsider) and not self._was_cancelled_since_it_opened()",
        replacement="return False",
        caught_by=(
            SPEC + "test_g08_honest_outcome.py::"
            "test_an_agent_that_nobody_cancelled_and_that_ends_in_a_cancelled_error_has_failed[_raised]",
        ),
    ),
    Mutant(
        name="tasks that a library started are not cancelled with their run",
        breaks="G6",
        file="_engine/tasks.py",
        snippet="if targets and run.rung is not None and run.rung >= Rung.CANCEL:",
        replacement="if False:",
        caught_by=(SPEC + "test_ordinary_agents.py::test_a_task_that_was_left_behind_is_cancelled_with_its_run",),
    ),
    Mutant(
        name="CANCEL is sent again to a task that is unwinding",
        breaks="G7",
        file="_engine/tasks.py",
        snippet="if self._is_unwinding():",
        replacement="if False:",
        caught_by=(GAPS + "test_a_task_on_its_way_out_gets_no_second_cancel_for_a_run_further_out",),
    ),
    Mutant(
        name="a shield does not hold CANCEL back",
        breaks="G7",
        file="_engine/tasks.py",
        snippet="if shield_ends > clock.now():",
        replacement="if False:",
        caught_by=(SPEC + "test_g07_cleanup.py::test_a_shield_holds_cancel_back_until_it_is_left",),
    ),
    Mutant(
        name="force misses a sibling once the body has ended",
        breaks="G6",
        file="_engine/tasks.py",
        snippet="(run.body_end is not None and run not in (self._joined_runs or ()))",
        replacement="run.body_end is not None",
        caught_by=(FOUND + "test_a_sibling_that_outlives_the_body_is_cancelled",),
    ),
    Mutant(
        name="force follows a task into the run around the one that has ended",
        breaks="G13",
        file="_engine/tasks.py",
        snippet=" or (run.body_end is not None and run not in (self._joined_runs or ()))",
        replacement="",
        caught_by=(
            SPEC + "test_g13_no_misdelivery.py::test_a_cancel_for_a_child_that_has_ended_does_not_hit_its_parent",
        ),
    ),
    Mutant(
        name="a foreign thread passes for the task of the run",
        breaks="G8, G13",
        file="_engine/asyncio_engine.py",
        snippet="main is not None and main.thread._is_owned() and",
        replacement="main is not None and main.task is not None and",
        caught_by=(
            UNIT + "test_threads.py::test_a_foreign_thread_does_not_pass_for_the_task_that_waits_for_it_in_mid_step",
        ),
    ),
    Mutant(
        name="our cancels are not paid back",
        breaks="G9",
        file="_engine/tasks.py",
        snippet="            self.task.uncancel()\n",
        replacement="            pass\n",
        caught_by=(
            SPEC + "test_g09_no_stolen_cancellation.py::test_our_cancel_leaves_nothing_behind_in_the_callers_task",
        ),
    ),
    Mutant(
        name="somebody else's cancel is swallowed",
        breaks="G9",
        file="_engine/edge.py",
        snippet="""\
            self._close(result, stop, outsider, rest)
            if outsider is not None:
                raise outsider
        if self.run.outcome is None:
""",
        replacement="""\
            self._close(result, stop, outsider, rest)
        if self.run.outcome is None:
""",
        caught_by=(SPEC + "test_g09_no_stolen_cancellation.py::test_a_timeout_around_a_run_is_a_timeout_at_once",),
    ),
    Mutant(
        name="CANCEL sends no TERM to a process group",
        breaks="G6",
        file="_engine/processes/group.py",
        snippet="""\
        else:
            self._ask(Force.TERM)
""",
        replacement="",
        caught_by=(SPEC + "test_g06_bounded.py::test_cancel_is_term_to_a_process_group",),
    ),
    Mutant(
        name="KILL is another TERM to a process group",
        breaks="G6",
        file="_engine/processes/group.py",
        snippet="""\
        if rung > Rung.CANCEL:
            self.kill()
""",
        replacement="""\
        if rung > Rung.CANCEL:
            self._ask(Force.TERM)
""",
        caught_by=(SPEC + "test_g06_bounded.py::test_what_cannot_be_ended_is_lost_within_the_total[process group]",),
    ),
    Mutant(
        name="a process group is dead when its leader is",
        breaks="G8",
        file="_engine/processes/group.py",
        snippet="return not self._is_gone",
        replacement="return self.returncode is None",
        caught_by=(
            SPEC + "test_g08_honest_outcome.py::test_a_process_that_its_group_left_behind_keeps_the_run_stopping",
        ),
    ),
    Mutant(
        name="the output of a command that was ended is dropped",
        breaks="G11",
        file="_engine/processes/group.py",
        snippet="self._context.run(append_partial, text)",
        replacement="pass",
        caught_by=(
            SPEC + "test_g11_finished_work_is_kept.py::test_what_a_command_wrote_before_it_was_ended_is_in_the_outcome",
        ),
    ),
    Mutant(
        name="a generator agent runs on after the stop of its reader",
        breaks="G5",
        file="_engine/bodies.py",
        snippet="if context.current.get().closed:",
        replacement="if False:",
        caught_by=(GENERATORS + "test_a_stop_of_the_reader_lands_between_two_items_and_closes_it",),
    ),
    Mutant(
        name="force on a generator agent hits the task that reads it",
        breaks="G13",
        file="_engine/bodies.py",
        snippet="self._is_over = not self._context.run(self._edge.open, self)",
        replacement="self._is_over = not self._context.run(self._edge.open)",
        caught_by=(GENERATORS + "test_a_stop_of_it_alone_leaves_its_reader_alone_whatever_the_force",),
    ),
    Mutant(
        name="a count that a TaskGroup left behind is a cancel",
        breaks="G4, G9",
        file="_engine/edge.py",
        snippet="return count > self._foreign_at_open and foreign_cancel_in(cancel) is not None",
        replacement="return count > self._foreign_at_open",
        caught_by=(UNIT + "test_edges.py::test_a_count_that_a_task_group_left_behind_is_nobodys_cancel",),
    ),
    Mutant(
        name="a cancel from before ours is forgotten",
        breaks="G9",
        file="_engine/edge.py",
        snippet="foreign_cancel_in(error) if self.participant.foreign_cancels() > self._foreign_at_open else None",
        replacement="None",
        caught_by=(
            UNIT + "test_edges.py::test_a_stop_that_is_raised_while_an_outside_cancel_unwinds_does_not_hide_it",
        ),
    ),
    Mutant(
        name="a KILL that comes while ours arrives is not paid back",
        breaks="G9",
        file="_engine/edge.py",
        snippet="                participant.uncancel_own(self._own_at_open)  # a KILL may have come by now\n",
        replacement="",
        caught_by=(UNIT + "test_edges.py::test_a_kill_that_comes_while_the_edge_lets_our_cancel_in_hits_nobody_else",),
    ),
    Mutant(
        name="any run pays our cancel back",
        breaks="G8",
        file="_engine/tasks.py",
        snippet="return self.own_cancels > before and self._unwinding is not None and run.is_within(self._unwinding)",
        replacement="return self.own_cancels > before",
        caught_by=(UNIT + "test_edges.py::test_a_run_that_is_no_part_of_the_stopped_one_passes_its_cancel_on",),
    ),
    Mutant(
        name="a run that was cut is not told so",
        breaks="G8",
        file="_engine/edge.py",
        snippet="        run.deliver(raised=True)  # it was cut off, although",
        replacement="        #",
        caught_by=(UNIT + "test_edges.py::test_a_run_of_a_clean_up_that_is_cut_at_the_end_of_its_shield_is_stopped",),
    ),
    Mutant(
        name="what comes while children end hides the error",
        breaks="G8",
        file="_engine/edge.py",
        snippet="return stop or late_stop, outsider or late_outsider, rest or late_rest",
        replacement="return late_stop, late_outsider, late_rest",
        caught_by=(
            UNIT + "test_edges.py::test_the_error_of_a_body_is_kept_though_a_stop_comes_while_its_children_end",
        ),
    ),
    Mutant(
        name="the time in which a loop is blocked counts",
        breaks="G6, G7",
        file="_engine/ladder.py",
        snippet="due_at + max(stalled, default=frozen)",
        replacement="due_at + frozen",
        caught_by=(SPEC + "test_g06_busy_loop.py::test_a_clean_up_has_its_time_after_the_loop_was_blocked",),
    ),
    Mutant(
        name="a dead loop holds a stop for ever",
        breaks="G6",
        file="_engine/ladder.py",
        snippet="if now >= latest or (now",
        replacement="if (now",
        caught_by=(
            SPEC + "test_g06_busy_loop.py::test_a_loop_that_is_blocked_for_ever_does_not_hold_a_stop_for_ever[policy0]",
        ),
    ),
    Mutant(
        name="a run that blocks its own loop delays its ladder",
        breaks="G6",
        file="_engine/ladder.py",
        snippet="rung is not Rung.LOST and tasks.current_task(seat.loop) is seat.task",
        replacement="False",
        caught_by=(SPEC + "test_g06_busy_loop.py::test_a_loop_that_the_run_itself_blocks_delays_no_rung_but_lost",),
    ),
    Mutant(
        name="a run is given up without a last look at its loop",
        breaks="G6, G8",
        file="_engine/ladder.py",
        snippet="(over_at if rung is Rung.LOST else began_at)",
        replacement="(float('-inf') if rung is Rung.LOST else began_at)",
        caught_by=(SPEC + "test_g06_busy_loop.py::test_what_was_about_to_end_when_the_time_was_over_has_ended",),
    ),
    Mutant(
        name="a run is given up before its processes were searched again",
        breaks="G6, G8",
        file="_engine/ladder.py",
        snippet=" and not is_searching",
        replacement="",
        caught_by=(SPEC + "test_g06_busy_loop.py::test_processes_are_searched_once_more_before_they_are_given_up",),
    ),
    Mutant(
        name="a machine that is always too busy holds a stop for ever",
        breaks="G6",
        file="_engine/ladder.py",
        snippet="began_at + bound + suspended",
        replacement="began_at + bound + frozen",
        caught_by=(
            SPEC + "test_g06_busy_loop.py::test_a_machine_that_is_always_too_busy_does_not_hold_a_stop_for_ever",
        ),
    ),
    Mutant(
        name="the time in which the process was suspended counts",
        breaks="G6, G7",
        file="_engine/ladder.py",
        snippet="frozen = control.covered_seconds(starved, began_at)",
        replacement="frozen, starved = 0.0, []",
        caught_by=(SPEC + "test_g06_busy_loop.py::test_the_time_in_which_the_process_was_suspended_does_not_count",),
    ),
    Mutant(
        name="each ladder pings its loop",
        breaks="G6",
        file="_engine/control.py",
        snippet="if loop is None or self._sent_at is not None:",
        replacement="if loop is None:",
        caught_by=(SPEC + "test_g06_busy_loop.py::test_many_ladders_share_one_ping_of_their_loop",),
    ),
    Mutant(
        name="what the control thread starts inherits its blocked signals",
        breaks="G6",
        file="_engine/control.py",
        snippet="            _restore_signals(blocked)",
        replacement="            pass",
        caught_by=(UNIT + "test_signals_and_stalls.py::test_what_the_control_thread_starts_does_not_inherit_its_mask",),
    ),
    Mutant(
        name="a stalled control thread is not replaced",
        breaks="G6",
        file="_engine/control.py",
        snippet="if is_alive and self._misses < _MISSES:",
        replacement="if is_alive:",
        caught_by=(
            UNIT
            + "test_signals_and_stalls.py::test_another_thread_takes_over_and_the_log_says_where_the_stalled_one_is",
        ),
    ),
    Mutant(
        name="two control threads fire the same timers",
        breaks="G6, G7",
        file="_engine/control.py",
        snippet="while self._thread is thread and (due",
        replacement="while (due",
        caught_by=(
            UNIT
            + "test_signals_and_stalls.py::test_another_thread_takes_over_and_the_log_says_where_the_stalled_one_is",
        ),
    ),
    Mutant(
        name="a large tree is climbed at once",
        breaks="G6",
        file="_engine/ladder.py",
        snippet="max(when, clock.now()) >= slice_end",
        replacement="when >= slice_end",
        caught_by=(UNIT + "test_bounded_control.py::test_other_timers_are_fired_while_a_large_tree_is_climbed",),
    ),
    Mutant(
        name="the receipt of each run reads the whole tree",
        breaks="G6",
        file="_core/stop.py",
        snippet="stop if stop.target is run else stop.by_run().part(run)",
        replacement="stop",
        caught_by=(UNIT + "test_bounded_control.py::test_the_receipts_of_all_runs_do_not_each_read_the_whole_tree",),
    ),
    Mutant(
        name="the time between two pings of a loop with long turns counts",
        breaks="G6",
        file="_engine/control.py",
        snippet="if is_late and now < self._wanted_until:",
        replacement="if False:",
        caught_by=(
            SPEC + "test_g06_busy_loop.py::test_a_loop_with_one_long_turn_after_another_is_measured_throughout",
        ),
    ),
    Mutant(
        name="a remote that cannot confirm its end makes the run lost",
        breaks="fates",
        file="_engine/remote.py",
        snippet="_NO_END = (Fate.ABANDONED, Fate.UNREACHABLE)\n",
        replacement="_NO_END = (Fate.ABANDONED, Fate.UNREACHABLE, Fate.TOLD)\n",
        caught_by=(_TOLD + "[graceful-False]", _TOLD + "[immediate-True]"),
    ),
    Mutant(
        name="a remote that was told to stop counts as one that came to its own end",
        breaks="G8",
        file="_engine/remote.py",
        snippet="_BY_ITSELF = (Fate.FINISHED, Fate.SKIPPED)\n",
        replacement="_BY_ITSELF = (Fate.FINISHED, Fate.SKIPPED, Fate.TOLD)\n",
        caught_by=(_TOLD + "[graceful-True]", _TOLD + "[immediate-True]"),
    ),
)
