/* Events, guards and reports: two workers that signal each other through counters in device memory, tasks that are sent ahead
 * of what they wait for, a guess that may be wrong. One run slot whose runs follow one another for ever; counters only grow,
 * and wrap. Inboxes and outboxes are plain channels here, with room for a run: rings.pml shows that they behave so.
 *
 * A run:   A0, A1    two tiles, one task each or one task of both; write a[0], a[1]; signal event 0, total 2
 *          B         waits for event 0; reads both; writes the guard's word, and reports it; signals event 1, total 1
 *          C0, C1    guarded by it; wait for event 1; write c[0], c[1]; signal event 2, total 2
 *          D         waits for event 2; reads all
 *
 * model                        code
 *   counter[], TARGET, REACHED events of RunFrame; wire::event_target, event_reached (wire/event.hpp)
 *   scheduler: send            policies: Progress sends an op once its producers have been sent; tasks go out before the
 *                              report is there, or after it; what a known guard forbids is credited with kOpSignal
 *                              (policy_reactive.cpp, guards.cpp); a cancelled run goes out skipped (kTaskSkip)
 *   worker: gate               TileGate: the first look of a wait acquires [E2], then relaxed looks and one that
 *                              acquires; guard_holds
 *   worker: collect, flush     TileSignals::collect, send [E1]; flushed when the event changes, before a wait that blocks
 *                              (Stop::blocked), and at the end of the task
 *   early                      a core may perform loads early, and operands are prefetched before a wait
 *   worker: answer             WorkerPost::report, answer [R1]
 *
 * Checked: a body sees what all tiles before it have stored, however many hops away, and nothing of the run after; a tile whose
 * guard fails never runs its body, and counts all the same; the host sees the report of this run; when all tasks of a run are
 * answered its events stand at their counts; nothing waits for ever.
 */
#define MODULUS 4
#include "link.pml"

/* words: a[0], a[1], guard, c[0], c[1] */
#define WORDS 5
#define GUARD 2
byte memory[WORDS];
byte held[WORDS];
byte cached[2 * WORDS];
byte counter[3];
byte report, held_report;
bool truth;  /* what this run's guard will say */

#define EPOCHS MODULUS
#define TOTAL(event) (1 + ((event) != 1))
#define DUE(event, epoch) (((epoch) + 1) * TOTAL(event) % MODULUS)
#ifdef BUG_TARGET_OF_LAST_RUN
#define TARGET(event, epoch) ((epoch) * TOTAL(event) % MODULUS)
#elif defined(BUG_TARGET_OFF_BY_ONE)
#define TARGET(event, epoch) (((epoch) * TOTAL(event) + TOTAL(event) + MODULUS - 1) % MODULUS)
#else
#define TARGET(event, epoch) DUE(event, epoch)
#endif
#ifdef BUG_COMPARE_WITHOUT_WRAP
#define REACHED(event, epoch) (counter[event] >= TARGET(event, epoch))
#else
#define REACHED(event, epoch) (AHEAD(counter[event], TARGET(event, epoch)) < MODULUS / 2)
#endif

/* ops; SIGNAL + n credits event 2 with n */
#define A 0
#define B 2
#define C 3
#define D 5
#define SIGNAL 5
#define WAITS_FOR(op) ((op) == B -> 0 : ((op) == D -> 2 : 1))
#define SIGNALS(op) ((op) < B -> 0 : ((op) == B -> 1 : 2))

chan inbox[2] = [6] of { byte, bool, bool, byte };  /* op, whether its task ends with it, skipped, epoch */
chan outbox[2] = [2] of { bool };                       /* whether it is a report */

/* Whoever runs a tile writes its words: a held store says who. */
#define HELD(value) ((value) + 16 * w)
#define PERFORM_ANY(kept, word) \
  atomic { kept != NONE -> word = kept % 16; held_count[WORKER(kept / 16)]--; kept = NONE }

proctype link() {
end:
  do
  :: PERFORM_ANY(held[0], memory[0])
  :: PERFORM_ANY(held[1], memory[1])
  :: PERFORM_ANY(held[2], memory[2])
  :: PERFORM_ANY(held[3], memory[3])
  :: PERFORM_ANY(held[4], memory[4])
  :: PERFORM_ANY(held_report, report)
  od
}

inline acquire() {
  cached[w * WORDS] = NONE; cached[w * WORDS + 1] = NONE; cached[w * WORDS + 2] = NONE;
  cached[w * WORDS + 3] = NONE; cached[w * WORDS + 4] = NONE
}
/* Loads that come too early find what was there before. Those that find what will be there in the end change nothing. */
inline early_load(word) {
  if
  :: memory[word] % 2 != epoch % 2 -> cached[w * WORDS + word] = memory[word]
  :: else
  fi
}
inline early() {
  if
  :: op == B -> early_load(0); early_load(1)
  :: op == C || op == C + 1 -> early_load(GUARD)
  :: op == D -> early_load(0); early_load(1); early_load(GUARD); if :: truth -> early_load(C); early_load(C + 1) :: else fi
  :: true
  fi
}
inline see(word, expected) {
  load(cached[w * WORDS + word], memory[word], seen);
  assert(seen == expected);
  seen = 0
}
inline store(kept, word, value) {
  assert(kept == NONE);
  if
  :: word = value
  :: kept = HELD(value); held_count[WORKER(w)]++
  fi
}

#ifdef BUG_SIGNAL_RELAXED
#define E1 true
#else
#define E1 RELEASED(WORKER(w))
#endif
#ifdef BUG_ANSWER_RELAXED
#define R1 true
#else
#define R1 RELEASED(WORKER(w))
#endif
#ifdef BUG_SKIPPED_DOES_NOT_SIGNAL
#define SKIPPED_SIGNALS && !skipped
#else
#define SKIPPED_SIGNALS
#endif

/* Sends what has been collected. */
inline flush() {
  if
  :: d_step { pending > 0 && E1 -> counter[event] = (counter[event] + pending) % MODULUS; pending = 0; event = 0 }
  :: pending == 0
  fi
}

inline guarded_body() {
  load(cached[w * WORDS + GUARD], memory[GUARD], seen);
  assert(seen % 2 == epoch % 2);
#ifdef BUG_GUARD_IGNORED
  seen = 2;
#endif
  if
  :: seen >= 2 -> assert(truth); store(held[op], memory[op], epoch % 2)
  :: else
  fi;
  seen = 0
}

inline body() {
  if
  :: op < B -> store(held[op], memory[op], epoch % 2)
  :: op == B ->
     see(0, epoch % 2);
     see(1, epoch % 2);
     store(held[GUARD], memory[GUARD], epoch % 2 + 2 * truth);
     store(held_report, report, epoch % 2 + 2 * truth)
  :: op == C || op == C + 1 -> guarded_body()
  :: op == D ->
     see(0, epoch % 2);
     see(1, epoch % 2);
     see(GUARD, epoch % 2 + 2 * truth);
     if
     :: truth -> see(C, epoch % 2); see(C + 1, epoch % 2)
     :: else
     fi
  :: op > D
  fi
}

proctype worker(byte w) {
  byte op, epoch, seen, event, pending;
  bool closes, skipped, late;
  do
  :: atomic { inbox[w]?op,closes,skipped,epoch -> skip }  /* [R2]: nothing is cached from here on */
     /* gate */
     if
     :: op >= B && op <= D && !skipped -> atomic { early() }
     :: else
     fi;
     atomic {
       if
       :: op >= B && op <= D && !skipped ->
#ifndef BUG_FIRST_LOOK_RELAXED
          acquire();
#endif
          late = !REACHED(WAITS_FOR(op), epoch);
          if
          :: late -> early()
          :: else
          fi
       :: else
       fi
     }
     if
     :: late ->
#ifndef BUG_NO_FLUSH_BEFORE_WAIT
        flush();
#endif
        REACHED(WAITS_FOR(op), epoch);
        atomic {
#ifndef BUG_LAST_LOOK_RELAXED
          acquire();
#endif
          late = false
        }
     :: else
     fi;
     /* body */
     atomic {
       if
       :: skipped
       :: else -> body()
       fi
     }
     if
     :: atomic { op == B && !skipped && R1 && nfull(outbox[w]) -> outbox[w]!true }
     :: op != B || skipped
     fi;
     /* signal */
     if
     :: pending > 0 && event != SIGNALS(op) -> flush()
     :: else
     fi;
     atomic {
       if
       :: op < D SKIPPED_SIGNALS -> event = SIGNALS(op); pending++
#ifndef CANCEL
       :: op > D -> event = SIGNALS(op); pending = pending + op - SIGNAL
#endif
       :: else
       fi
     }
     /* answer */
     if
     :: closes ->
#ifdef BUG_ANSWER_BEFORE_SIGNALS
        atomic { R1 && nfull(outbox[w]) -> outbox[w]!false };
        flush();
#else
        flush();
        atomic { R1 && nfull(outbox[w]) -> outbox[w]!false };
#endif
     :: else
     fi;
     atomic { op = 0; epoch = 0; closes = 0; skipped = 0; acquire() }
  od
}

/* The guard of what comes next is known to fail. */
#define KNOWN_FALSE ((next == C || next == C + 1) && reported && !truth && !cancelled && !open)

/* To a worker the scheduler likes; a task of several tiles goes on where it began. */
inline pick() {
  if
  :: !open -> on = 0
  :: !open && next != A -> on = 1  /* the first is worker 0, to give it a name */
  :: open
  fi
}

/* What buffers hold between runs is anybody's guess: the worst is what looks like the run before. */
inline scribble(parity) {
  memory[0] = parity; memory[1] = parity; memory[GUARD] = parity; memory[C] = parity; memory[C + 1] = parity; report = parity
}

inline take(w) {
  outbox[w]?is_report;
  if
  :: is_report -> assert(report % 2 == epoch % 2 && report / 2 == truth); reported = true
  :: else -> unanswered--
  fi;
  is_report = false
}

/* Sends the ops before `ahead`. What goes out at once or in several steps is the same to workers, who may be late anyhow; what
 * counts is whether the report has been seen. With CANCEL a run may be cancelled before its guard is computed, or between two
 * tiles of one op; then nothing else varies, or the states are too many. */
inline send_ahead() {
  do
#ifdef CANCEL
  :: (next == B || next == C + 1) && !cancelled -> cancelled = true
#else
  :: KNOWN_FALSE -> pick(); inbox[on]!(SIGNAL + 5 - next),true,false,epoch; unanswered++; on = 0; next = D
  :: next < ahead && (next < B || next == C) && !KNOWN_FALSE -> pick(); inbox[on]!next,false,false,epoch; open = true; next++
#endif
  :: next < ahead && !KNOWN_FALSE ->
     pick();
     inbox[on]!next,true,cancelled,epoch;
     unanswered++; open = false; on = 0; next++
  :: next >= ahead -> break
  od
}

proctype scheduler() {
  byte epoch, next, ahead, unanswered, on;
  bool open, reported, is_report, cancelled;
  do
  :: atomic { nempty(outbox[0]) -> take(0) }
  :: atomic { nempty(outbox[1]) -> take(1) }
  :: atomic {
       next == 0 || (next <= D && reported) ->
       ahead = D + 1;
       if
       :: next == 0 ->
          truth = true;
#ifndef CANCEL
          if
          :: true
          :: truth = false
          fi;
          if  /* how much is sent ahead of the report */
          :: true
          :: ahead = C
          :: ahead = C + 1
          :: ahead = D
          fi
       :: else
#endif
       fi;
       send_ahead()
     }
  :: atomic {
#ifdef BUG_RUN_ENDS_TOO_SOON
       next > D && unanswered <= 1 ->
#else
       next > D && unanswered == 0 ->
       assert(counter[0] == DUE(0, epoch) && counter[1] == DUE(1, epoch) && counter[2] == DUE(2, epoch));
#endif
       assert(reported || cancelled);
       epoch = (epoch + 1) % EPOCHS;
       next = 0; ahead = 0; reported = false; cancelled = false;
       scribble(1 - epoch % 2)
     }
  od
}

init {
  atomic {
    byte k;
    for (k : 0 .. WORDS - 1) { held[k] = NONE }
    scribble(1);
    for (k : 0 .. 2 * WORDS - 1) { cached[k] = NONE }
    held_report = NONE;
    k = 0;
    run link();
    run worker(0);
    run worker(1);
    run scheduler()
  }
}
