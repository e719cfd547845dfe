/* A bulk stop with a hold, while runs are being started.

   Runs 0, 1 and 2 belong to the owner who is stopped, run 3 to another one. A bulk stop is no single step: it lists page by
   page and marks run by run. The hold is placed before the listing and refuses new starts, so the list cannot grow behind it.

   Mutants: mistakes on purpose, switched on by -D, and the one property that each of them breaks.

     -DHOLD_AFTER_LISTING   none_is_left    the hold is placed when the runs have been listed and marked
     -DSTART_IN_TWO_STEPS   none_is_left    a start looks for holds in one call and registers in another
     -DEMPTY_SELECTOR       others_go_on    a selector that names nobody selects everybody
*/

#define RUNS 4
#define OTHER 3

/* The store. */
bool held = false;
bool registered[RUNS];
bool marked[RUNS];              /* a stop is wanted; never taken back */

/* The processes. */
bool live[RUNS];

bool answered = false;          /* the caller has the receipts */
bool other_refused = false;

#ifdef EMPTY_SELECTOR
#define selected(run) true
#else
#define selected(run) (run != OTHER)
#endif

/* A start, and the run that comes of it if no hold refuses it. */
proctype Run(byte me) {
#ifdef START_IN_TWO_STEPS
    if
    :: held && selected(me) -> goto refused
    :: else -> skip
    fi;
    atomic { registered[me] = true; live[me] = true };
#else
    atomic {
        if
        :: held && selected(me) -> goto refused
        :: else -> registered[me] = true; live[me] = true
        fi
    };
#endif
    marked[me];                 /* works until it hears of a stop */
    live[me] = false;
    goto done;
refused:
    other_refused = other_refused || me == OTHER;
done:
    skip
}

/* stop_where(hold=True). */
active proctype Stopper() {
    byte each;
#ifndef HOLD_AFTER_LISTING
    held = true;
#endif
    for (each : 0 .. RUNS - 1) {
        d_step { marked[each] = registered[each] && selected(each) }
    };
#ifdef HOLD_AFTER_LISTING
    held = true;
#endif
    answered = true
}

/* The world goes on when all others wait. Spin's fair search looks only at runs that never halt: without this process it
   would not see the ones that hang. */
bool time = true;

active proctype World() {
    do
    :: time
    od
}

/* Somebody starts each of the runs, before, during or after the stop. */
init {
    byte each;
    atomic {
        for (each : 0 .. RUNS - 1) { run Run(each) }
    }
}

/* G14 for many: no selected run is left alive, until the hold is released. */
ltl none_is_left { [] (answered -> <> [] (!live[0] && !live[1] && !live[2])) }

/* Unrelated runs are neither stopped nor refused. */
ltl others_go_on { [] (!marked[OTHER] && !other_refused) }
