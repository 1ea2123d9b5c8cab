/* What memory and link may do, for all models of this folder. Each model lists its own words.
 *
 * Plain and relaxed stores. `hold` performs a store now, or leaves it in the writer's `held` copy, from where `link` performs
 * it at any later moment; several held stores of one agent are performed in any order. A release waits until its agent
 * holds nothing (RELEASED), as the PTX and C++ memory models ask of it.
 *
 * The link. What one side publishes to the other (slots, credit, states) goes through a channel: posted writes, in order for
 * each sender and direction, and as late as the channel is deep. Relaxed stores may pass them. Reads return what memory holds
 * at that moment and are acted on in a later step, so an answer may be old when it arrives.
 *
 * Loads. A load leaves what it returned in its reader's `cached` copy, and may return that instead of memory: loads may be
 * performed early. An acquire sets the copies of its agent to NONE, after which loads see all that was performed before.
 *
 * Memory is one: what is performed is seen by all (both sides of PCIe, and the L2 of a GPU, work so). Waits block instead of
 * spinning, so whatever can never go on is a deadlock and Spin reports it as an invalid end state. Deadlines are left out.
 */
#define NONE 255

#define HOST 0
#define WORKER(w) (1 + (w))

byte held_count[3];          /* stores that an agent holds back: host, workers */

#define RELEASED(agent) (held_count[agent] == 0)

inline hold(agent, kept, word, value) {
  assert(kept == NONE);
  if
  :: word = value
  :: kept = value; held_count[agent]++
  fi
}

inline load(cached, word, value) {
  if
  :: value = word
  :: cached != NONE -> value = cached
  fi;
  cached = value
}

/* One of link's options: performs a store that `agent` holds. */
#define PERFORM(agent, kept, word) \
  atomic { kept != NONE -> word = kept; kept = NONE; held_count[agent]-- }

/* Sequence numbers and counts, with a small modulus in place of 2^32: a multiple of the ring's size, and larger. */
#ifndef MODULUS
#define MODULUS 8
#endif
#ifndef SLOTS
#define SLOTS 4
#endif
#define NEXT(p) (((p) + 1) % MODULUS)
#define SEQ(p) NEXT(p)                              /* wire::ring_seq */
#define AHEAD(a, b) (((a) + MODULUS - (b)) % MODULUS)
#define AT(w, p) ((w) * SLOTS + (p) % SLOTS)
