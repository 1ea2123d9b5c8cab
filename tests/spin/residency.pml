/* Leaving, relaunch and handoff: two workers whose tasks wait for each other leave when they are asked, or on their own, in
 * the middle of tasks, waits and answers; a keeper brings them back, with new code if there is some. Runs follow one another
 * for ever, two at a time, one task of two tiles for each worker: the second tile of each waits for the first of the other.
 * Workers leave on their own LEAVES times and code is replaced HANDOFFS times, whenever: were it for ever, one more leave would
 * hide each wait that never ends.
 *
 * model                          code
 *   line_in, line_owes,          wire::WorkerLine: inbox_position, whether answered_position is behind it, outbox_position,
 *   line_out, line_resume, state   resume_tile, state; zero where a launch does not need them any more
 *   park[]                       HostLine::park
 *   out_seq, out_low, consumed   the outbox and its credit, here with two slots, so that it is often full (rings.pml)
 *   begun                        tasks in each inbox (rings.pml); task p belongs to run p, in run slot p % 2. A worker may look
 *                                late, so both get theirs at once
 *   signalled[]                  the events that the first tiles signal (events.pml)
 *   worker: start                WorkerPost::start, owe_last_task, resume_point; TaskSource::start
 *   worker: leave                WorkerPost::leave_parked, leave_suspended, leave; LeaveWatch; CudaPipeline's gate and post
 *   worker: report               WorkerPost::report: worker 0's tasks report
 *   worker: tile, finish         WorkerLoop::begin_tile, end_tile, end_inbox_task; waits: TileGate
 *   keeper                       Keeper::main, bring_back, suspend, relaunch, handoff; Device::join, load, launch
 *   scheduler: away              Copilot::check_worker, check_device, RunEvents::workers_away
 *
 * Checked: every tile runs once, whoever leaves when; answers count every task once; no two launches are there at a time and
 * no code is loaded while one is; nobody runs old code after a handoff; workers leave on request only while somebody asks;
 * nothing waits for ever. Lines need no order of their own here: the end of a launch publishes them to the next.
 */
#define MODULUS 4
#include "link.pml"

#ifndef LEAVES
#define LEAVES 2
#endif
#ifndef HANDOFFS
#define HANDOFFS 1
#endif
#define OUTBOX 2

#define ABSENT 0
#define RUNNING 1
#define PARKED 2

byte line_in[2], line_out[2], line_resume[2], state[2];
bool line_owes[2];
bool park[2], alive[2], asking;
byte out_seq[2 * OUTBOX], out_low[2 * OUTBOX], consumed[2];
byte begun;            /* runs; each is a task in both inboxes */
bool signalled[4];     /* of run slot s by worker w: 2 * s + w */
byte ran[2];           /* tiles of each run slot's run that have run: a bit for 2 * w + tile */
byte version;
byte leaves = LEAVES;
bool called;

#define PARKED_RECORD 128
#define REPORT_RECORD 129
#define AT_OUT(w, p) ((w) * OUTBOX + (p) % OUTBOX)
#define ROOM (AHEAD(produced, consumed[w]) < OUTBOX)
#define SLOT_OF(p) ((p) % 2)

inline put(record) {
  out_seq[AT_OUT(w, produced)] = SEQ(produced);
  out_low[AT_OUT(w, produced)] = record;
  produced = NEXT(produced)
}

/* Whether the worker is asked to leave, or does so on its own. */
inline may_leave() {
  if
  :: park[w] -> assert(asking)
  :: leaves > 0 -> leaves--
  fi
}
#define MAY_LEAVE (park[w] || leaves > 0)

inline flush() {
  signalled[2 * SLOT_OF(position) + w] = true
}

#ifdef BUG_ANSWER_LOST
#define OWES_AT_START false
#else
#define OWES_AT_START line_owes[w]
#endif
#ifdef BUG_RESUME_FORGOTTEN
#define UNTOUCHED false
#else
#define UNTOUCHED (untouched && resume == 0)
#endif

proctype worker(byte w) {
  byte position, produced, tile, resume, code;
  bool owed, untouched;
end:
  do
  :: atomic {  /* start */
       alive[w] ->
       position = line_in[w]; produced = line_out[w]; tile = line_resume[w]; owed = OWES_AT_START;
       line_in[w] = 0; line_out[w] = 0; line_owes[w] = false;
       untouched = true;
       code = version;
       state[w] = RUNNING
     }
between:
     if
     :: atomic { owed && ROOM -> put(position); owed = false }
        goto between
     :: atomic { MAY_LEAVE -> may_leave(); resume = 0 }
        goto leave
     :: atomic {
          AHEAD(begun, position) > 0 && !owed && ROOM ->
#ifdef BUG_TAKEN_IS_FINISHED
          line_in[w] = NEXT(position)
#endif
        }
     fi;
run_tile:
     if
     :: tile == 1 ->
        if
        :: signalled[2 * SLOT_OF(position) + 1 - w]
#ifdef BUG_WAITS_ARE_NOT_LEFT
        :: false
#else
        :: atomic {
             !signalled[2 * SLOT_OF(position) + 1 - w] && MAY_LEAVE ->
             may_leave();
#ifdef BUG_TASK_FROM_ITS_START
             resume = 0
#else
             resume = 1
#endif
           }
           goto leave
#endif
        fi
     :: else
     fi;
     atomic {
       assert((ran[SLOT_OF(position)] & (1 << (2 * w + tile))) == 0);
       ran[SLOT_OF(position)] = ran[SLOT_OF(position)] | (1 << (2 * w + tile));
       assert(code == version)
     }
     if
     :: tile == 0 -> atomic { tile = 1 };
        if
        :: atomic { flush() }  /* as soon as it has to wait */
        #ifdef BUG_SIGNALS_LOST
        :: atomic { MAY_LEAVE -> may_leave(); resume = 1 }
#else
        :: atomic { MAY_LEAVE -> may_leave(); flush(); resume = 1 }
#endif
           goto leave
        fi;
        goto run_tile
     :: else
     fi;
     if
     :: w == 0 -> atomic { ROOM -> put(REPORT_RECORD) }  /* may take the room that the answer was to have */
     :: else
     fi;
     atomic { tile = 0; position = NEXT(position); owed = true; untouched = false }  /* finish */
     goto between;
leave:
     atomic {
       if
       :: owed && ROOM -> put(position); owed = false
       :: else
       fi
     }
     atomic {
#ifndef BUG_TAKEN_IS_FINISHED
       line_in[w] = position;
#endif
       line_owes[w] = owed;
       if
       :: UNTOUCHED
       :: else -> line_resume[w] = resume
       fi;
#ifdef BUG_RECORD_NOT_COUNTED
       line_out[w] = produced;
#else
       line_out[w] = (ROOM -> NEXT(produced) : produced);
#endif
       tile = ROOM;  /* decided before the state is published */
       state[w] = PARKED
     }
     atomic {
       if
       :: tile == 1 -> put(PARKED_RECORD)
       :: else
       fi;
       position = 0; produced = 0; tile = 0; resume = 0; code = 0; owed = false;
       alive[w] = false
     }
  od
}

inline ask_to_leave() {
  asking = true;
#ifdef BUG_ONLY_THE_REST_IS_AWAITED
  skip
#else
  park[0] = true;
  park[1] = true
#endif
}

#ifdef BUG_STATE_INSTEAD_OF_END
#define ALL_LEFT (state[0] == PARKED && state[1] == PARKED)
#else
#define ALL_LEFT (!alive[0] && !alive[1])
#endif

inline launch() {
  assert(!alive[0] && !alive[1]);
  asking = false;
#ifndef BUG_PARK_NOT_CLEARED
  park[0] = false; park[1] = false;
#endif
  state[0] = ABSENT; state[1] = ABSENT;
  alive[0] = true; alive[1] = true
}

proctype keeper() {
  byte handoffs = HANDOFFS;
end:
  do
#if LEAVES > 0
  :: atomic { called && (state[0] == PARKED || state[1] == PARKED) -> ask_to_leave() }
     atomic { ALL_LEFT -> launch() }
     atomic { state[0] != ABSENT && state[1] != ABSENT -> called = false }
#endif
  :: atomic { called && state[0] != PARKED && state[1] != PARKED -> called = false }
#if HANDOFFS > 0
  :: atomic { handoffs > 0 -> handoffs--; ask_to_leave() }
#ifdef BUG_LOAD_BEFORE_LEFT
     atomic { version++ }
     atomic { ALL_LEFT -> launch() }
#else
     atomic { ALL_LEFT -> assert(!alive[0] && !alive[1]); version++ }
     atomic { launch() }
#endif
     (state[0] != ABSENT && state[1] != ABSENT)
#endif
  od
}

#define HAS_RECORD(w) (out_seq[AT_OUT(w, taken[w])] == SEQ(taken[w]))
#define AWAY(w) (state[w] == PARKED && begun != done[w])

inline take(w) {
  record = out_low[AT_OUT(w, taken[w])];
  out_low[AT_OUT(w, taken[w])] = 0;
  taken[w] = NEXT(taken[w]);
  consumed[w] = taken[w];
  if
  :: record >= PARKED_RECORD
  :: else ->
     assert(AHEAD(record, done[w]) > 0 && AHEAD(record, done[w]) <= AHEAD(begun, done[w]));
     done[w] = record
  fi;
  record = 0
}

/* Run `begun` begins when both workers have answered the run before the last: its slot is free. */
proctype scheduler() {
  byte done[2], taken[2], record;
  do
  :: atomic {
       AHEAD(begun, done[0]) < 2 && AHEAD(begun, done[1]) < 2 ->
       assert(ran[SLOT_OF(begun)] == 15);
       ran[SLOT_OF(begun)] = 0;
       signalled[2 * SLOT_OF(begun)] = false; signalled[2 * SLOT_OF(begun) + 1] = false;
       begun = NEXT(begun)
     }
  :: atomic { HAS_RECORD(0) -> take(0) }
  :: atomic { HAS_RECORD(1) -> take(1) }
  :: atomic { !called && (AWAY(0) || AWAY(1)) -> called = true }
  od
}

init {
  atomic {
    ran[0] = 15; ran[1] = 15;
    alive[0] = true; alive[1] = true;
    run worker(0);
    run worker(1);
    run keeper();
    run scheduler()
  }
}
