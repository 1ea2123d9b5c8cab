/* Drafts: tasks that are sent before the host knows whether they are to run. A worker takes one as any other task, waits for its events,
 * and then looks at the task's inbox slot until the host has written its verdict there. Two workers, one run slot whose runs follow one
 * another for ever; positions wrap.
 *
 * A run:   B        on worker 0: writes a word and reports how many tiles of C there are, or has a guard that fails and reports nothing;
 *                   signals event 0, total 1
 *          C0, C1   wait for event 0; read the word; signal event 1, total 2. One or both are drafts, or none: then they are sent, or
 *                   credited, once the report is settled
 *          D        waits for event 1; sent behind the last of C, and if both are drafts, before the report
 *
 * model                        code
 *   in_seq[], in_what[]        wire::Task, its slot; RingWriter::put_release: `posted` in order
 *   verdict[]                  RingWriter::put_verdict_relaxed: may pass whatever is written to other slots, stays behind what was
 *                              written to its own before; DelayedLinks::send_verdict
 *   scheduler: draft           LookaheadPolicy::send_draft, Progress::next_draft, take_draft, Copilot::send
 *   scheduler: settle          Copilot::on_word, on_report, settle_reports, send_verdicts, send_verdict; Progress::draft_runs
 *   scheduler: rest            Progress::report_arrived, report_absent, settle_held; credit_piece
 *   worker: take               TaskSource::take_inbox; RingConsumer::poll [R2]
 *   worker: wait               TileGate::pass, wait_for_tile, EventWait::wait_verdict, EventWait::skips
 *   worker: leave              Stop::asked in a wait, WaitEnd::suspend: the next launch takes the slot up as it is by then
 *
 * Memory: B's word is the one plain store; a report of a word is relaxed and says nothing of it (RecordKind::word), a verdict neither. What
 * events publish at large is in events.pml, rings with their credit and answers are in rings.pml.
 *
 * Checked: a tile runs if and only if the report of its own run calls for it, once; it sees what B has written; events come to their
 * totals and not beyond; when a run is over no verdict is on its way; nothing waits for ever. With CANCEL a run may be cancelled behind
 * B: what has not been sent goes out skipped, and drafts get their verdicts all the same.
 */
#include "link.pml"

#define B 0
#define C 1
#define D 3
#define CREDIT 3 /* + n: event 1 is credited with n */

#define RUNS 0
#define DRAFT 1
#define SKIP 2
#define WHAT(op, flags) ((op) + 8 * (flags))
#define OP_OF(what) ((what) % 8)
#define FLAGS_OF(what) ((what) / 8)

#define NOTHING 3 /* in place of a number of tiles: B's guard fails */

#define REPORT true
#define DONE false

byte in_seq[2 * SLOTS], in_what[2 * SLOTS];
chan posted[2] = [1] of { byte, byte }; /* position, what */
chan outbox[2] = [2] of { bool };

/* Drafts by their tile: where each was sent, and what is written there until it is performed. */
byte draft_at[2], draft_seq[2], verdict[2];

byte word, held_word; /* B's: the parity of its run */
byte parity, calls;   /* of this run */
byte event[2];
bool ran[2], cancelled;

inline write_slot(at, seq, what) { in_seq[at] = seq; in_what[at] = what }

#define HELD_FOR(i, at) (verdict[i] != NONE && draft_at[i] == (at))
#ifdef BUG_VERDICT_PASSES_DRAFT
#define DRAFT_STANDS(i) true
#else
#define DRAFT_STANDS(i) (in_seq[draft_at[i]] == draft_seq[i])
#endif

/* A verdict is not performed any more when what came after it to its slot is there. */
inline perform_put(w) {
  posted[w]?position,what;
  at = AT(w, position);
  if
  :: HELD_FOR(0, at) && draft_seq[0] != SEQ(position) -> verdict[0] = NONE
  :: HELD_FOR(1, at) && draft_seq[1] != SEQ(position) -> verdict[1] = NONE
  :: else
  fi;
  write_slot(at, SEQ(position), what);
  position = 0; what = 0; at = 0
}
#define PERFORM_VERDICT(i) \
  atomic { verdict[i] != NONE && DRAFT_STANDS(i) -> write_slot(draft_at[i], draft_seq[i], verdict[i]); verdict[i] = NONE }

proctype link() {
  byte position, what, at;
end:
  do
  :: atomic { nempty(posted[0]) -> perform_put(0) }
  :: atomic { nempty(posted[1]) -> perform_put(1) }
  :: PERFORM(WORKER(0), held_word, word)
  :: PERFORM_VERDICT(0)
  :: PERFORM_VERDICT(1)
  od
}

inline signal(which, amount) { event[which] = event[which] + (amount); assert(event[which] <= 1 + which) }

#define EVENT_OF(op) ((op) == D)
#define STANDS(op) (event[EVENT_OF(op)] == 1 + EVENT_OF(op))
#ifdef BUG_LOOKS_AT_NEXT_SLOT
#define LOOKED_AT AT(w, NEXT(position))
#else
#define LOOKED_AT AT(w, position)
#endif
#ifdef BUG_VERDICT_INSTEAD_OF_EVENTS
#define AWAITS_EVENTS false
#else
#define AWAITS_EVENTS true
#endif
#ifdef BUG_VERDICT_KEPT
#define DECIDED (kept != DRAFT || FLAGS_OF(in_what[LOOKED_AT]) != DRAFT)
#define VERDICT (kept != DRAFT -> kept : FLAGS_OF(in_what[LOOKED_AT]))
#else
#define DECIDED (FLAGS_OF(in_what[LOOKED_AT]) != DRAFT)
#define VERDICT FLAGS_OF(in_what[LOOKED_AT])
#endif
#define HAS(tile) (calls == 2 || calls == 1 && (tile) == 0)
#ifdef BUG_DROPPED_DOES_NOT_SIGNAL
#define SIGNALS (flags != SKIP || cancelled)
#else
#define SIGNALS true
#endif

inline run_body() {
  if
  :: flags == SKIP
  :: flags != SKIP && op == D -> assert(cancelled || (ran[0] == HAS(0) && ran[1] == HAS(1)))
  :: flags != SKIP && op != D && calls == NOTHING
  :: flags != SKIP && op != D && calls != NOTHING ->
     load(cached, word, seen);
     assert(seen == parity && op - C < calls && !ran[op - C] && flags == RUNS);
     ran[op - C] = true;
     seen = 0
  fi;
  cached = 0
}

proctype worker(byte w) {
  byte position, op, flags, cached, seen;
  bool again; /* a launch has left with this task under way: once is enough */
#ifdef BUG_VERDICT_KEPT
  byte kept = DRAFT;
#endif
#ifdef BUG_ANSWER_BEFORE_VERDICT
  bool answered;
#endif
  do
  :: atomic { /* take [R2]; what the body reads may be loaded early */
       in_seq[AT(w, position)] == SEQ(position) ->
       op = OP_OF(in_what[AT(w, position)]);
       flags = FLAGS_OF(in_what[AT(w, position)]);
#ifdef BUG_RESUMED_AS_DECIDED
       if
       :: again && flags == DRAFT -> flags = RUNS
       :: else
       fi;
#endif
       if
       :: (op == C || op == C + 1) && flags != SKIP && word != parity -> cached = word
       :: cached = NONE
       fi
     }
#ifdef BUG_ANSWER_BEFORE_VERDICT
     if
     :: atomic { flags == DRAFT && RELEASED(WORKER(w)) && nfull(outbox[w]) && !answered -> outbox[w]!DONE; answered = true }
     :: flags != DRAFT || answered
     fi;
#endif
     do /* wait */
     :: atomic { op == B && calls == NOTHING -> break } /* its guard fails */
     :: atomic { op == B && calls != NOTHING && nfull(outbox[w]) -> hold(WORKER(w), held_word, word, parity); outbox[w]!REPORT; break }
     :: atomic { op > D || flags == SKIP -> break }
     :: atomic { flags == RUNS && op >= C && op <= D && STANDS(op) -> cached = NONE; run_body(); break } /* [E2] */
     :: atomic {
          flags == DRAFT && (STANDS(op) || !AWAITS_EVENTS) && DECIDED ->
          if
          :: STANDS(op) -> cached = NONE
          :: else
          fi;
          flags = VERDICT;
#ifdef BUG_VERDICT_KEPT
          kept = flags;
#endif
          run_body();
          break
        }
     :: atomic { /* between launches nothing is left but the position */
          op >= C && op <= D && flags != SKIP && !again && (!STANDS(op) || flags == DRAFT && !DECIDED) ->
          again = true; op = NONE; flags = 0; cached = 0; break
        }
     od;
     if
     :: op == NONE -> op = 0
     :: else ->
        atomic { /* signal [E1] and answer [R1] */
          RELEASED(WORKER(w)) && nfull(outbox[w]) ->
          if
          :: op == B -> signal(0, 1)
          :: (op == C || op == C + 1) && SIGNALS -> signal(1, 1)
          :: op > D -> signal(1, op - CREDIT)
          :: else
          fi;
#ifdef BUG_ANSWER_BEFORE_VERDICT
          if
          :: !answered -> outbox[w]!DONE
          :: answered -> answered = false
          fi;
#else
          outbox[w]!DONE;
#endif
          position = NEXT(position); op = 0; flags = 0; cached = 0; again = false
        }
     fi
  od
}

#ifdef BUG_SLOT_FREED_BY_VERDICT
#define ROOM(w) (load_of[w] - freed[w] < SLOTS && nfull(posted[w]))
#else
#define ROOM(w) (load_of[w] < SLOTS && nfull(posted[w]))
#endif

inline send(w, op, flags) {
  posted[w]!tail[w],WHAT(op, flags);
  tail[w] = NEXT(tail[w]);
  load_of[w]++
}
/* The draft of tile `i`. */
inline send_draft(w, i) {
#ifdef BUG_POSITION_AFTER_SENDING
  draft_at[i] = AT(w, NEXT(tail[w])); draft_seq[i] = SEQ(NEXT(tail[w]));
#else
  draft_at[i] = AT(w, tail[w]); draft_seq[i] = SEQ(tail[w]);
#endif
  send(w, C + i, DRAFT)
}
inline decide(i) {
  if
  :: drafted > i -> assert(verdict[i] == NONE);
#ifdef BUG_DROPPED_RUNS
     verdict[i] = WHAT(C + i, RUNS);
#else
     verdict[i] = WHAT(C + i, (i < existing -> RUNS : SKIP));
#endif
#ifdef BUG_SLOT_FREED_BY_VERDICT
     freed[draft_at[i] / SLOTS]++
#endif
  :: else
  fi
}
/* The report is there, or will not come: then all tiles go out, and their guards decide. */
inline settle(tiles) {
  existing = tiles; settled = true;
  decide(0);
  decide(1);
#ifdef BUG_DRAFTED_AND_SENT
  next = 0
#endif
}
inline take() {
  outbox[0]?is_report;
  if
  :: is_report -> assert(begun && !settled); settle(calls)
  :: else ->
     load_of[0]--;
     if
     :: at_b -> at_b = false;
#ifndef BUG_ABSENT_NOT_SETTLED
        if
        :: !settled -> settle(2)
        :: else
        fi
#endif
     :: else
     fi
  fi;
  is_report = false
}
inline forget_run() {
  begun = false; settled = false; sent_last = false; drafted = 0; next = 0; existing = 0; calls = 0; cancelled = false;
  event[0] = 0; event[1] = 0; ran[0] = false; ran[1] = false; draft_at[0] = 0; draft_at[1] = 0; draft_seq[0] = 0; draft_seq[1] = 0;
#ifdef BUG_SLOT_FREED_BY_VERDICT
  freed[0] = 0; freed[1] = 0
#endif
}
#define LATER (cancelled -> SKIP : RUNS)
#ifdef BUG_RUN_ENDS_TOO_SOON
#define OVER (load_of[0] + load_of[1] <= 1)
#else
#define OVER (load_of[0] + load_of[1] == 0)
#endif
#ifdef BUG_DRAFT_BEFORE_REPORT
#define MAY_DRAFT (begun && !at_b && !sent_b)
#else
#define MAY_DRAFT (begun && sent_b)
#endif

proctype scheduler() {
  byte tail[2], load_of[2], existing, drafted, next;
  bool begun, sent_b, at_b, settled, sent_last, is_report;
#ifdef BUG_SLOT_FREED_BY_VERDICT
  byte freed[2];
#endif
  do
  :: atomic { nempty(outbox[0]) -> take() }
  :: atomic { outbox[1]?is_report -> is_report = false; load_of[1]-- }
  :: atomic {
       !begun ->
       begun = true; parity = 1 - parity; sent_b = false;
       word = 1 - parity; /* what it held before is anybody's guess */
       if
       :: calls = 0
       :: calls = 1
       :: calls = 2
       :: calls = NOTHING
       fi
     }
  :: atomic { begun && !sent_b && ROOM(0) -> send(0, B, RUNS); sent_b = true; at_b = true }
  :: atomic { MAY_DRAFT && !settled && !cancelled && next < 2 && next == drafted && ROOM(0) -> send_draft(0, next); drafted++; next++ }
  :: atomic { MAY_DRAFT && !settled && !cancelled && next < 2 && next == drafted && ROOM(1) -> send_draft(1, next); drafted++; next++ }
#ifdef CANCEL
  :: atomic { begun && sent_b && !cancelled && !sent_last -> cancelled = true }
#endif
  /* the rest, once the report is settled */
  :: atomic { settled && next < existing && ROOM(next) -> send(next, C + next, LATER); next++ }
  :: atomic { settled && next >= existing && next < 2 && ROOM(1) -> send(1, CREDIT + 2 - next, RUNS); next = 2 }
  :: atomic { next == 2 && !sent_last && ROOM(1) -> send(1, D, LATER); sent_last = true }
  :: atomic {
       sent_last && OVER ->
       assert(event[0] == 1 && event[1] == 2 && verdict[0] == NONE && verdict[1] == NONE);
       assert(cancelled || (ran[0] == (calls == 1 || calls == 2) && ran[1] == (calls == 2)));
       forget_run()
     }
  od
}

init {
  atomic {
    held_word = NONE; verdict[0] = NONE; verdict[1] = NONE;
    run link();
    run worker(0);
    run worker(1);
    run scheduler()
  }
}
