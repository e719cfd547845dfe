"""Deliberate mistakes in the core."""

from .mutant import FOUND, GAPS, SPEC, UNIT, Mutant

CORE_MUTANTS = (
    Mutant(
        name="the gate checks before it publishes",
        breaks="G1",
        file="_core/boundary.py",
        snippet="""\
        members[self] = True  # published first, then checked
        if run.closed or run.budget is not None or run.sink is not None:
            self._after_publishing(run, run)
""",
        replacement="""\
        if run.closed or run.budget is not None or run.sink is not None:
            self._after_publishing(run, run)
        members[self] = True
""",
        caught_by=(
            GAPS + "test_a_stop_that_comes_while_a_boundary_is_published_is_seen_by_it[with]",
            GAPS + "test_a_stop_that_comes_while_a_boundary_is_published_is_seen_by_it[async with]",
        ),
    ),
    Mutant(
        name="a shielded boundary checks before it publishes",
        breaks="G1",
        file="_core/boundary.py",
        snippet="""\
            run.admit(self)
            self._after_publishing(run, scope)
""",
        replacement="""\
            self._after_publishing(run, scope)
            run.admit(self)
""",
        caught_by=(GAPS + "test_a_stop_that_comes_while_a_shielded_boundary_is_published_lists_it",),
    ),
    Mutant(
        name="the receipt forgets what is in flight",
        breaks="G1",
        file="_core/node.py",
        snippet="stop.note_in_flight(self, member)",
        replacement="pass",
        caught_by=(
            SPEC + "test_g01_closed_gate.py::test_a_boundary_in_flight_finishes_and_the_next_is_not_entered[task]",
        ),
    ),
    Mutant(
        name="a finished run's gate stays open",
        breaks="G1",
        file="_core/node.py",
        snippet="        self.closed = True\n        if self._previous",
        replacement="        if self._previous",
        caught_by=(SPEC + "test_g01_closed_gate.py::test_a_finished_runs_gate_is_closed_too[task]",),
    ),
    Mutant(
        name="a terminal status is written over",
        breaks="G2",
        file="_core/node.py",
        snippet="if status not in self.status.followers:",
        replacement="if False:",
        caught_by=(GAPS + "test_an_end_after_the_run_was_given_up_changes_nothing",),
    ),
    Mutant(
        name="a later reason replaces the first",
        breaks="G3",
        file="_core/node.py",
        snippet="""\
        self._note(stop)
        self.closed = True
        if self.members:
""",
        replacement="""\
        self._later, self.first_stop = self.stops(), stop
        self.closed = True
        if self.members:
""",
        caught_by=(SPEC + "test_g03_latch.py::test_the_first_reason_stays_and_later_ones_are_appended[task]",),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="a stop marks the target only",
        breaks="G4",
        file="_core/node.py",
        snippet="[] if self.first_child is None else [self.first_child]",
        replacement="[]",
        caught_by=(
            SPEC + "test_g12_hooks.py::test_the_whole_subtree_is_marked_before_the_first_hook",
            SPEC + "test_g04_downward_only.py::test_a_stop_of_the_root_ends_the_whole_chain[task]",
        ),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="a stop reaches the parent",
        breaks="G4",
        file="_core/node.py",
        snippet="[] if self.first_child is None else [self.first_child]",
        replacement="[run for run in (self.parent or self.first_child,) if run is not None]",
        caught_by=(
            SPEC + "test_g04_downward_only.py::test_a_stop_of_one_child_leaves_parent_and_siblings_alone[task]",
        ),
    ),
    Mutant(
        name="a child is not born stopped",
        breaks="G4",
        file="_core/node.py",
        snippet="""\
            if self.closed:
                for stop in self.stops():
""",
        replacement="""\
            if self.closed and self.outcome is not None:
                for stop in self.stops():
""",
        caught_by=(SPEC + "test_g04_downward_only.py::test_a_child_created_after_the_stop_is_born_stopped",),
    ),
    Mutant(
        name="a finished run leaves the tree with what it left running",
        breaks="G4, G8",
        file="_core/node.py",
        snippet="if self._previous is not None and not self.is_alive():",
        replacement="if self._previous is not None:",
        caught_by=(
            FOUND + "test_a_stop_reaches_what_a_finished_child_left_running",
            FOUND + "test_a_run_is_not_stopped_while_a_task_of_a_finished_child_is_inside_a_boundary",
        ),
    ),
    Mutant(
        name="a child that has not begun counts as dead",
        breaks="G4, G8",
        file="_core/node.py",
        snippet="if run.outcome is None or run._is_executed():",
        replacement="if run._is_executed():",
        caught_by=(FOUND + "test_a_stop_reaches_a_child_of_a_finished_run_that_has_not_begun",),
    ),
    Mutant(
        name="a check raises once",
        breaks="G5",
        file="_core/boundary.py",
        snippet="""\
    if scope.closed:
        scope.raise_stopped()


""",
        replacement="""\
    if scope.closed and not scope.noticed:
        scope.raise_stopped()


""",
        caught_by=(SPEC + "test_g05_level_triggered.py::test_every_check_and_boundary_raises_again[task]",),
    ),
    Mutant(
        name="a stop of the same mode climbs again",
        breaks="G6, G10",
        file="_core/node.py",
        snippet="if stop.mode > max(earlier, key=lambda other: other.mode.rank).mode:",
        replacement="if stop.mode >= max(earlier, key=lambda other: other.mode.rank).mode:",
        caught_by=(
            SPEC + "test_g06_bounded.py::test_a_higher_mode_escalates_and_a_lower_one_changes_nothing[task]",
            SPEC + "test_g10_idempotent_stop.py::test_the_same_stop_again_returns_the_same_receipt[task]",
        ),
    ),
    Mutant(
        name="a mode may fall",
        breaks="G6",
        file="_core/node.py",
        snippet="if stop.mode > max(earlier, key=lambda other: other.mode.rank).mode:",
        replacement="if stop.mode != earlier[-1].mode:",
        caught_by=(SPEC + "test_g06_bounded.py::test_a_higher_mode_escalates_and_a_lower_one_changes_nothing[task]",),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="a second ladder climbs the same rung again",
        breaks="G7",
        file="_core/node.py",
        snippet="if self.rung is not None and self.rung >= rung:",
        replacement="if self.rung is not None and self.rung > rung:",
        caught_by=(GAPS + "test_two_ladders_send_one_cancel",),
    ),
    Mutant(
        name="a boundary on a foreign thread passes for one in the task of the run",
        breaks="G8, G13",
        file="_core/boundary.py",
        snippet="not main.thread._is_owned() or main.task is not participants.engine.current_task(main.loop):\n"
        "            # The rare case",
        replacement="main.task is not participants.engine.current_task(main.loop):\n            # The rare case",
        caught_by=(
            UNIT + "test_threads.py::test_a_foreign_thread_does_not_pass_for_the_task_that_waits_for_it_in_mid_step",
            UNIT + "test_threads.py::test_a_task_of_a_foreign_loop_does_not_pass_for_the_one_that_waits_for_it",
        ),
    ),
    Mutant(
        name="a shield lasts beyond KILL",
        breaks="G6, G7",
        file="_core/shield.py",
        snippet="return until if kill_at is None else min(until, kill_at)",
        replacement="return until",
        caught_by=(SPEC + "test_g07_cleanup.py::test_a_shield_ends_at_kill_at_the_latest",),
    ),
    Mutant(
        name="completed although the stop was delivered",
        breaks="G8",
        file="_core/node.py",
        snippet="""\
is_over = self.delivered_at is None and self._write(""",
        replacement="""\
is_over = self._write(""",
        caught_by=(
            SPEC + "test_g08_honest_outcome.py::"
            "test_an_agent_that_swallows_the_stop_and_returns_is_stopped_with_its_value[task]",
        ),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="should_stop() is no delivery",
        breaks="G8",
        file="_core/node.py",
        snippet="""\
        self.deliver(raised=True)
        return True

    def raise_stopped""",
        replacement="""\
        return True

    def raise_stopped""",
        caught_by=(SPEC + "test_g08_honest_outcome.py::test_should_stop_answering_true_is_a_delivery[task]",),
    ),
    Mutant(
        name="stopped while a participant is alive",
        breaks="G8",
        file="_core/node.py",
        snippet="if self.members and self._is_executed():",
        replacement="if False:",
        caught_by=(
            SPEC + "test_g08_honest_outcome.py::test_with_gather_a_sibling_that_runs_on_keeps_the_run_stopping",
        ),
    ),
    Mutant(
        name="stopped above a node that is lost",
        breaks="G8",
        file="_core/node.py",
        snippet="return self._conclude(_LOST if any(child.is_alive() for child in children) else _STOPPED)",
        replacement="return self._conclude(_STOPPED)",
        caught_by=(GAPS + "test_a_run_above_a_child_that_was_given_up_is_lost",),
    ),
    Mutant(
        name="what was given up below a finished run is no news to those above it",
        breaks="G8",
        file="_core/node.py",
        snippet="return True  # its leftovers were given up",
        replacement="return False",
        caught_by=(FOUND + "test_a_stopping_run_above_a_lost_node_is_lost_also_with_a_finished_run_in_between",),
    ),
    Mutant(
        name="an error while stopping is hidden",
        breaks="G8",
        file="_core/node.py",
        snippet="partial, error, clock.now())",
        replacement="partial, error if status is _FAILED else None, clock.now())",
        caught_by=(SPEC + "test_g08_honest_outcome.py::test_an_error_while_stopping_is_attached_and_not_clean[task]",),
    ),
    Mutant(
        name="a boundary raises on exit",
        breaks="G11",
        file="_core/boundary.py",
        snippet="""\
        self._note_fate(run, kind, error)
        if run.body_end is not None:
""",
        replacement="""\
        self._note_fate(run, kind, error)
        if error is None:
            run.raise_stopped()
        if run.body_end is not None:
""",
        caught_by=(
            SPEC + "test_g11_finished_work_is_kept.py::test_the_answer_of_a_call_in_flight_is_kept[cooperative]",
        ),
    ),
    Mutant(
        name="a partial of a stopped run is dropped",
        breaks="G11",
        file="_core/node.py",
        snippet="partial = None if self.recorded is None else",
        replacement="partial = None if self.recorded is None or self.first_stop else",
        caught_by=(
            SPEC + "test_g11_finished_work_is_kept.py::test_the_answer_of_a_call_in_flight_is_kept[cooperative]",
        ),
    ),
    Mutant(
        name="a hook is called by every stop",
        breaks="G12",
        file="_core/node.py",
        snippet="if member.moment is _AT_STOP and self.withdraw(member):",
        replacement="if member.moment is _AT_STOP:",
        caught_by=(SPEC + "test_g12_hooks.py::test_a_hook_is_called_once_however_often_the_run_is_stopped",),
    ),
    Mutant(
        name="one failing hook stops the others",
        breaks="G12",
        file="_core/hooks.py",
        snippet="""\
            _logger.exception("a hook of run %s failed", self.run.id)
""",
        replacement="""\
            _logger.exception("a hook of run %s failed", self.run.id)
            raise
""",
        caught_by=(SPEC + "test_g12_hooks.py::test_one_failing_hook_stops_no_other",),
    ),
    Mutant(
        name="a hook that comes late is not called",
        breaks="G12",
        file="_core/node.py",
        snippet="if self._is_past(hook.moment) and self.withdraw(hook):",
        replacement="if False:",
        caught_by=(SPEC + "test_g12_hooks.py::test_a_hook_registered_after_the_stop_is_called_at_once",),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="hooks are called under the lock",
        breaks="G12",
        file="_core/node.py",
        snippet="""\
                stop.target.sink.stopping(stop)
        if due.hooks:
            call_hooks(due.hooks)
""",
        replacement="""\
                stop.target.sink.stopping(stop)
        with lock:
            call_hooks(due.hooks)
""",
        caught_by=(GAPS + "test_hooks_of_ours_are_called_outside_the_lock",),
    ),
)
