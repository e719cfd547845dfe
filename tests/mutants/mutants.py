"""Deliberate mistakes in src/stoppable, and the tests that must see them.

A snippet occurs exactly once in its file. When the code changes, change the snippet with it: a mutant that is no longer
applied proves nothing, and test_mutants.py says so.
"""

from dataclasses import dataclass

SPEC = "tests/spec/"
UNIT = "tests/unit/"
FOUND = "tests/machine/test_found.py::"
GAPS = "tests/mutants/test_gaps.py::"
GENERATORS = "tests/unit/test_generators.py::TestCalledInARun::"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    breaks: str
    file: str
    snippet: str
    replacement: str
    caught_by: tuple[str, ...]
    the_machine_sees_it: bool = False
    """Whether the random lives of the state machine must come to it too; for those that nearly every life comes to."""
    machine: str = "tests/machine/test_tree_machine.py"


MUTANTS = (
    Mutant(
        name="the gate checks before it publishes",
        breaks="G1",
        file="_core/boundary.py",
        snippet="""\
        members[self] = True  # published first, checked then
        if run._closed or run._budget is not None or run._sink is not None:
            self._published(run, run)
""",
        replacement="""\
        if run._closed or run._budget is not None or run._sink is not None:
            self._published(run, run)
        members[self] = True
""",
        caught_by=(GAPS + "test_a_stop_that_comes_while_a_boundary_is_published_is_seen_by_it[with]",),
    ),
    Mutant(
        name="the gate of an async with checks before it publishes",
        breaks="G1",
        file="_core/boundary.py",
        snippet="""\
        members[self] = True
        if run._closed or run._budget is not None or run._sink is not None:
            self._published(run, run)
""",
        replacement="""\
        if run._closed or run._budget is not None or run._sink is not None:
            self._published(run, run)
        members[self] = True
""",
        caught_by=(GAPS + "test_a_stop_that_comes_while_a_boundary_is_published_is_seen_by_it[async with]",),
    ),
    Mutant(
        name="a shielded boundary checks before it publishes",
        breaks="G1",
        file="_core/boundary.py",
        snippet="""\
            run._admit(self)
            self._published(run, scope)
""",
        replacement="""\
            self._published(run, scope)
            run._admit(self)
""",
        caught_by=(GAPS + "test_a_stop_that_comes_while_a_shielded_boundary_is_published_lists_it",),
    ),
    Mutant(
        name="the receipt forgets what is in flight",
        breaks="G1",
        file="_core/run.py",
        snippet="stop.in_flight.append((self, member))",
        replacement="pass",
        caught_by=(
            SPEC + "test_g01_closed_gate.py::test_a_boundary_in_flight_finishes_and_the_next_is_not_entered[task]",
        ),
    ),
    Mutant(
        name="a finished run's gate stays open",
        breaks="G1",
        file="_core/run.py",
        snippet="        self._closed = True\n        if self._previous",
        replacement="        if self._previous",
        caught_by=(SPEC + "test_g01_closed_gate.py::test_a_finished_runs_gate_is_closed_too[task]",),
    ),
    Mutant(
        name="a terminal status is written over",
        breaks="G2",
        file="_core/run.py",
        snippet="if status not in self._where().followers:",
        replacement="if False:",
        caught_by=(GAPS + "test_an_end_after_the_run_was_given_up_changes_nothing",),
    ),
    Mutant(
        name="a later reason replaces the first",
        breaks="G3",
        file="_core/run.py",
        snippet="""\
        nodes.append(self)
        self._note(stop)
""",
        replacement="""\
        nodes.append(self)
        self._later, self._stop = self._stops(), stop
""",
        caught_by=(SPEC + "test_g03_latch.py::test_the_first_reason_stays_and_later_ones_are_appended[task]",),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="a stop marks the target only",
        breaks="G4",
        file="_core/run.py",
        snippet="[self._first]",
        replacement="[None]",
        caught_by=(
            SPEC + "test_g12_hooks.py::test_the_whole_subtree_is_marked_before_the_first_hook",
            SPEC + "test_g04_downward_only.py::test_a_stop_of_the_root_ends_the_whole_chain[task]",
        ),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="a stop reaches the parent",
        breaks="G4",
        file="_core/run.py",
        snippet="[self._first]",
        replacement="[self.parent or self._first]",
        caught_by=(
            SPEC + "test_g04_downward_only.py::test_a_stop_of_one_child_leaves_parent_and_siblings_alone[task]",
        ),
    ),
    Mutant(
        name="a child is not born stopped",
        breaks="G4",
        file="_core/run.py",
        snippet="""\
            if self._closed:
                for stop in self._stops():
""",
        replacement="""\
            if self._closed and self._outcome is not None:
                for stop in self._stops():
""",
        caught_by=(SPEC + "test_g04_downward_only.py::test_a_child_created_after_the_stop_is_born_stopped",),
    ),
    Mutant(
        name="a finished run leaves the tree with what it left running",
        breaks="G4, G8",
        file="_core/run.py",
        snippet="if self._previous is not None and not self._is_alive():",
        replacement="if self._previous is not None:",
        caught_by=(
            FOUND + "test_a_stop_reaches_what_a_finished_child_left_running",
            FOUND + "test_a_run_is_not_stopped_while_a_task_of_a_finished_child_is_inside_a_boundary",
        ),
    ),
    Mutant(
        name="a child that has not begun counts as dead",
        breaks="G4, G8",
        file="_core/run.py",
        snippet="if run._outcome is None or any(participant.alive() for participant in run._participants()):",
        replacement="if any(participant.alive() for participant in run._participants()):",
        caught_by=(FOUND + "test_a_stop_reaches_a_child_of_a_finished_run_that_has_not_begun",),
    ),
    Mutant(
        name="a check raises once",
        breaks="G5",
        file="_core/boundary.py",
        snippet="""\
    if scope._closed:
        scope._raise_stopped()


""",
        replacement="""\
    if scope._closed and not getattr(scope, "_raised", False):
        scope._raise_stopped()


""",
        caught_by=(SPEC + "test_g05_level_triggered.py::test_every_check_and_boundary_raises_again[task]",),
    ),
    Mutant(
        name="a stop of the same mode climbs again",
        breaks="G6, G10",
        file="_core/run.py",
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
        file="_core/run.py",
        snippet="if stop.mode > max(earlier, key=lambda other: other.mode.rank).mode:",
        replacement="if stop.mode != earlier[-1].mode:",
        caught_by=(SPEC + "test_g06_bounded.py::test_a_higher_mode_escalates_and_a_lower_one_changes_nothing[task]",),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="CANCEL is sent again to a task that is unwinding",
        breaks="G7",
        file="_engine/tasks.py",
        snippet="if self._unwinding is not None and self._unwinding._ended is None:",
        replacement="if False:",
        caught_by=(GAPS + "test_a_task_on_its_way_out_gets_no_second_cancel_for_a_run_further_out",),
    ),
    Mutant(
        name="a second ladder climbs the same rung again",
        breaks="G7",
        file="_core/run.py",
        snippet="if self._rung is not None and self._rung >= rung:",
        replacement="if self._rung is not None and self._rung > rung:",
        caught_by=(GAPS + "test_two_ladders_send_one_cancel",),
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
        snippet="(run._ended is not None and run not in (self._joined or ()))",
        replacement="run._ended is not None",
        caught_by=(FOUND + "test_a_sibling_that_outlives_the_body_is_cancelled",),
    ),
    Mutant(
        name="force follows a task into the run around the one that has ended",
        breaks="G13",
        file="_engine/tasks.py",
        snippet=" or (run._ended is not None and run not in (self._joined or ()))",
        replacement="",
        caught_by=(
            SPEC + "test_g13_no_misdelivery.py::test_a_cancel_for_a_child_that_has_ended_does_not_hit_its_parent",
        ),
    ),
    Mutant(
        name="a foreign thread passes for the task of the run",
        breaks="G8, G13",
        file="_engine/tasks.py",
        snippet="main is not None and main.thread._is_owned() and",
        replacement="main is not None and main.task is not None and",
        caught_by=(
            UNIT + "test_threads.py::test_a_foreign_thread_does_not_pass_for_the_task_that_waits_for_it_in_mid_step",
        ),
    ),
    Mutant(
        name="a boundary on a foreign thread passes for one in the task of the run",
        breaks="G8, G13",
        file="_core/boundary.py",
        snippet="not main.thread._is_owned() or main.task is not port.current_task(main.loop):\n"
        "            main = port.join(run)  #",
        replacement="main.task is not port.current_task(main.loop):\n            main = port.join(run)  #",
        caught_by=(
            UNIT + "test_threads.py::test_a_foreign_thread_does_not_pass_for_the_task_that_waits_for_it_in_mid_step",
        ),
    ),
    Mutant(
        name="an async boundary on a foreign thread passes for one in the task of the run",
        breaks="G8, G13",
        file="_core/boundary.py",
        snippet="not main.thread._is_owned() or main.task is not port.current_task(main.loop):\n"
        "            main = port.join(run)\n",
        replacement="main.task is not port.current_task(main.loop):\n            main = port.join(run)\n",
        caught_by=(
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
        file="_core/run.py",
        snippet="""\
is_over = self._delivered_at is None and self._write(""",
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
        file="_core/run.py",
        snippet="""\
        self._deliver()
        return True

    def _raise_stopped""",
        replacement="""\
        return True

    def _raise_stopped""",
        caught_by=(SPEC + "test_g08_honest_outcome.py::test_should_stop_answering_true_is_a_delivery[task]",),
    ),
    Mutant(
        name="stopped while a participant is alive",
        breaks="G8",
        file="_core/run.py",
        snippet="if self._members and any(participant.alive() for participant in self._participants()):",
        replacement="if False:",
        caught_by=(
            SPEC + "test_g08_honest_outcome.py::test_with_gather_a_sibling_that_runs_on_keeps_the_run_stopping",
        ),
    ),
    Mutant(
        name="stopped above a node that is lost",
        breaks="G8",
        file="_core/run.py",
        snippet="return self._conclude(_LOST if any(child._is_alive() for child in children) else _STOPPED)",
        replacement="return self._conclude(_STOPPED)",
        caught_by=(GAPS + "test_a_run_above_a_child_that_was_given_up_is_lost",),
    ),
    Mutant(
        name="what was given up below a finished run is no news to those above it",
        breaks="G8",
        file="_core/run.py",
        snippet="return self._is_alive() or self._leave_parent()",
        replacement="return not self._is_alive() and self._leave_parent()",
        caught_by=(FOUND + "test_a_stopping_run_above_a_lost_node_is_lost_also_with_a_finished_run_in_between",),
    ),
    Mutant(
        name="an error while stopping is hidden",
        breaks="G8",
        file="_core/run.py",
        snippet="partial, error, clock.now())",
        replacement="partial, error if status is _FAILED else None, clock.now())",
        caught_by=(SPEC + "test_g08_honest_outcome.py::test_an_error_while_stopping_is_attached_and_not_clean[task]",),
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
        file="_engine/scope.py",
        snippet="""\
            self._close(result, stop, outsider, rest)
            if outsider is not None:
                raise outsider
        if self.run._outcome is None:
""",
        replacement="""\
            self._close(result, stop, outsider, rest)
        if self.run._outcome is None:
""",
        caught_by=(SPEC + "test_g09_no_stolen_cancellation.py::test_a_timeout_around_a_run_is_a_timeout_at_once",),
    ),
    Mutant(
        name="a boundary raises on exit",
        breaks="G11",
        file="_core/boundary.py",
        snippet="""\
        self._note_fate(run, error)
        if run._ended is not None:
""",
        replacement="""\
        self._note_fate(run, error)
        if error is None:
            run._raise_stopped()
        if run._ended is not None:
""",
        caught_by=(
            SPEC + "test_g11_finished_work_is_kept.py::test_the_answer_of_a_call_in_flight_is_kept[cooperative]",
        ),
    ),
    Mutant(
        name="a partial of a stopped run is dropped",
        breaks="G11",
        file="_core/run.py",
        snippet="partial = None if self._partial is None else",
        replacement="partial = None if self._partial is None or self._stop else",
        caught_by=(
            SPEC + "test_g11_finished_work_is_kept.py::test_the_answer_of_a_call_in_flight_is_kept[cooperative]",
        ),
    ),
    Mutant(
        name="a hook is called by every stop",
        breaks="G12",
        file="_core/run.py",
        snippet="and self._outcome is None and self._withdraw(member)",
        replacement="and self._outcome is None",
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
        file="_core/run.py",
        snippet="if self._is_past(hook.moment) and self._withdraw(hook):",
        replacement="if False:",
        caught_by=(SPEC + "test_g12_hooks.py::test_a_hook_registered_after_the_stop_is_called_at_once",),
        the_machine_sees_it=True,
    ),
    Mutant(
        name="hooks are called under the lock",
        breaks="G12",
        file="_core/run.py",
        snippet="""\
                stop.target._sink.stopping(stop)
        call_hooks(due.hooks)
""",
        replacement="""\
                stop.target._sink.stopping(stop)
        with lock:
            call_hooks(due.hooks)
""",
        caught_by=(GAPS + "test_hooks_of_ours_are_called_outside_the_lock",),
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
        snippet="return not self._gone",
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
        file="_engine/generators.py",
        snippet="if context.current.get()._closed:",
        replacement="if False:",
        caught_by=(GENERATORS + "test_a_stop_of_the_reader_lands_between_two_items_and_closes_it",),
    ),
    Mutant(
        name="force on a generator agent hits the task that reads it",
        breaks="G13",
        file="_engine/generators.py",
        snippet="self._is_over = not self._context.run(self._edge.open, self)",
        replacement="self._is_over = not self._context.run(self._edge.open)",
        caught_by=(GENERATORS + "test_a_stop_of_it_alone_leaves_its_reader_alone_whatever_the_force",),
    ),
)
