/* Primed runs: while run slot S has a run that is alone the scheduler makes out the task that its next run would be sent; who submits that run takes it and
 * stores it into the inbox itself. Another client's runs, of slot O, come in between. One worker, one task a run; positions wrap.
 *
 * model                        code
 *   word, task_position, ..    PrimedRun: word_, tasks_
 *   client: take, send         EngineCore::hand_over; PrimedRun::take, send
 *   scheduler: notice          Copilot::notice_primed, send_elsewhere; PrimedRun::taken, notice
 *   scheduler: settle          Copilot::settle_primed; PrimedRun::withdraw
 *   scheduler: prime           Copilot::prime_next, remember; PrimedRun::begin, add, prime
 *   scheduler: record          Copilot::drain_outbox, on_done, finish
 *   again                      wire::kTaskAgain; RunSlot::written_for
 *
 * Memory: words are sequentially consistent here; that what is handed over with them is seen is said by [P1] to [P5] (primed_run.hpp), and the
 * mistakes of order below are those of a program.
 *
 * Checked: every run that is submitted is run once, with its own epoch and the frame as its client left it; a record answers the oldest task
 * that is booked; what is booked stands where it was primed; everybody comes to an end.
 */
#define SLOTS 2
#define MODULUS 4
#define AT(position) ((position) % SLOTS)
#define SEQ(position) (((position) + 1) % MODULUS)
#define NEXT(position) (((position) + 1) % MODULUS)

#define S 0
#define O 1
#ifndef RUNS_S
#define RUNS_S 4
#endif
#ifndef RUNS_O
#define RUNS_O 2
#endif

mtype = { NOTHING, PRIMED, TAKEN, SENT };
mtype word = NOTHING;
byte task_position, task_parity; /* the primed task: where it goes, and the parity of its run */

byte in_seq[SLOTS], in_slot[SLOTS], in_parity[SLOTS];
bool in_again[SLOTS];
chan queue = [2] of { byte };
chan outbox = [2] of { byte };

bool changed[2], ended[2], may_submit[2] = true;
byte parity[2], frame[2], ran[2];

inline put(where, which, odd, comes_again) {
  in_seq[AT(where)] = SEQ(where);
  in_slot[AT(where)] = which;
  in_parity[AT(where)] = odd;
  in_again[AT(where)] = comes_again
}

#ifdef BUG_CHANGED_FRAME_TAKEN
#define AS_BEFORE true
#else
#define AS_BEFORE (changed[S] == false)
#endif

proctype client(byte slot; byte runs) {
  byte place, its_parity;
  do
  :: runs > 0 ->
     atomic {
       may_submit[slot] ->
       may_submit[slot] = false; ended[slot] = false; ran[slot] = 0;
       parity[slot] = 1 - parity[slot];
       if
       :: changed[slot] = true; frame[slot] = 1 - frame[slot]
       :: changed[slot] = false
       fi
     }
     if
     :: atomic { slot == S && AS_BEFORE && word == PRIMED -> word = TAKEN }
#ifdef BUG_GIVEN_BACK_TOO_SOON
        word = SENT;
#endif
        atomic { place = task_position; its_parity = task_parity }
        atomic { put(place, S, its_parity, true); place = 0; its_parity = 0 }
#ifndef BUG_GIVEN_BACK_TOO_SOON
        word = SENT
#endif
     :: atomic { slot == O || !AS_BEFORE || word != PRIMED -> queue!slot }
     fi;
     atomic { ended[slot] -> assert(ran[slot] == 1); runs-- }
  :: else -> break
  od
}

proctype worker() {
  byte position, slot;
  byte seen[2]; /* the frame as it was when the worker read it last */
end:
  do
  :: atomic {
       in_seq[AT(position)] == SEQ(position) ->
       slot = in_slot[AT(position)];
       if
       :: in_again[AT(position)]
       :: else -> seen[slot] = frame[slot]
       fi;
       assert(seen[slot] == frame[slot] && in_parity[AT(position)] == parity[slot]);
       ran[slot]++;
       position = NEXT(position)
     }
     outbox!slot
  od
}

byte next_position;                   /* the scheduler's: where its next task goes */
chan booked = [2] of { byte };        /* tasks that have not been answered */
bool noticed, repeats, prepared;
byte epoch[2];                        /* parity of the slot's run that began last */

inline book(which) {
  booked!which;
  epoch[which] = 1 - epoch[which];
  next_position = NEXT(next_position);
#ifdef BUG_KEPT_WHEN_ANOTHER_BEGINS
  repeats = (which == S && len(booked) == 1) || (which == O && repeats);
  prepared = (which == O && prepared)
#else
  repeats = (which == S && len(booked) == 1);
  prepared = false
#endif
}

#define TAKEN_UNNOTICED ((word == TAKEN || word == SENT) && !noticed)

inline notice() {
  atomic {
    if
    :: TAKEN_UNNOTICED -> noticed = true; assert(task_position == next_position && task_parity == 1 - epoch[S]); book(S)
    :: else
    fi
  }
}

inline settle() {
#ifdef BUG_WITHDRAWN_WITHOUT_EXCHANGE
  if
  :: word == PRIMED -> word = NOTHING
  :: else
  fi;
#else
  atomic {
    if
    :: word == PRIMED -> word = NOTHING
    :: else
    fi
  }
#endif
#ifndef BUG_TAKEN_NOT_SETTLED
  notice()
#endif
}

#ifdef BUG_TASK_WRITTEN_WHILE_SENT
#define MAY_BEGIN (word != PRIMED && !TAKEN_UNNOTICED)
#else
#define MAY_BEGIN (word != PRIMED && word != TAKEN && !TAKEN_UNNOTICED)
#endif

proctype scheduler() {
  byte slot, oldest;
end:
  do
  :: TAKEN_UNNOTICED -> notice()
  :: outbox?slot ->
#ifndef BUG_NOT_NOTICED_WITH_A_RECORD
     notice();
#endif
     atomic { assert(nempty(booked)); booked?oldest; assert(oldest == slot) }
     if
     :: slot == S && repeats && prepared -> word = PRIMED
     :: else
     fi;
     atomic { ended[slot] = true; slot = 0; oldest = 0 }
  :: queue?slot ->
     settle();
     atomic { put(next_position, slot, 1 - epoch[slot], !changed[slot]); book(slot); slot = 0 }
  :: repeats && !prepared && len(outbox) == 0 && MAY_BEGIN ->
     atomic { word = NOTHING; noticed = false }
#ifdef BUG_PRIMED_BEFORE_TASK
     if
     :: len(booked) == 0 -> word = PRIMED
     :: else
     fi;
#endif
     task_position = next_position;
     task_parity = 1 - epoch[S];
     prepared = true;
#ifndef BUG_PRIMED_BEFORE_TASK
     if
     :: len(booked) == 0 -> word = PRIMED
     :: else
     fi
#endif
  od
}

/* Handles let go: the slot is free once its run has ended. */
proctype slots() {
end:
  do
  :: atomic { ended[S] && ran[S] == 1 && !may_submit[S] -> may_submit[S] = true }
  :: atomic { ended[O] && ran[O] == 1 && !may_submit[O] -> may_submit[O] = true }
  od
}

init {
  atomic {
    run client(S, RUNS_S);
    run client(O, RUNS_O);
    run worker();
    run scheduler();
    run slots()
  }
}
