/* Inboxes, outboxes, credit and answers: a scheduler and WORKERS workers, rings of 4 slots, sequence numbers that wrap, for
 * ever. A run writes its frame, sends TASKS tasks to whichever workers it likes, and is over once all are answered; two run
 * slots are in flight at a time. With REPORTS the last task sent of a run reports a value; with MERGE a busy worker may answer
 * later, several tasks at once; with EARLY_LOADS loads may be performed before the polls they follow.
 *
 * model                        code
 *   inbox, in_seq, in_low      wire/ring.hpp: the slots of an inbox. A host writes a slot in two halves, the sequence number
 *                              last (HostAtoms::store_slot_release); a worker reads it at once (16-byte load)
 *   out_seq, out_low           the same of an outbox: a worker writes a slot at once, a host reads the half with seq first
 *                              (HostAtoms::load_slot_acquire)
 *   frame[]                    what the host wrote before it sent tasks: wire::RunFrame, inputs
 *   report[]                   the slot's report area (WorkerPost::report, copy_report)
 *   consumed[]                 HostLine::outbox_consumed
 *   scheduler: send            WorkerLinks::send [R1], WorkerLoads for credit
 *   scheduler: take            WorkerLinks::poll [R2], Copilot::on_record, take_answered, acknowledge [R3]
 *   worker: take               TaskSource::poll, Platform::poll [R2]; slots of one poll are read one by one here
 *   worker: room               WorkerPost::has_room [R4], WorkerLoop::wait_for_room
 *   worker: report, answer     WorkerPost::report, finish_inbox_task, answer [R1]; a busy worker may answer later
 *
 * Checked: a slot is written only after its reader is done with it and read only once it is new; a task runs once, with its
 * run's frame; a report is there when its record is, and its record stands before the answer; answers count every task
 * once; nothing waits for ever.
 *
 * Each BUG_ is a deliberate mistake that Spin must find (CMakeLists.txt lists them).
 */
#include "link.pml"

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef TASKS
#define TASKS 2  /* of a run */
#endif
#ifndef LINK_DEPTH
#define LINK_DEPTH 2
#endif

byte in_seq[WORKERS * SLOTS], in_low[WORKERS * SLOTS];    /* low: the task, NONE once it has been taken */
byte out_seq[WORKERS * SLOTS], out_low[WORKERS * SLOTS];
byte consumed[WORKERS];
byte frame[2], report[WORKERS * 2];                       /* the parity of the run that wrote them */
byte held_frame[2], held_report[WORKERS * 2];
#ifdef BUG_SEQ_BEFORE_TASK
byte held_low[WORKERS * SLOTS];
#endif
chan to_workers = [LINK_DEPTH] of { byte, byte };         /* word, value: slots, then credit */
chan to_host[WORKERS] = [1] of { byte, byte, byte };      /* slot, seq, low */
byte ran;                                                 /* a bit for each task of both slots' runs */
#ifdef EARLY_LOADS
byte cached_frame[WORKERS * 2], cached_report[2];         /* what loads without an acquire may still return */
#endif

/* A task: run slot, which of the run's, parity of the run. */
#define TASK(slot, which, parity) ((slot) + 2 * (which) + 8 * (parity))
#define SLOT_OF(task) ((task) % 2)
#define WHICH(task) ((task) / 2 % 4)
#define PARITY(task) ((task) / 8)
/* A record: an answer is a count of tasks; a report is a slot and a parity. */
#define REPORT(slot, parity) (128 + (slot) + 2 * (parity))
#define IS_REPORT(record) ((record) >= 128)

/* ---- what each mistake changes ---- */
#ifdef BUG_INBOX_SLOT_RELAXED
#define R1_HOST true
#else
#define R1_HOST RELEASED(HOST)
#endif
#ifdef BUG_REPORT_RECORD_RELAXED
#define R1_WORKER(w) true
#else
#define R1_WORKER(w) RELEASED(WORKER(w))
#endif
#ifdef BUG_INBOX_CREDIT
#define INBOX_SLOTS (SLOTS + 1)
#else
#define INBOX_SLOTS SLOTS
#endif
#ifdef BUG_OUTBOX_CREDIT
#define OUTBOX_SLOTS (SLOTS + 1)
#else
#define OUTBOX_SLOTS SLOTS
#endif
#ifdef BUG_SEQ_BEHIND
#define IS_NEW(seq, p) ((seq) == (p))
#else
#define IS_NEW(seq, p) ((seq) == SEQ(p))
#endif

#define CAN_SEND(w) (AHEAD(sent[w], done[w]) < INBOX_SLOTS)
#define ARRIVED(w) (IS_NEW(in_seq[AT(w, position)], position))
#define ROOM(w) (AHEAD(produced, consumed[w]) < OUTBOX_SLOTS)
#define HAS_RECORD(w) (IS_NEW(out_seq[AT(w, taken[w])], taken[w]))

proctype link() {
  byte word, seq, low;
end:
  do
  :: atomic {
       to_workers?word,seq ->
       if
       :: word < WORKERS * SLOTS -> in_seq[word] = seq
       :: else -> consumed[word - WORKERS * SLOTS] = seq
       fi;
       word = 0; seq = 0
     }
  :: atomic { to_host[0]?word,seq,low -> out_seq[word] = seq; out_low[word] = low; word = 0; seq = 0; low = 0 }
  :: PERFORM(HOST, held_frame[0], frame[0])
  :: PERFORM(HOST, held_frame[1], frame[1])
#if WORKERS == 2
  :: atomic { to_host[1]?word,seq,low -> out_seq[word] = seq; out_low[word] = low; word = 0; seq = 0; low = 0 }
#endif
#ifdef REPORTS
  :: PERFORM(WORKER(0), held_report[0], report[0])
  :: PERFORM(WORKER(0), held_report[1], report[1])
#if WORKERS == 2
  :: PERFORM(WORKER(1), held_report[2], report[2])
  :: PERFORM(WORKER(1), held_report[3], report[3])
#endif
#endif
  od
}

inline put(w, record) {
  to_host[w]!AT(w, produced),SEQ(produced),record;
  produced = NEXT(produced)
}

proctype worker(byte w) {
  byte position, produced, task, seen;
#ifdef BUG_ANSWER_NOT_CUMULATIVE
  byte answered;
#endif
  do
  :: atomic {  /* take [R2] */
       ARRIVED(w) ->
       task = in_low[AT(w, position)];
       assert(task != NONE);
       in_low[AT(w, position)] = NONE;
       position = NEXT(position);
#if defined(EARLY_LOADS) && !defined(BUG_INBOX_POLL_RELAXED)
       cached_frame[2 * w] = NONE;
       cached_frame[2 * w + 1] = NONE
#endif
     }
     atomic { ROOM(w) -> skip }
#ifdef BUG_ANSWER_BEFORE_BODY
     atomic { ROOM(w) && nfull(to_host[w]) -> put(w, position) }
#endif
     atomic {  /* the body */
#ifdef EARLY_LOADS
       load(cached_frame[2 * w + SLOT_OF(task)], frame[SLOT_OF(task)], seen);
#else
       seen = frame[SLOT_OF(task)];
#endif
       assert(seen == PARITY(task));
       seen = 0;
       assert((ran & (1 << (task % 8))) == 0);
       ran = ran | (1 << (task % 8));
#ifdef REPORTS
       if
       :: WHICH(task) == 0 -> hold(WORKER(w), held_report[2 * w + SLOT_OF(task)], report[2 * w + SLOT_OF(task)], PARITY(task))
       :: else
       fi
#endif
     }
#ifdef BUG_ANSWER_BEFORE_REPORT
     atomic { ROOM(w) && nfull(to_host[w]) -> put(w, position) }
#endif
#ifdef REPORTS
     if
     :: atomic {
          WHICH(task) == 0 && R1_WORKER(w) && ROOM(w) && nfull(to_host[w]) ->
          put(w, REPORT(SLOT_OF(task), PARITY(task)))
        }
     :: WHICH(task) != 0
     fi;
#endif
#if !defined(BUG_ANSWER_BEFORE_BODY) && !defined(BUG_ANSWER_BEFORE_REPORT)
     if
#ifdef BUG_ANSWER_KEPT_WHILE_IDLE
     :: task = 0
#elif defined(MERGE)
     :: atomic { ARRIVED(w) -> task = 0 }  /* goes on working, and answers both later */
#endif
     :: atomic {  /* answer [R1] */
          RELEASED(WORKER(w)) && ROOM(w) && nfull(to_host[w]) ->
#ifdef BUG_ANSWER_NOT_CUMULATIVE
          answered = NEXT(answered);
          put(w, answered);
#else
          put(w, position);
#endif
          task = 0
        }
     fi
#endif
  od
}

/* A run slot may be used again: nothing of its last run is to be sent or answered. */
#ifdef BUG_SLOT_USED_TOO_SOON
#define OVER(slot) (unsent[slot] == 0 && unanswered[slot] <= 1)
#else
#define OVER(slot) (unsent[slot] == 0 && unanswered[slot] == 0)
#endif

inline begin(slot) {
  assert(reported[slot] == 1);
  parity[slot] = 1 - parity[slot];
  unsent[slot] = TASKS;
#ifdef REPORTS
  reported[slot] = 0;
#endif
  ran = ran & (170 >> slot);  /* every other bit */
  hold(HOST, held_frame[slot], frame[slot], parity[slot])
}

inline send() {
#ifdef BUG_SEQ_BEFORE_TASK
  to_workers!AT(w, sent[w]),SEQ(sent[w]);
  hold(HOST, held_low[AT(w, sent[w])], in_low[AT(w, sent[w])], TASK(slot, unsent[slot], parity[slot]));
#else
  assert(in_low[AT(w, sent[w])] == NONE);
  in_low[AT(w, sent[w])] = TASK(slot, unsent[slot], parity[slot]);
  to_workers!AT(w, sent[w]),SEQ(sent[w]);
#endif
  slot_at[AT(w, sent[w])] = slot;
  sent[w] = NEXT(sent[w])
}

inline take_report(s, p) {
#ifdef EARLY_LOADS
  load(cached_report[s], report[2 * w + s], seen);
#else
  seen = report[2 * w + s];
#endif
  assert(seen == parity[s] && p == parity[s]);
  seen = 0;
  assert(reported[s] == 0);
  reported[s] = 1
}

/* A count of all tasks finished so far: those since the last are answered. */
inline take_answer() {
  assert(AHEAD(record, done[w]) > 0 && AHEAD(record, done[w]) <= AHEAD(sent[w], done[w]));
  do
  :: done[w] != record ->
     slot = slot_at[AT(w, done[w])];
     slot_at[AT(w, done[w])] = 0;
     unanswered[slot]--;
     done[w] = NEXT(done[w])
  :: else -> break
  od
}

proctype scheduler() {
  byte parity[2], unsent[2], unanswered[2], reported[2];
  byte sent[WORKERS], done[WORKERS], taken[WORKERS];
  byte slot_at[WORKERS * SLOTS];  /* run slot of the task at an inbox slot, until it is answered */
  byte w, slot, record, seen;
  reported[0] = 1; reported[1] = 1;
  do
  :: atomic { OVER(0) -> begin(0) }
  :: atomic { OVER(1) -> begin(1) }
  :: atomic {  /* send [R1] */
       unsent[0] + unsent[1] > 0 && (CAN_SEND(0) || CAN_SEND(WORKERS - 1)) && R1_HOST && nfull(to_workers) ->
       if
       :: unsent[0] > 0 -> slot = 0
       :: unsent[1] > 0 -> slot = 1
       fi;
       if
       :: CAN_SEND(0) -> w = 0
       :: WORKERS > 1 && CAN_SEND(WORKERS - 1) -> w = WORKERS - 1
       fi;
       unsent[slot]--;
       unanswered[slot]++;
       send();
       slot = 0; w = 0
     }
#ifdef BUG_OUTBOX_HALVES_SWAPPED
  :: atomic { record == 0 -> record = out_low[AT(0, taken[0])] }
#endif
  :: atomic {  /* take [R2] */
       (HAS_RECORD(0) || HAS_RECORD(WORKERS - 1)) && nfull(to_workers) ->
       if
       :: HAS_RECORD(0) -> w = 0
       :: WORKERS > 1 && HAS_RECORD(WORKERS - 1) -> w = WORKERS - 1
       fi;
#if defined(EARLY_LOADS) && !defined(BUG_OUTBOX_POLL_RELAXED)
       cached_report[0] = NONE;
       cached_report[1] = NONE;
#endif
#ifdef BUG_CREDIT_BEFORE_READ
       to_workers!(WORKERS * SLOTS + w),NEXT(taken[w]);
#endif
       taken[w] = NEXT(taken[w])
     }
     atomic {
       nfull(to_workers) ->
#ifndef BUG_OUTBOX_HALVES_SWAPPED
       record = out_low[AT(w, taken[w] + MODULUS - 1)];
#endif
       assert(record != NONE);
       out_low[AT(w, taken[w] + MODULUS - 1)] = NONE;
#ifdef REPORTS
       if
       :: IS_REPORT(record) -> take_report(record % 2, record / 2 % 2)
       :: else -> take_answer()
       fi;
#else
       take_answer();
#endif
#ifndef BUG_CREDIT_BEFORE_READ
       to_workers!(WORKERS * SLOTS + w),taken[w];  /* acknowledge [R3] */
#endif
       record = 0; slot = 0; w = 0
     }
  od
}

init {
  atomic {
    byte k;
    for (k : 0 .. WORKERS * SLOTS - 1) {
      in_low[k] = NONE; out_low[k] = NONE;
#ifdef BUG_SEQ_BEFORE_TASK
      held_low[k] = NONE;
#endif
    }
    for (k : 0 .. WORKERS * 2 - 1) { held_report[k] = NONE }
    for (k : 0 .. 1) { held_frame[k] = NONE }
#ifdef EARLY_LOADS
    for (k : 0 .. 1) { cached_report[k] = NONE }
    for (k : 0 .. WORKERS * 2 - 1) { cached_frame[k] = NONE }
#endif
    k = 0;
    run link();
    run worker(0);
#if WORKERS == 2
    run worker(1);
#endif
    run scheduler()
  }
}
