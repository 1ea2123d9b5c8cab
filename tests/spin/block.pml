/* A worker that is a thread block: its stages side by side, each with a warp of its own, and WARPS that run bodies. One launch:
 * TILES tiles at most, an even number, two to an inbox task, through a ring of PLACES, until the worker leaves: asked to, between inbox tasks or, to
 * suspend, before any tile; or with a fault of a task, a wait or a body.
 *
 * model                          code
 *   content[], kind[], body_of[]   CudaPipelineMemory: records and controls of a place: which tile, TileKind, Control::body
 *   fetched, gated, bodies,        the words of the same names in pipeline_stage.cuh, each written by one stage
 *   synced, signalled, posted,
 *   closing, leave, suspend, stop
 *   go[], ends[], go_*, done_*     the words and named barriers that gate and bodies, bodies and signal meet at, two of each in turn
 *   itself[], hurry, given_up      CudaPipeline::waits_itself, the words of the same names (with ITSELF)
 *   early[], inputs_*, stays       kRecordEarly, the barrier where a body that has begun meets the gate, the word of that name (with EARLY)
 *   fetch                          CudaFetch::run, publish_tiles, has_room, gate_closed, may_take, look_at_host
 *   gate                           CudaPipeline::gate, await_tile, leaves_before, suspend_before, name_body, await_synced, pass, send_bodies_home; outlasts, await_tagged
 *   body                           CudaPipeline::run_bodies, leave_bodies
 *   signaller                      CudaPipeline::signal, await_gated, has_closed, publish_signalled
 *   poster                         CudaPipeline::post, post_tile; WorkerPost::leave_parked, fault
 *
 * Memory. What a stage writes plainly before it publishes a word stands there for whoever acquires the word; a mistake that weakens one
 * side does the access on the wrong side of the word. Barriers order everything. Waits block instead of spinning, so that what can never
 * go on is an invalid end state; of the waits for events only the outcomes are there (events.pml has the rest). Taken together: tiles
 * collected before one add, the groups of fetch, traces, drafts (a verdict is one more outcome of the wait), strands (a tile here is a strand: what is joined passes
 * all stages as one), what a body does in front of inputs_* that finds its input tagged (tagged_values.hpp: run again it does the same).
 *
 * Checked: a place is not written while anybody still reads it; nobody meets a barrier twice in one turn; each warp runs a body once, the
 * tile that the gate let through; a tile is signalled after its body, once, and never after a fault; it is posted after its signals, in
 * order, all up to where the worker says that it left; no tile behind that has run, for the next launch begins there; all stages end.
 */
/* ENDS: tiles without bodies, guards, suspension, and one fault: of a task, a wait or a body. With many tiles they are too many states; with ITSELF, bodies that wait themselves, there are no guards
 * and no faults. */
#if defined(ENDS) && !defined(ITSELF)
#define FAULTS
#endif
#ifndef TILES
#define TILES 4
#endif
#ifndef WARPS
#define WARPS 2
#endif
#ifndef PLACES
#define PLACES 2
#endif

#define BODY 1
#define EMPTY 2   /* kOpNop, kOpSignal: no body */
#define SKIPPED 3 /* a guard that fails, a draft that is dropped */
#define FAULT 4
#define GUARDED 5 /* a body whose guard the gate has yet to read */

#define EXIT 255
#define ASIDE 16  /* added to a place: its body begins before its inputs are there */
#define NOWHERE 254
#define LAST 100
#define PLACE(t) ((t) % PLACES)
#define OPENS(t) ((t) % 2 == 0)

byte content[PLACES] = NOWHERE, kind[PLACES], body_of[PLACES];
bool body_fault[PLACES];
byte fetched, gated, bodies, synced, signalled, posted;
bool closing, leave, suspend, stop, fault_made;
byte go[2], ends[2];
byte reading[PLACES];             /* stages that look at a place */

byte ran[TILES], added[TILES];    /* warps that ran the tile's body; signals sent */
bool has_body[TILES];
bool left_parked, left_faulted;
byte ended;                       /* stages, and warps of bodies */

/* Named barriers. `seen`: who is there already, a bit each; a turn ends when all three are. */
#define GATE 1
#define SIGNALLER 1
#define WARP(w) (2 << (w))
#if WARPS == 1
#define ALL 3
#else
#define ALL 7
#endif
byte go_seen[2], done_seen[2];
byte go_turn[2], done_turn[2];
#ifdef EARLY
byte inputs_seen[2], inputs_turn[2];
bool early[PLACES], stays;
#endif
#ifdef ITSELF
bool itself[PLACES], hurry, given_up;           /* its body waits for words of other workers, which may leave */
#endif

inline arrive(seen, turn, who) {
  d_step {
    assert((seen & (who)) == 0);
    seen = seen | (who);
    if
    :: seen == ALL -> seen = 0; turn++
    :: else
    fi
  }
}

inline begin_reading(p) { reading[p]++ }
inline end_reading(p) { reading[p]-- }

/* ---- fetch ---- */
inline write_place(t) {
  d_step {
    assert(reading[PLACE(t)] == 0);
    content[PLACE(t)] = t;
    body_fault[PLACE(t)] = false
  };
  atomic {
    if
    :: kind[PLACE(t)] = BODY
#ifdef ENDS
    :: kind[PLACE(t)] = EMPTY
#endif
#ifdef FAULTS
    :: kind[PLACE(t)] = GUARDED
    :: !fault_made -> fault_made = true; kind[PLACE(t)] = FAULT
#endif
    fi;
#ifdef EARLY
    if
    :: kind[PLACE(t)] == BODY -> early[PLACE(t)] = true
    :: early[PLACE(t)] = false
    fi
#endif
#ifdef ITSELF
    if
    :: kind[PLACE(t)] == BODY -> itself[PLACE(t)] = true
    :: itself[PLACE(t)] = false
    fi
#endif
  }
}

#define CLOSED (closing || stop)
#ifdef BUG_ROOM_WITHOUT_POSTED
#define ROOM(t) ((t) < signalled + PLACES)
#elif defined(BUG_ONE_PLACE_MORE)
#define ROOM(t) ((t) < posted + PLACES + 1 && (t) < signalled + PLACES + 1)
#else
#define ROOM(t) ((t) < posted + PLACES && (t) < signalled + PLACES)
#endif

active proctype fetch() {
  byte t;
  bool closed;
  do
  :: CLOSED -> break
  :: else ->
    if
    :: t < TILES && !(leave && OPENS(t)) ->
      atomic {
        if
        :: ROOM(t)
        :: CLOSED -> closed = true
        fi
      }
      if
      :: closed -> break
      :: else
      fi;
#ifdef BUG_FETCHED_RELAXED
      fetched = t + 1;
      write_place(t);
      t++
#else
      write_place(t);
      d_step { fetched = t + 1; t++ }
      skip
#endif
    :: !leave -> leave = true                    /* idle, or asked to */
#ifdef ENDS
    :: !leave -> atomic { leave = true; suspend = true }
#endif
    :: leave && (t == TILES || OPENS(t)) -> CLOSED
    fi
  od;
  ended++
}

/* ---- gate ---- */
#ifdef BUG_BODY_TOO_SOON
#define SYNCED(b) (true)
#else
#define SYNCED(b) (synced + 1 >= (b))
#endif

active proctype gate() {
  byte t, b, p, k;
  bool close, begun;
#ifdef ITSELF
  bool at_home;
#endif
  do
  :: stop -> break
  :: leave && OPENS(t) -> close = true; break     /* between inbox tasks */
#ifdef ENDS
  :: fetched > t && suspend && kind[PLACE(t)] != FAULT -> close = true; break
#endif
  :: fetched > t ->
    d_step {
      p = PLACE(t);
      begin_reading(p);
      assert(content[p] == t);
      k = kind[p]
    }
    if
    :: k == BODY || k == GUARDED ->
      atomic {
        SYNCED(b);
        body_of[p] = b;
        go[b % 2] = p
      }
#ifdef EARLY
      if
      :: early[p] -> go[b % 2] = p + ASIDE; begun = true; arrive(go_seen[b % 2], go_turn[b % 2], GATE)
      :: else
      fi
#endif
    :: else
    fi;
    /* the wait, and the guard */
    if
#ifdef ITSELF
    :: k == BODY && itself[p]
    :: (k == BODY && !itself[p]) || k == GUARDED ->
#else
    :: k == BODY || k == GUARDED ->
#endif
      atomic {
        if
        :: k == BODY
#ifdef FAULTS
        :: k == GUARDED -> k = BODY
        :: k == GUARDED -> k = SKIPPED
        :: !fault_made -> fault_made = true; k = FAULT
#endif
        :: suspend -> close = true
        fi
      }
    :: else
    fi;
    if
    :: close -> end_reading(p); break
    :: else
    fi;
#ifndef BUG_KIND_BEHIND_GATED
    kind[p] = k;
#endif
    if
    :: k == BODY ->
      atomic {
        has_body[t] = true;
        if
#ifdef EARLY
        :: begun -> begun = false; arrive(inputs_seen[b % 2], inputs_turn[b % 2], GATE)
#endif
        :: !begun -> arrive(go_seen[b % 2], go_turn[b % 2], GATE)
        fi;
        b++
      }
    :: else
    fi;
#ifdef ITSELF
    if
    :: k == BODY && itself[p] ->
      do
      :: bodies == b * WARPS -> break
      :: suspend && !hurry -> hurry = true
      :: given_up ->
        close = true;
        at_home = true;
        break
      od
    :: else
    fi;
    if
    :: at_home -> d_step { has_body[t] = false; end_reading(p) }; break
    :: else
    fi;
#endif
#ifdef BUG_KIND_BEHIND_GATED
    gated = t + 1;
    kind[p] = k;
    d_step { end_reading(p); t++ }
#else
    d_step { end_reading(p); t++; gated = t }
    skip;
#endif
#ifndef ITSELF
    if
    :: k == FAULT -> break
    :: else
    fi
#endif
  od;
  if
  :: close -> closing = true
  :: else
  fi;
  if
#ifdef EARLY
  :: begun ->
#ifdef BUG_EARLY_SENT_HOME_BY_GO
     go[b % 2] = EXIT;
     arrive(go_seen[b % 2], go_turn[b % 2], GATE)
#else
#ifndef BUG_STAYS_UNSAID
     stays = true;
#endif
     arrive(inputs_seen[b % 2], inputs_turn[b % 2], GATE)
#endif
#endif
#ifdef ITSELF
  :: at_home
  :: !at_home ->
#else
  :: !begun ->
#endif
#ifndef BUG_HOME_TOO_SOON
     SYNCED(b);
#endif
     go[b % 2] = EXIT;
     arrive(go_seen[b % 2], go_turn[b % 2], GATE)
  fi;
  ended++
}

/* ---- bodies ---- */
proctype body(byte w) {
  byte b, p, t;
#ifdef EARLY
  byte turn;
#endif
  do
  :: arrive(go_seen[b % 2], go_turn[b % 2], WARP(w));
    go_turn[b % 2] == b / 2 + 1;
    p = go[b % 2];
    if
    :: p == EXIT ->
#ifndef BUG_EXIT_UNSAID
      ends[b % 2] = EXIT;
#endif
      arrive(done_seen[b % 2], done_turn[b % 2], WARP(w));
      break
    :: else
    fi;
#ifdef EARLY
    if
    :: p >= ASIDE ->
      p = p - ASIDE;
      d_step { begin_reading(p); t = content[p]; turn = inputs_turn[b % 2] }
#ifndef BUG_EARLY_DOES_NOT_AWAIT
      arrive(inputs_seen[b % 2], inputs_turn[b % 2], WARP(w));
      inputs_turn[b % 2] != turn;
#endif
      d_step { assert(content[p] == t); end_reading(p); turn = 0; t = 0 }
      if
      :: stays ->
        ends[b % 2] = EXIT;
        arrive(done_seen[b % 2], done_turn[b % 2], WARP(w));
        break
      :: else
      fi
    :: else
    fi;
#endif
#ifdef ITSELF
    if
    :: itself[p] && hurry ->
      given_up = true;
#ifndef BUG_GIVEN_UP_UNSAID
      ends[b % 2] = EXIT;
#endif
      arrive(done_seen[b % 2], done_turn[b % 2], WARP(w));
      break
    :: true                                     /* the words come */
    fi;
#endif
    atomic {
      begin_reading(p);
      t = content[p];
      ran[t]++;
      if
      :: true
#ifdef FAULTS
      :: w == 0 && !fault_made -> fault_made = true; body_fault[p] = true; ends[b % 2] = FAULT
#endif
      fi
    }
    d_step { assert(content[p] == t); end_reading(p) }
    arrive(done_seen[b % 2], done_turn[b % 2], WARP(w));
    d_step { bodies++; b++ }
    skip
  od;
  ended++
}
#define BODY_ENDED(b) (synced > (b)) /* [P12] */

init {
  atomic {
    run body(0);
#if WARPS == 2
    run body(1)
#endif
  }
}

/* ---- signal ---- */
active proctype signaller() {
  byte t, b, p, k, end;
  bool halted, shut;
  do
  :: fetched > t ->
    d_step {
      p = PLACE(t);
      begin_reading(p);
      k = kind[p]
    }
#ifdef ENDS
    if
    :: k != BODY ->
#ifdef BUG_GUARD_NOT_AWAITED
      if
      :: k == GUARDED -> k = BODY
      :: else
      fi
#else
      if
#ifdef BUG_GATED_FURTHER_BACK
      :: gated != t -> k = kind[p]
#else
      :: gated > t -> k = kind[p]
#endif
      :: (closing || stop) && gated == t -> shut = true
      fi
#endif
    :: else
    fi;
#endif
#ifdef ENDS
    if
    :: shut -> end_reading(p); break
    :: else
    fi;
#endif
    end = (k == FAULT -> FAULT : 0);
    if
    :: k == BODY ->
      arrive(done_seen[b % 2], done_turn[b % 2], SIGNALLER);
      done_turn[b % 2] == b / 2 + 1;
      end = ends[b % 2];
      b++
    :: else
    fi;
    if
    :: end == EXIT -> end_reading(p); break
    :: else
    fi;
    if
    :: end != 0 -> halted = true
    :: else
    fi;
#ifdef BUG_SIGNALLED_BEFORE_ADD
    signalled = t + 1;
#endif
#ifdef BUG_SIGNAL_AFTER_FAULT
    if
    :: true ->
#else
    if
    :: !halted ->
#endif
      d_step { assert(k != BODY || (ran[t] == WARPS && !body_fault[p])); added[t]++ }
    :: else
    fi;
    d_step { end_reading(p); t++ }
#ifndef BUG_SIGNALLED_BEFORE_ADD
    signalled = t;
#endif
    if
    :: k == BODY -> synced = b
    :: else
    fi
#ifdef BUG_GATED_BEFORE_CLOSING
  :: gated == t -> if
    :: fetched > t
    :: closing || stop -> break
    fi
#else
  :: (closing || stop) && gated == t -> break
#endif
  od;
  synced = b + LAST;
  ended++
}

/* ---- post ---- */
active proctype poster() {
  byte t, p, seen;
  bool closed;
  do
  :: true ->
#ifdef BUG_CLOSING_BEHIND_GATED
    seen = gated;
    closed = closing;
#else
    closed = closing;
    seen = gated;
#endif
    if
    :: t < seen ->
      d_step { p = PLACE(t); begin_reading(p); assert(content[p] == t && kind[p] != GUARDED) }
      if
      :: kind[p] == BODY ->
#ifndef BUG_POST_WITHOUT_BODY
        BODY_ENDED(body_of[p])
#endif
      :: else
      fi;
#ifdef FAULTS
      if
      :: kind[p] == FAULT || (kind[p] == BODY && body_fault[p]) -> left_faulted = true; end_reading(p); break
      :: else
      fi;
#endif
#ifndef BUG_POST_BEFORE_SIGNALS
      signalled > t;
#endif
      d_step { assert(added[t] == 1); end_reading(p); t++; posted = t }
    :: t == seen && closed -> left_parked = true; break
    :: t == seen && !closed -> (gated > t || closing)
    fi
  od;
#ifndef BUG_NO_STOP
  stop = true;
#endif
  ended++
}

/* All have ended. */
active proctype judge() {
  byte t;
  ended == 4 + WARPS;
  assert(left_parked || left_faulted);
  d_step {
    do
    :: t < TILES ->
      if
      :: t < posted -> assert(added[t] == 1 && ran[t] == (has_body[t] -> WARPS : 0))
      :: else -> assert(left_faulted || (ran[t] == 0 && added[t] == 0))
      fi;
      t++
    :: else -> break
    od
  }
}
