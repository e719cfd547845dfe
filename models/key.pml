/* A stop by the key of a conversation, against its start on another replica.

   Runs 0 and 1 are two turns of the conversation, the second one starts when the first is over; run 2 has another key. The
   stop comes before, while or after the first turn starts. A start and a stop are each one step of the store: the stop looks
   for live runs and, if there is none, waits for the next; the start takes what waits for it and registers.

   Mutants: mistakes on purpose, switched on by -D, and the one property that each of them breaks.

     -DLOOK_THEN_WAIT       not_lost        a stop looks for live runs in one call and waits for the next in another
     -DSTART_IN_TWO_STEPS   not_lost        a start looks for a stop that waits in one call and registers in another
     -DSTOP_STAYS           one_turn        a stop that has met a start goes on waiting
     -DALWAYS_WAITS         one_turn        a stop that found a live run waits for the next one too
     -DKEY_IS_IGNORED       others_go_on    a stop means the live runs of every key
*/

#define RUNS 3
#define OTHER 2

/* The store. */
bool registered[RUNS];
bool marked[RUNS];              /* a stop is wanted; never taken back */
bool stopped[RUNS];             /* by a stop, or born so */
bool waiting = false;           /* a stop that found no live run */

/* The processes. */
bool live[RUNS];

bool answered = false;          /* the caller of the stop knows that it is durable */

#define met(me) (waiting && me != OTHER)

#ifdef STOP_STAYS
#define take_stop skip
#else
#define take_stop waiting = false
#endif

/* A start, and the run that comes of it. */
proctype Run(byte me) {
    bool was_met = false;
    if
    :: me == 1 -> stopped[0]    /* a turn comes after the other */
    :: else -> skip
    fi;
#ifdef START_IN_TWO_STEPS
    d_step { was_met = met(me); if :: was_met -> take_stop :: else -> skip fi };
    atomic { registered[me] = true; stopped[me] = was_met; live[me] = !was_met };
#else
    d_step {
        was_met = met(me);
        if :: was_met -> take_stop :: else -> skip fi;
        registered[me] = true; stopped[me] = was_met; live[me] = !was_met
    };
#endif
    if
    :: live[me] ->
        marked[me];             /* works until it hears of a stop */
        d_step { live[me] = false; stopped[me] = true }
    :: else -> skip
    fi
}

/* stop(key=...), once. */
active proctype Stopper() {
    byte each;
    bool found;
    d_step {
        found = live[0] || live[1];
        for (each : 0 .. OTHER - 1) { marked[each] = live[each] };
        each = 0;
#ifdef KEY_IS_IGNORED
        marked[OTHER] = live[OTHER];
#endif
#ifdef ALWAYS_WAITS
        waiting = true;
#endif
#ifndef LOOK_THEN_WAIT
        waiting = waiting || !found
#endif
    };
#ifdef LOOK_THEN_WAIT
    waiting = !found;
#endif
    answered = true
}

/* The world goes on when all others wait; see hold.pml. */
bool time = true;

active proctype World() {
    do
    :: time
    od
}

init {
    byte each;
    atomic {
        for (each : 0 .. RUNS - 1) { run Run(each) }
    }
}

/* The first turn does not outlive a stop that was answered, whichever of the two came first. */
ltl not_lost { [] ((answered && registered[0]) -> <> stopped[0]) }

/* One stop ends one turn: the next question is answered. */
ltl one_turn { [] !(stopped[0] && stopped[1]) }

/* Other conversations go on. */
ltl others_go_on { [] !stopped[OTHER] }
