/* The ladder of one stop, and an event loop that is blocked now and then.

   The task obeys: it ends in the first turn of its loop after CANCEL. But other code may block the loop, for a few ticks or for
   good (`hangs`), and nobody can act then. So a rung lasts for ticks in which the loop has turned, and not for longer than a
   bound. When the last rung is over, the ladder looks once more: the task may be dead, and the report of its end on the way.

   Mutants: mistakes on purpose, switched on by -D, and the one property that each of them breaks.

     -DWALL_TIME       obedient_is_not_lost   ticks count though the loop is blocked
     -DNO_BOUND        every_stop_ends        a rung waits for a loop that never turns again
     -DNO_LAST_LOOK    lost_is_alive          the ladder trusts the reports that have arrived
     -DOLD_TURN        obedient_is_not_lost   a turn from before CANCEL counts as a chance to obey it
*/

#define PATIENCE 1              /* ticks that count, until the next rung */
#define BOUND 6                 /* ticks of any kind, until the next rung */
#define PAUSES 4                /* ticks for which a loop is blocked that does not hang: fewer than BOUND */

mtype = { running, stopped, lost };
mtype status = running;

bool cancelled = false;         /* CANCEL was sent to the loop */
bool alive = true;              /* the task */
bool was_alive = true;          /* when `lost` was written */

bool hangs;
bool blocked = false;
bool turned = false;            /* since the last tick */
byte paused = 0;

/* The loop with the task. Whatever is in its queue when it turns has an effect. */
active proctype Loop() {
    do
    :: atomic { alive && !blocked && !turned -> turned = true; alive = !cancelled }
    :: !alive -> break
    od
}

/* The report of the end, some time after it. */
active proctype Report() {
    !alive;
    if
    :: atomic { status == running -> status = stopped }
    :: status != running -> skip
    fi
}

/* The control thread: at every tick it learns whether the loop has turned, which a loop that is not blocked always has. */
active proctype Ladder() {
    byte counted = 0, waited = 0;
    bool has_climbed;
    if
    :: hangs = true; blocked = true
    :: hangs = false
    fi;
    do
    :: status != running -> break
    :: status == running && (turned || blocked || !alive) ->
        d_step {
            has_climbed = false;
            waited++;
            if
#ifdef WALL_TIME
            :: true -> counted++
#else
            :: turned -> counted++
            :: else -> skip
#endif
            fi;
            turned = false;
#ifdef NO_BOUND
            if
            :: waited > BOUND -> waited = BOUND
            :: else -> skip
            fi;
            has_climbed = counted > PATIENCE;
#else
            has_climbed = counted > PATIENCE || waited >= BOUND;
#endif
        };
        if
        :: has_climbed && !cancelled ->
            d_step {
                cancelled = true;
                counted = 0;
                waited = 0;
#ifdef OLD_TURN
                counted = PATIENCE;
#endif
            }
        :: has_climbed && cancelled ->
            atomic {
                if
                :: status != running -> skip
#ifndef NO_LAST_LOOK
                :: status == running && !alive -> status = stopped
                :: status == running && alive -> was_alive = alive; status = lost
#else
                :: status == running -> was_alive = alive; status = lost
#endif
                fi
            }
        :: !has_climbed -> skip
        fi;
        /* Other code blocks the loop until the next tick, or does not. */
        if
        :: !hangs -> blocked = false
        :: !hangs && !blocked && !turned && paused < PAUSES -> blocked = true; paused++
        :: hangs -> skip
        fi
    od
}

/* The world goes on when all others wait. Spin's fair search looks only at runs that never halt: without this process it
   would not see the ones that hang. */
bool time = true;

active proctype World() {
    do
    :: time
    od
}

/* G6: every stop ends, also that of a loop that never turns again. */
ltl every_stop_ends { <> (status != running) }

/* G6, G8: a task that obeys is not lost because others kept it from acting, if they let go within the bound. */
ltl obedient_is_not_lost { [] (status == lost && was_alive -> hangs) }

/* G8: whoever is reported lost was alive when that was written. */
ltl lost_is_alive { [] (status == lost -> was_alive) }
