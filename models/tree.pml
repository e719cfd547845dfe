/* A tree that grows while one of its nodes is stopped.

       0 ─┬─ 1 ─── 2 ─── 3         the stop names run 1 and means 1, 2, 3
          └─ 4

   Every run may start its children at any moment, or never. The runs live in different processes: what joins them is the store,
   where a stop marks and a registration reads the parent's mark. A run hears of its own mark some time later (stop.pml is
   about that part).

   Mutants: mistakes on purpose, switched on by -D, and the one property that each of them breaks.

     -DBLIND_SPAWN          whole_subtree_stops   a registration does not look at the parent
     -DSPAWN_IN_TWO_STEPS   whole_subtree_stops   it looks at the parent in one call and inserts the child in another
     -DSNAPSHOT_TREE        whole_subtree_stops   the stop lists the subtree in one call and marks what it listed later
     -DSTOP_BY_ROOT         downward_only         the stop marks everything with the same root
*/

#define RUNS 5
#define TARGET 1
#define parent(run) (run == 4 -> 0 : run - 1)

/* The store. */
bool registered[RUNS];
bool marked[RUNS];              /* a stop is wanted; never taken back */

/* The processes. */
bool live[RUNS];

bool answered = false;          /* the caller has the 202 */

#ifdef STOP_BY_ROOT
#define selected(run) true
#else
#define selected(run) (TARGET <= run && run <= 3)
#endif

/* register(): refused when the parent is stopping; the same call looks and inserts. */
inline register(child) {
#if defined(BLIND_SPAWN)
    atomic { registered[child] = true; live[child] = true }
#elif defined(SPAWN_IN_TWO_STEPS)
    if
    :: marked[parent(child)] -> skip
    :: !marked[parent(child)] -> atomic { registered[child] = true; live[child] = true }
    fi
#else
    atomic {
        if
        :: marked[parent(child)] -> skip
        :: else -> registered[child] = true; live[child] = true
        fi
    }
#endif
}

/* One run: starts children until it hears of a stop. */
proctype Run(byte me) {
    byte child;
    live[me];                   /* waits to be started */
    do
    :: marked[me] -> live[me] = false; break
    :: !marked[me] -> skip      /* works on */
    :: !marked[me] && me <= 2 ->
        /* The mark may come now: the run goes on to start a child, and hears of it afterwards. */
        if
        :: me == 0 -> child = 4
        :: true -> child = me + 1
        fi;
        if
        :: !registered[child] -> register(child)
        :: registered[child] -> skip
        fi;
        child = 0
    od
}

/* request_stop(): marks what is stored of the subtree, in one call. */
active proctype Stopper() {
    byte node;
    registered[TARGET];         /* one cannot stop what one has not heard of */
#ifdef SNAPSHOT_TREE
    bool listed[RUNS];
    d_step {
        for (node : 0 .. RUNS - 1) { listed[node] = registered[node] && selected(node) }
    };
    for (node : 0 .. RUNS - 1) { marked[node] = listed[node] }
#else
    d_step {
        for (node : 0 .. RUNS - 1) { marked[node] = registered[node] && selected(node) }
    };
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

init {
    byte node;
    atomic {
        registered[0] = true;
        live[0] = true;
        for (node : 0 .. RUNS - 1) { run Run(node) }
    }
}

/* G4, G14: nothing of the subtree is left alive, what was started during the stop included. */
ltl whole_subtree_stops { [] (answered -> <> [] (!live[1] && !live[2] && !live[3])) }

/* G4: never the parent, never siblings. */
ltl downward_only { [] (!marked[0] && !marked[4]) }
