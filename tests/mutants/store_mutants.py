"""Deliberate mistakes in the stores, in the rules that they share, and in what keeps runs in them.

The contract sees those of the store in memory, and so do the random lives where nearly every life comes to it.
"""

from functools import partial

from .mutant import Mutant

MEMORY = "stores/memory.py"
RULES = "stores/rules.py"
WRITER = "stores/sqlite/lite_engine.py"
DURABILITY = "tests/stores/test_sqlite_durability.py::"
LEASE = "supervisor/lease.py"
LEASES = "tests/supervisor/test_lease.py::"
CONTRACT = "tests/stores/test_memory.py::TestMemoryStore::"
SHARED = "tests/stores/test_sqlite.py::TestSqliteStore::"
StoreMutant = partial(Mutant, machine="tests/stores/test_memory_machine.py")

STORE_MUTANTS = (
    StoreMutant(
        name="an end is written without a comparison",
        breaks="I1, G2",
        file=MEMORY,
        snippet="if run.record.over or run.record.epoch != epoch:",
        replacement="if False:",
        caught_by=(
            CONTRACT + "test_the_second_end_changes_nothing_and_becomes_a_late_event",
            CONTRACT + "test_of_many_ends_at_once_one_wins",
        ),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a late report overwrites the end",
        breaks="I1, G2",
        file=MEMORY,
        snippet="            self._add(run, [rules.late_event(outcome)])\n",
        replacement="""\
            self._add(run, [rules.late_event(outcome)])
            run.record = replace(run.record, status=outcome.status, outcome=outcome)
""",
        caught_by=(CONTRACT + "test_a_reaped_worker_is_fenced_and_so_is_all_that_it_writes",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="nothing is fenced",
        breaks="I4, G15",
        file=MEMORY,
        snippet="if run.record.epoch != epoch or run.record.over:",
        replacement="if False:",
        caught_by=(
            CONTRACT + "test_an_old_epoch_adds_nothing",
            CONTRACT + "test_an_acknowledgement_with_another_epoch_is_fenced",
        ),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="an end leaves the epoch as it was",
        breaks="I4, G15",
        file=RULES,
        snippet="epoch=record.epoch + 1,",
        replacement="epoch=record.epoch,",
        caught_by=(CONTRACT + "test_an_end_bumps_the_epoch",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a child is born blind to the stop of its parent",
        breaks="I5, G4",
        file=RULES,
        snippet="""\
    if parent.stop is not None or not parent.over:
        return parent.stop
""",
        replacement="""\
    if not parent.over:
        return None
""",
        caught_by=(
            CONTRACT + "test_a_child_of_a_stopping_parent_is_born_stopped_with_its_stop",
            CONTRACT + "test_a_child_that_is_born_while_its_tree_is_stopped_does_not_slip_through",
        ),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a child is born to a parent that is over",
        breaks="I5, G4",
        file=RULES,
        snippet="if parent.stop is not None or not parent.over:",
        replacement="if True:",
        caught_by=(CONTRACT + "test_a_child_of_a_parent_that_has_ended_by_itself_is_born_stopped",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a stop forgets the subtree",
        breaks="I5, G4",
        file=MEMORY,
        snippet="for node in run.subtree():\n                    self._stop(",
        replacement="for node in [run]:\n                    self._stop(",
        caught_by=(CONTRACT + "test_a_stop_marks_the_whole_subtree_and_nothing_else",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a harder stop is no event",
        breaks="what whoever follows a run is told",
        file=MEMORY,
        snippet="if record.status is not Status.PENDING:\n            self._add(",
        replacement="if record.status is Status.RUNNING:\n            self._add(",
        caught_by=(CONTRACT + "test_whoever_follows_a_run_hears_of_each_harder_stop_and_of_no_other",),
    ),
    StoreMutant(
        name="the lease begins with the first heartbeat",
        breaks="I2",
        file=MEMORY,
        snippet="self._leases[info.id] = self._lease_clock() + ttl",
        replacement='self._leases[info.id] = float("inf")',
        caught_by=(CONTRACT + "test_a_worker_that_dies_before_its_first_heartbeat_is_seen",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a heartbeat does not renew the lease",
        breaks="I9",
        file=MEMORY,
        snippet="self._leases[worker] = self._lease_clock() + ttl",
        replacement="pass",
        caught_by=(CONTRACT + "test_a_worker_that_renews_in_time_is_never_reaped",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a worker that was reaped keeps its lease",
        breaks="I4, G15",
        file=MEMORY,
        snippet="                del self._leases[worker]\n",
        replacement="                pass\n",
        caught_by=(CONTRACT + "test_a_worker_that_was_reaped_starts_nothing",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="stopped on an expired lease",
        breaks="G8",
        file=RULES,
        snippet="    if not proven_dead:\n",
        replacement="    if not proven_dead and record.stop is None:\n",
        caught_by=(CONTRACT + "test_an_expired_lease_proves_nothing_and_leaves_lost",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="an expired lease counts though nobody asked for it",
        breaks="I9",
        file=MEMORY,
        snippet="        if expired:\n",
        replacement="        if True:\n",
        caught_by=(CONTRACT + "test_without_expired_only_the_proven_dead_are_reaped",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a hold is placed after the runs were listed",
        breaks="G14",
        file=MEMORY,
        snippet="""\
        hold = None if on_hold is None else self._place(on_hold, intent, dry_run=request.dry_run)
        targets = self._select(target, owner)
""",
        # With the moment between the two that two statements of a database have.
        replacement="""\
        targets = self._select(target, owner)
        if on_hold is not None:
            self._lock.release()
            threading.Event().wait(0.02)
            self._lock.acquire()
        hold = None if on_hold is None else self._place(on_hold, intent, dry_run=request.dry_run)
""",
        caught_by=(CONTRACT + "test_a_run_that_starts_while_all_are_stopped_and_held_does_not_slip_through",),
    ),
    StoreMutant(
        name="the mode of a stop can fall",
        breaks="G6",
        file=RULES,
        snippet="    if intent.mode <= earlier.mode:\n",
        replacement="    if intent.mode == earlier.mode:\n",
        caught_by=(
            CONTRACT + "test_a_stop_that_is_no_harder_changes_nothing",
            CONTRACT + "test_of_many_stops_at_once_the_hardest_mode_stays",
        ),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a harder stop brings its own reason",
        breaks="G3",
        file=RULES,
        snippet="    return replace(earlier, mode=intent.mode, grace=intent.grace)\n",
        replacement="    return intent\n",
        caught_by=(CONTRACT + "test_a_harder_stop_escalates_and_the_first_reason_and_time_stay",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a stop is told once and not when it gets harder",
        breaks="I2, G14",
        file=RULES,
        snippet="return record.acknowledged is not None and record.acknowledged >= record.stop.mode",
        replacement="return record.acknowledged is not None",
        caught_by=(CONTRACT + "test_a_stop_that_was_acknowledged_comes_again_when_it_gets_harder",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a key is forgotten",
        breaks="I8, G10",
        file=MEMORY,
        snippet="if request.idempotency_key is not None and (owner, request.idempotency_key) in self._earlier_answers:",
        replacement="if False:",
        caught_by=(CONTRACT + "test_the_same_key_again_returns_the_first_answer_and_changes_nothing",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a stop reaches the runs of another owner",
        breaks="I6",
        file=MEMORY,
        snippet="return None if run is None or owner not in {None, run.record.owner} else [run]",
        replacement="return None if run is None else [run]",
        caught_by=(CONTRACT + "test_a_run_of_another_owner_is_not_found",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a stop of a key looks for runs and waits for one in two steps",
        breaks="G14",
        file=MEMORY,
        snippet='            if not targets and request.if_unknown != "ignore" and isinstance(target, Selector):\n',
        replacement="""\
            if not targets and request.if_unknown != "ignore" and isinstance(target, Selector):
                self._lock.release()
                threading.Event().wait(0.02)
                self._lock.acquire()
""",
        caught_by=(CONTRACT + "test_a_run_that_starts_while_its_key_is_stopped_does_not_slip_through",),
    ),
    StoreMutant(
        name="a start looks for a stop of its key and registers in two steps",
        breaks="G14",
        file=MEMORY,
        snippet='        addresses = [("run", record.id)] + ([] if record.key is None else [("key", record.key)])\n',
        replacement="""\
        addresses = [("run", record.id)] + ([] if record.key is None else [("key", record.key)])
        if record.key is not None and parent is None:
            found = self._tombstones.take(addresses, record.owner, now)
            del self._live[record.id]
            self._lock.release()
            threading.Event().wait(0.02)
            self._lock.acquire()
            self._live[record.id] = self._runs[record.id]
            return found
""",
        caught_by=(CONTRACT + "test_a_run_that_starts_while_its_key_is_stopped_does_not_slip_through",),
    ),
    StoreMutant(
        name="a stop that met a run goes on waiting",
        breaks="G4",
        file=MEMORY,
        snippet="self._waiting.pop((address, stop_owner), (now, None))",
        replacement="self._waiting.get((address, stop_owner), (now, None))",
        caught_by=(CONTRACT + "test_a_stop_that_comes_first_stops_the_next_run_of_its_key_and_no_other",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a stop of a key that found a run waits for another",
        breaks="G4",
        file=MEMORY,
        snippet='if not targets and request.if_unknown != "ignore" and isinstance(target, Selector):',
        replacement='if request.if_unknown != "ignore" and isinstance(target, Selector):',
        caught_by=(CONTRACT + "test_a_stop_of_a_key_means_its_live_runs_with_their_subtrees",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a stop of a key is forgotten before its run starts",
        breaks="G14",
        file=MEMORY,
        snippet='([] if record.key is None else [("key", record.key)])',
        replacement="[]",
        caught_by=(CONTRACT + "test_a_stop_that_comes_first_stops_the_next_run_of_its_key_and_no_other",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a stop of a key reaches other conversations",
        breaks="I6",
        file="records.py",
        snippet="            and (self.key is None or self.key == key)\n",
        replacement="            and (self.key is None or key is not None)\n",
        caught_by=(CONTRACT + "test_a_stop_of_a_key_means_its_live_runs_with_their_subtrees",),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a stop of a key that is repeated meets the next turn",
        breaks="G10",
        file=MEMORY,
        snippet="""\
                self._earlier_answers[owner, request.idempotency_key] = (self.now(), by_id, hold, until)
""",
        replacement="""\
                if by_id:
                    self._earlier_answers[owner, request.idempotency_key] = (self.now(), by_id, hold, until)
""",
        caught_by=(CONTRACT + "test_a_stop_that_waited_is_not_placed_again_by_its_idempotency_key",),
    ),
    StoreMutant(
        name="a bulk stop names the runs below those that it names",
        breaks="I8",
        file=MEMORY,
        snippet="return [run for run in matches.values() if matches.keys().isdisjoint(run.above())]",
        replacement="return list(matches.values())",
        caught_by=(
            CONTRACT + "test_a_selector_answers_for_the_topmost_of_the_runs_that_it_means_and_marks_their_subtrees",
        ),
        the_machine_sees_it=True,
    ),
    StoreMutant(
        name="a log that is full ends without a word",
        breaks="I7",
        file=MEMORY,
        snippet="draft = Draft(type=EventType.TRUNCATED)  # noqa: PLW2901 - in its place",
        replacement="continue",
        caught_by=(CONTRACT + "test_a_full_log_is_truncated_once_and_keeps_the_statuses",),
    ),
    Mutant(
        name="two processes share a file without a lock",
        breaks="G14",
        file=WRITER,
        snippet='            self._connection.execute("BEGIN IMMEDIATE")\n',
        # Both have looked before either writes.
        replacement="""\
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM runs").fetchall()
            import threading
            meeting = threading.__dict__.setdefault("meeting", threading.Barrier(2))
            try:
                meeting.wait(0.2)
            except threading.BrokenBarrierError:
                meeting.reset()
""",
        caught_by=(
            SHARED + "test_a_stop_and_the_start_of_its_run_in_two_processes_do_not_miss_each_other",
            SHARED + "test_a_hold_and_starts_in_two_processes_do_not_miss_each_other",
            SHARED + "test_of_many_ends_in_two_processes_one_wins",
        ),
    ),
    Mutant(
        name="a stop is answered before it is durable",
        breaks="G14",
        file=WRITER,
        snippet="                sync()\n",
        replacement="                pass\n",
        caught_by=(DURABILITY + "test_a_stop_is_heard_while_the_disk_is_at_work_and_answered_after",),
    ),
    Mutant(
        name="an end is seen before it is durable",
        breaks="G2",
        file=WRITER,
        snippet="calls <= _NO_ENDS",
        replacement="True",
        caught_by=(DURABILITY + "test_an_end_is_durable_before_anybody_sees_it",),
    ),
    Mutant(
        name="what comes after a stop is not durable",
        breaks="G14",
        file=WRITER,
        snippet="by_sqlite=sync is None",
        replacement="by_sqlite=False",
        caught_by=(DURABILITY + "test_every_call_after_a_stop_is_durable_by_itself_again",),
    ),
    Mutant(
        name="a worker is fenced by its next heartbeat",
        breaks="G15",
        file=LEASE,
        snippet="                seconds = min(seconds, max(0.0, self._fenced_in()))\n",
        replacement="                pass\n",
        caught_by=(LEASES + "test_a_worker_is_fenced_while_its_lease_lasts_and_no_sooner_than_it_must",),
    ),
    Mutant(
        name="a run that cannot be kept is tried again with every event",
        breaks="I7",
        file="supervisor/log_writer.py",
        snippet="log.is_failing = log.is_held_up = True",
        replacement="log.is_failing = True",
        caught_by=(LEASES + "test_a_run_that_cannot_be_kept_is_tried_again_with_the_next_heartbeat_and_told_of_once",),
    ),
    StoreMutant(
        name="a run whose start failed is not looked for in the store",
        breaks="G14",
        file="supervisor/core.py",
        snippet="                self._unconfirmed[log.run.id] = clock.now() + _UNCONFIRMED_SECONDS\n",
        replacement="                pass\n",
        caught_by=(
            LEASES
            + "test_a_start_that_failed_although_the_store_has_the_run_leaves_no_run_that_nobody_executes[memory-True]",
        ),
    ),
)
