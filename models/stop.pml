/* One run, its worker, and a stop that has to reach it.

   The store keeps the truth: status, epoch, lease. Hints to the worker may be lost; the connection may break, come back,
   or stay broken; the worker may be killed at any moment and may be arbitrarily slow. A freeze that ends is a
   slow worker. Every call to the store is one atomic step; between a call and its answer anything may happen.

   Mutants: mistakes on purpose, switched on by -D, and the one property that each of them breaks.

     -DNO_REREAD                 answered_stop_settles   the worker trusts hints; a heartbeat brings no stops
     -DNO_REAPER                 answered_stop_settles   nobody ends the runs of a worker that is gone
     -DLEASE_STAMPED_LATE        answered_stop_settles   the first heartbeat makes the lease, not the registration
     -DANSWER_BEFORE_WRITE       answered_stop_settles   the server says 202 and sends its hint, then writes the intent
     -DNO_CAS                    one_terminal_status     a terminal status is written whatever is there
     -DNO_FENCE                  no_late_effect          the store takes what the worker records without looking at its epoch
     -DNO_SELF_FENCE             work_ends               a worker that cannot renew its lease works on
     -DSTOPPED_ON_EXPIRED_LEASE  honest                  an expired lease is taken for a death
     -DPROOF_WITHOUT_CHILDREN    honest                  a worker's death is taken for the death of all it started
     -DREAP_IN_TWO_STEPS         renewed_is_not_reaped   the lease is looked at in one call, the verdict written in another
*/

mtype = { running, stopping, completed, failed, stopped, lost };

/* The store. */

mtype status = running;
byte epoch = 1;                 /* a terminal write raises it; whoever writes with an older one is refused */
#ifdef LEASE_STAMPED_LATE
bool leased = false;
#else
bool leased = true;             /* the reaper looks only at runs whose worker has a lease */
#endif
bool lease_valid = true;        /* by the store's clock */

#define terminal (status != running && status != stopping)
#define MINE 1                  /* the epoch that the worker was given */

/* The worker's process. */

bool alive = true;              /* the process itself */
bool working = true;            /* the agent's code, in the process or in children that it started */
bool told = false;              /* the gate is closed, and the body hears of it */
bool own_valid = true;          /* the lease by the worker's own clock, which it counts from the sending of a heartbeat */
mtype outcome = completed;      /* what the body came to, once it has ended */

/* Between them. */

bool connected = true;
chan hints = [1] of { bit };
bool can_prove;                 /* whether the reaper can see the lock that the worker and its children hold */

/* What the properties look at. */

bool answered = false;          /* the caller has the 202 */
byte terminal_writes = 0;
bool late_effect = false;       /* the store took a worker's write after the terminal status */
bool reaped_early = false;      /* the reaper gave up a worker whose lease was valid */

/* finish(): compare-and-set of the terminal status. */
inline finish(mine, with) {
    if
#ifdef NO_CAS
    :: true ->
#else
    :: epoch == mine && !terminal ->
#endif
        status = with;
        terminal_writes++;
        epoch++
    :: else -> skip             /* somebody else was first: a late report is an event */
    fi
}

/* The agent's code. It enters boundaries while the gate is open, and ends by itself, by the stop, or with its process. */
proctype Body() {
    do
    :: alive && !told ->
        /* A boundary is entered. Its effect reaches the store later, perhaps after the run has ended there. */
        if
        :: atomic { alive && connected ->
            if
#ifdef NO_FENCE
            :: true -> late_effect = late_effect || terminal
#else
            :: epoch == MINE -> late_effect = late_effect || terminal
            :: else -> told = true
#endif
            fi }
        :: !alive || !connected -> skip
        fi
    :: alive -> atomic { outcome = completed; working = false }; break
    :: alive && told -> atomic { outcome = stopped; working = false }; break
    :: !alive -> working = false; break     /* children of a killed worker end some time after it */
    od
}

/* The worker's control thread: heartbeats, hints, the fence, the report of the end. */
proctype Control() {
    bool heard;                 /* what the store's answer says: a stop is wanted, or the run is no longer ours */
    do
    :: !alive -> break

    /* A heartbeat renews the lease and reads the intents. */
    :: alive && connected && working ->
        atomic {
            if
            :: epoch == MINE ->
                leased = true;
                lease_valid = true;
#ifdef NO_REREAD
                heard = false
#else
                heard = (status == stopping)
#endif
            :: else -> heard = true
            fi
        };
        if
        :: atomic { alive && connected ->
            own_valid = lease_valid;        /* counted from the sending: never longer than the store's */
            told = told || heard;
            heard = false }
        :: !alive || !connected -> heard = false        /* the answer is lost, the call was made */
        fi

    /* A hint says: read again. */
    :: atomic { alive && connected && working && nempty(hints) ->
        hints ? _;
        told = told || status == stopping }

#ifndef NO_SELF_FENCE
    /* The lease may be over: close the gate without asking anybody. */
    :: atomic { alive && working && !told && !own_valid -> told = true }
#endif

    :: atomic { alive && connected && !working -> finish(MINE, outcome); break }
    od
}

/* Whoever presses Stop, or nobody. The server may die between any two steps; what comes after is then left out. */
proctype Stopper() {
    if
    :: true -> skip             /* nobody does */
#ifdef ANSWER_BEFORE_WRITE
    :: answered = true;
        hints ! 1;
        if
        :: true -> skip
        :: atomic { status == running -> status = stopping }
        :: terminal -> skip
        fi
#else
    :: atomic {
        if
        :: status == running -> status = stopping
        :: else -> skip         /* already finished: the answer is its receipt */
        fi };
        if
        :: true -> skip
        :: answered = true;
            if
            :: true -> skip     /* the hint is lost */
            :: hints ! 1        /* a second one would do no more than the next heartbeat */
            fi
        fi
#endif
    fi
}

#ifndef NO_REAPER
/* Ends the runs of workers that are gone: by proof if there is any, else when the lease is over. */
proctype Reaper() {
    byte seen;
    do
    :: terminal -> break

    /* A free lock proves that the worker and all its children are dead. */
#ifdef PROOF_WITHOUT_CHILDREN
    :: atomic { can_prove && !alive && !terminal ->
#else
    :: atomic { can_prove && !alive && !working && !terminal ->
#endif
        if
        :: status == stopping -> finish(epoch, stopped)
        :: status == running -> finish(epoch, failed)
        fi }

    /* An expired lease proves nothing. */
#ifdef REAP_IN_TWO_STEPS
    :: atomic { leased && !lease_valid && !terminal -> seen = epoch };
       atomic {
        reaped_early = lease_valid && epoch == seen;
#else
    :: atomic { leased && !lease_valid && !terminal ->
        seen = epoch;
        reaped_early = lease_valid;
#endif
#ifdef STOPPED_ON_EXPIRED_LEASE
        if
        :: status == stopping -> finish(seen, stopped)
        :: else -> finish(seen, lost)
        fi;
#else
        finish(seen, lost);
#endif
        seen = 0 }
    od
}
#endif

/* Time. The worker's own count runs out before the store's does. */
proctype Clock() {
    do
    :: atomic { own_valid -> own_valid = false }
    :: atomic { !own_valid && lease_valid -> lease_valid = false }
    od
}

/* The connection between worker and store breaks up to twice, hints under way are lost with it, and it may stay broken. The
   worker may be killed with -9. */
proctype Faults() {
    byte breaks = 0;
    do
    :: atomic { connected && breaks < 2 ->
        connected = false;
        breaks++;
        if
        :: nempty(hints) -> hints ? _
        :: empty(hints) -> skip
        fi }
    :: !connected -> connected = true
    :: alive -> alive = false
    :: true -> break
    od
}

/* The world goes on when all others wait. Spin's fair search looks only at runs that never halt: without this process it
   would not see the ones that hang. */
bool time = true;

proctype World() {
    do
    :: time
    od
}

init {
    atomic {
        if
        :: true -> can_prove = true
        :: true -> can_prove = false
        fi;
        run World();
        run Clock();
#ifndef NO_REAPER
        run Reaper();
#endif
        run Control();
        run Body();
        run Faults();
        run Stopper()
    }
}

/* G2: a run gets one terminal status, whoever writes at the same time. */
ltl one_terminal_status { [] (terminal_writes <= 1) }

/* G15: after the terminal status nothing of the worker is taken. */
ltl no_late_effect { [] (!late_effect) }

/* G14: a stop that was answered leads to a terminal status, whatever is lost or dies on the way. */
ltl answered_stop_settles { [] (answered -> <> terminal) }

/* The other half of G14: where the record says that the run is over, the work ends too, also behind a partition. */
ltl work_ends { [] (terminal -> <> (!working)) }

/* G8: `stopped` means known to be dead. */
ltl honest { [] (status == stopped -> !working) }

/* No worker that renewed in time is given up. */
ltl renewed_is_not_reaped { [] (!reaped_early) }
