/* A relay: who has its weights copied and its WARPS of bodies, which meet at barriers in shared memory. RELAYS, one behind the other, of STEPS steps each; any but the last may be given
 * up in the middle. Stages and steps in shared memory are used again within a relay, and all of it between two.
 *
 * model                           code
 *   under_way, done                 Relay::active, done: the words of the same names, CudaPipelineMemory::Relay
 *   full, empty, step_full, ...     barriers of RelayShared: the parity of the phase that is under way, arrivals of it
 *   due, step_due                   bulk copies that have not landed (memory: the hardware that does)
 *   post: ask_step, ask_stage,      serve_relay; RelayFiller::run, ask_step, fill, ask_ahead, await_copies
 *     ask_ahead
 *   pieces, ahead                   pieces that the ring has been asked for (RelayFill::next), and the ring or the L2 (RelayFill::ahead)
 *   body                            run_relay, begin_relay, RelayBody::run; RelayProducts::walk, take; a step without pieces is RelayAttention::attend or RelayPick::run
 *   meet                            RelayWords::sync, has_given_up
 *
 * Memory. Barriers and words order what is said with them ([RL1] to [RL10], relay.cuh); waits block instead of spinning. A copy writes from when it is asked for until it has landed,
 * in any order. Taken together: a barrier of the bodies and the look at `given_up` behind it (a warp gives up only after many looks for words, by when all have passed
 * the barrier before); how many copies are under way at most, for which nothing but copies that land is waited for; that the posting warp leaves serve_relay()
 * and comes back, since it looks at steps anew each time here.
 *
 * Checked: a warp finds the step and the piece that are its turn; nobody looks at what a copy may be writing; what the L2 is asked for ahead is of the step that it is meant to
 * be, and of something further on each time; nothing is under way when shared memory is another's; everybody comes to an end.
 */
#define WARPS 2
#ifndef STEPS
#define STEPS 4
#endif
#ifndef RELAYS
#define RELAYS 2
#endif
#define STAGES 2
#define SLOTS 3
#define MOST_AHEAD 2

#ifndef WITHOUT
#define WITHOUT 1                               /* the step that has no pieces */
#endif
#define PIECES(step) ((step) == WITHOUT -> 0 : ((step) == 3 -> 1 : 2))
#define PIECE(step, at) (2 * (step) + (at))
#define NOTHING 255

bool under_way, done, hurry;

byte content[STAGES] = NOTHING, step_content[SLOTS] = NOTHING;
byte due[STAGES] = NOTHING, step_due[SLOTS] = NOTHING;
bit stage_full[STAGES], stage_empty[STAGES], step_full[SLOTS], step_empty[SLOTS];
byte read_by[STAGES], step_read_by[SLOTS];      /* arrivals of the phase */
byte reading[STAGES], step_reading[SLOTS];

/* Whether the phase of this parity has ended. */
#define ENDED(barrier, parity) (barrier != (parity))

inline arrive(barrier, arrivals) {
  arrivals++;
  if
  :: arrivals == WARPS -> arrivals = 0; barrier = 1 - barrier
  :: else
  fi
}

active proctype memory() {
  byte i;
end:
  do
  :: d_step { due[0] != NOTHING -> content[0] = due[0]; due[0] = NOTHING; stage_full[0] = 1 - stage_full[0] }
  :: d_step { due[1] != NOTHING -> content[1] = due[1]; due[1] = NOTHING; stage_full[1] = 1 - stage_full[1] }
  :: d_step { step_due[0] != NOTHING -> step_content[0] = step_due[0]; step_due[0] = NOTHING; step_full[0] = 1 - step_full[0] }
  :: d_step { step_due[1] != NOTHING -> step_content[1] = step_due[1]; step_due[1] = NOTHING; step_full[1] = 1 - step_full[1] }
  :: d_step { step_due[2] != NOTHING -> step_content[2] = step_due[2]; step_due[2] = NOTHING; step_full[2] = 1 - step_full[2] }
  od
}

/* ---- bodies ---- */
byte met, turn;
bool gives_up[2];                               /* of the turn under way, and of the one before */

/* Waits for all; `over`: one of them has given up. */
inline meet(over) {
  atomic {
    mine = turn % 2;
    gives_up[mine] = gives_up[mine] || over;
    met++;
    if
    :: met == WARPS -> met = 0; turn++; gives_up[turn % 2] = false
    :: else
    fi
  }
  atomic { turn % 2 != mine -> over = gives_up[mine] }
}

inline begin_relay() {
  d_step {
    i = 0;
    do
    :: i < STAGES -> assert(due[i] == NOTHING && reading[i] == 0); stage_full[i] = 0; stage_empty[i] = 0; read_by[i] = 0; content[i] = NOTHING; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < SLOTS -> assert(step_due[i] == NOTHING && step_reading[i] == 0); step_full[i] = 0; step_empty[i] = 0; step_read_by[i] = 0; step_content[i] = NOTHING; i++
    :: else -> break
    od;
    i = 0; done = false; under_way = true
  }
}

proctype body(byte warp) {
  byte relay, i, step, at, stage;
  bit mine, round;
  bool over;
  do
  :: relay < RELAYS ->
    if
    :: warp == 0 -> begin_relay()
    :: else
    fi;
    over = false;
    if
    :: warp == 0 && hurry && relay + 1 < RELAYS -> over = true  /* what the relay waits for does not come: CudaPipelineMemory::stays, the same for all */
    :: true
    fi;
    meet(over);
    step = 0; stage = 0; round = 0;
    do
    :: step < STEPS && !over ->
      d_step {
        ENDED(step_full[step % SLOTS], (step / SLOTS) % 2) ->
        assert(step_content[step % SLOTS] == step);
        step_reading[step % SLOTS]++
      }
      if
      :: hurry && relay + 1 < RELAYS -> over = true        /* words that do not come */
      :: true
      fi;
      at = 0;
      do
      :: at < PIECES(step) ->
        d_step {
          ENDED(stage_full[stage], round) ->
          assert(content[stage] == PIECE(step, at));
          reading[stage]++
        }
        d_step {
          reading[stage]--;
#ifdef BUG_STAGE_FREED_BY_ONE
          read_by[stage] = WARPS - 1;
#endif
          arrive(stage_empty[stage], read_by[stage]);
          stage++;
          if
          :: stage == STAGES -> stage = 0; round = 1 - round
          :: else
          fi;
          at++
        }
      :: else -> break
      od;
      meet(over);
      d_step {
        step_reading[step % SLOTS]--;
        if
        :: !over -> arrive(step_empty[step % SLOTS], step_read_by[step % SLOTS])
        :: else
        fi;
        step++
      }
    :: else -> break
    od;
    meet(over);
    if
    :: warp == 0 ->
      done = true;
#ifndef BUG_ENDS_BEFORE_POST
      !under_way
#endif
    :: else
    fi;
    over = false;
    meet(over);
    atomic { relay++; over = false; step = 0; at = 0; mine = turn % 2 }
  :: else -> break
  od
}

/* ---- the posting warp ---- */
inline advance(its_step, its_at) {
  its_at++;
  if
  :: its_at == PIECES(its_step) -> its_at = 0; its_step++
  :: else
  fi
}

#ifdef BUG_STEP_NOT_AWAITED
#define STEP_READ true
#else
#define STEP_READ ENDED(step_empty[asked % SLOTS], 1 - (asked / SLOTS) % 2)
#endif
#define MAY_ASK_STEP (asked < STEPS && asked - step < SLOTS - 1 && STEP_READ)
#define KNOWN(which) ENDED(step_full[(which) % SLOTS], ((which) / SLOTS) % 2)
#ifdef BUG_STAGE_NOT_AWAITED
#define STAGE_READ true
#else
#define STAGE_READ ENDED(stage_empty[stage], 1 - round)
#endif
#define WEIGHTS (step < asked && KNOWN(step))
#define MAY_ASK_STAGE (WEIGHTS && (PIECES(step) == 0 || STAGE_READ))
#define WAITS_FOR_STAGE (WEIGHTS && PIECES(step) != 0 && !STAGE_READ)
#ifdef BUG_AHEAD_LEFT_BEHIND
#define BEHIND false
#else
#define BEHIND (ahead < pieces || ahead_step < step)
#endif
#define NEXT_AHEAD (BEHIND -> step : ahead_step)
#define MAY_ASK_AHEAD (WAITS_FOR_STAGE && (BEHIND || ahead - pieces < MOST_AHEAD) && NEXT_AHEAD < asked && KNOWN(NEXT_AHEAD))

inline ask_step() {
  assert(step_reading[asked % SLOTS] == 0);
  step_content[asked % SLOTS] = NOTHING;
  step_due[asked % SLOTS] = asked;
  asked++
}

inline ask_stage() {
  assert(step_content[step % SLOTS] == step);
  if
  :: PIECES(step) == 0 -> step++
  :: else ->
    assert(reading[stage] == 0 && due[stage] == NOTHING);
    content[stage] = NOTHING;
    due[stage] = PIECE(step, at);
    filled[stage]++;
    stage++;
    if
    :: stage == STAGES -> stage = 0; round = 1 - round
    :: else
    fi;
    advance(step, at);
    pieces++
  fi
}

inline ask_ahead() {
  was = 2 * ahead_step + ahead_at;
  if
  :: BEHIND -> ahead_step = step; ahead_at = at; ahead = pieces
  :: else
  fi;
  assert(step_content[ahead_step % SLOTS] == ahead_step);
  if
  :: PIECES(ahead_step) == 0 -> ahead_step++
  :: else ->
    assert(ahead != pieces || (ahead_step == step && ahead_at == at));
    ahead++;
    ahead_at++;
    if
    :: ahead_at == PIECES(ahead_step) -> ahead_at = 0; ahead_step++
    :: else
    fi
  fi;
  assert(2 * ahead_step + ahead_at > was);
  was = 0
}

active proctype post() {
  byte relay, asked, step, at, stage, pieces, ahead, ahead_step, ahead_at, was;
  byte filled[STAGES];
  bit round;
  do
  :: relay < RELAYS ->
    under_way;
    do
    :: d_step { MAY_ASK_STEP -> ask_step() }
    :: d_step { MAY_ASK_STAGE -> ask_stage() }
    :: d_step { MAY_ASK_AHEAD -> ask_ahead() }
    :: atomic { done && !MAY_ASK_STEP && !MAY_ASK_STAGE && !MAY_ASK_AHEAD -> break }
    od;
#ifndef BUG_END_DOES_NOT_AWAIT
    atomic { stage_full[0] == filled[0] % 2 && stage_full[1] == filled[1] % 2 && due[0] == NOTHING && due[1] == NOTHING }
    atomic { step_due[0] == NOTHING && step_due[1] == NOTHING && step_due[2] == NOTHING }
#endif
    atomic {
      asked = 0; step = 0; at = 0; stage = 0; round = 0; pieces = 0; ahead = 0; ahead_step = 0; ahead_at = 0; filled[0] = 0; filled[1] = 0;
      relay++;
      under_way = false
    }
  :: else -> break
  od
}

active proctype host() {
  if
  :: hurry = true
  :: true
  fi
}

init {
  atomic {
    run body(0);
    run body(1)
  }
}
