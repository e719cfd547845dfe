"""Deliberate mistakes in how processes are found, ended and proven dead."""

from .mutant import UNIT, Mutant

_SEARCH = UNIT + "test_search.py::"
_REAPER = UNIT + "test_reaper.py::"
_CHAIN = _SEARCH + "test_a_chain_that_goes_on_after_each_listing_is_not_proven_dead"
_ORPHAN = "tests/plain/test_forks.py::test_a_fork_whose_parent_has_ended_is_dead_when_the_run_is_stopped"

PROCESS_MUTANTS = (
    Mutant(
        name="a process that ended unseen is no reason to search again",
        breaks="G8",
        file="_engine/processes/table.py",
        snippet="is_complete = False  # it ended after it was listed, and may have been a member",
        replacement="pass",
        caught_by=(_CHAIN + "[gone]",),
    ),
    Mutant(
        name="a zombie was one when it was listed",
        breaks="G8",
        file="_engine/processes/table.py",
        snippet="return False if was_dead else None",
        replacement="return False",
        caught_by=(_CHAIN + "[zombies]",),
    ),
    Mutant(
        name="pids never start again",
        breaks="G8",
        file="_engine/processes/table.py",
        snippet=" and last_pid() >= newest",
        replacement="",
        caught_by=(_SEARCH + "test_a_search_in_which_the_pids_start_again_is_no_proof",),
    ),
    Mutant(
        name="a process that is never where it was seen last is not chased",
        breaks="G6",
        file="_engine/processes/table.py",
        snippet="            yield from self._chase()\n",
        replacement="            pass\n",
        caught_by=(_SEARCH + "test_a_chain_that_goes_on_after_each_listing_is_chased_by_a_kill[gone]",),
    ),
    Mutant(
        name="a process in an exec belongs to nobody",
        breaks="G8",
        file="_engine/processes/table.py",
        snippet="return None  # it is in an exec, or dies",
        replacement="return frozenset()",
        caught_by=(_SEARCH + "test_a_process_in_an_exec_shows_no_environment_and_is_not_taken_for_another",),
    ),
    Mutant(
        name="a fork bears no mark",
        breaks="G8",
        file="_engine/instrumentation/processes.py",
        snippet="            table.mark_fork(cookie)\n",
        replacement="            pass\n",
        caught_by=(_ORPHAN + "[double_fork-kill]", _ORPHAN + "[without_files-kill]"),
    ),
    Mutant(
        name="the reaper adopts no orphans",
        breaks="G8",
        file="_engine/isolation/reaper.py",
        snippet="    prctl(_SET_SUBREAPER, 1)\n",
        replacement="",
        caught_by=(_REAPER + "test_a_process_that_hid_is_dead_when_the_run_is_stopped[leaves_a_daemon-kill]",),
    ),
    Mutant(
        name="the reaper ends with the agent process",
        breaks="G8",
        file="_engine/isolation/reaper.py",
        snippet="        while self._reap_some():\n",
        replacement="        while self._reap_some() and self._code is None:\n",
        caught_by=(_REAPER + "test_a_completed_agent_leaves_none_behind_either[hides]",),
    ),
)
