// Every constant of the scheduler that is a choice and not a layout, with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ccks::scheduler {

/// Tasks per worker that an op is cut into: enough to even out unequal workers, few enough that a decision stays
/// far below the time of the task it decides about.
inline constexpr std::uint32_t kTasksPerWorker = 4;

/// Tasks the lookahead policy keeps in front of one worker. A task of a microsecond and a link of two need four; the
/// rest covers a scheduler thread that loses its core for a while. More would only bind choices too early.
inline constexpr std::uint32_t kLookaheadWindow = 64;

/// Tasks of lead over the average before a worker's neighbours get its tiles. Tiles that leave their neighbourhood wait
/// across workers: a chain of empty tasks loses more by moving than an even load gains (ccks-bench dispatch).
inline constexpr std::uint32_t kFairTasks = 8;

/// A stretch goes out as lists if a started list saves at least so many messages less one, and its tasks take less than
/// kSpineTaskNs on average. Longer tasks leave the scheduler time to place each where there is room, by what has really
/// finished; shorter ones are through before an answer has crossed the link a few times.
inline constexpr std::uint64_t kSpineTasks = 4;
inline constexpr std::uint64_t kSpineTaskNs = 20'000;

/// Tile costs are counted for a core that moves 8 bytes a ns; an H200's SM moves 35. A llama's step was sent tile by tile for it: 2,370
/// us instead of 1,943.
inline constexpr std::uint64_t kGpuCostScale = 4;

/// Records in the lists of one frame: 32 MiB. Plans of more tiles are cut up by the workers themselves.
inline constexpr std::uint64_t kMostRecords = 1 << 18;

/// A tensor of more gets no tagged copy, which takes twice its bytes in each slot: eight rows, what bodies of few rows take, of 4,096 floats.
inline constexpr std::uint64_t kMostTaggedBytes = 128 * 1024;
/// An op of no more operands is copied into every worker that has tiles of it (768 bytes of a GPU's shared memory).
inline constexpr std::uint32_t kMostTaggedOperands = 8;
/// Of plans with more ops no tile overtakes its events: which ops are behind which takes a bit for two of them.
inline constexpr std::size_t kMostOvertakingOps = 8192;

/// A relay has so many products at least: with fewer, what lies between tiles is little beside what a list's record of its own takes.
inline constexpr std::ptrdiff_t kLeastRelayProducts = 4;
/// As many of those is one by chosen experts, whose tiles have to find their expert and rows first.
inline constexpr std::ptrdiff_t kProductsOfExperts = 2;
/// A longer row gets no words, which take twice its bytes in each slot: as many bytes as a tagged copy has at most.
inline constexpr std::int64_t kMostRelayElements = kMostTaggedBytes / 4;
/// Stages of weights, of 16 KB, that a worker of a relay asks memory for at a time, where it waits for other workers and while a product is at its stages. What is asked of memory comes back in order, words
/// that others wait for behind it, and who has more under way has more of memory: those who are still at their stages, for whom the others wait, are to have it. An H200, a step of a Llama of 1B, us, in one
/// call: 645 with three and three, 639 with three and four, 638 with two and four, 639 with two or three and five, 646 with two and three; 714 where every fourth worker had two.
inline constexpr std::uint32_t kRelayUnderWayWaiting = 2, kRelayUnderWayMultiplying = 4;
/// Pieces of as many bytes that the L2 is asked for while all stages are full, and cycles from one to the next: somewhat less than memory takes for one of each worker (0.46 us on an
/// H200), so that few stand in front of what words ask for. An H100, as above, us: 919 without, 919 with six, 914 with twelve, 917 with twenty; an H200, whose L2 gives hardly more than
/// its memory, 691 and 685 without and with twelve at 64; in another call 680 with twelve, 681 with sixteen, 688 with twenty, one each 500 cycles.
/// Of several rows by experts none: moe_layer of eight tokens, us, 137.5 with twelve, 137.7 with six, 135.2 without.
inline constexpr std::uint32_t kRelayAhead = 12, kRelayPace = 700;
/// What a step of a relay takes beside its stages, in stages, where tiles of products are weighed against even shares of their columns. Where shares need
/// not gain that, a Llama of 1B takes an H200 646 us a step and not 634, one of 3B 1,714 and not 1,712.
inline constexpr std::uint32_t kRelayStepStages = 3;
/// Of a worker, for relays of several rows: wire::kMostRelayRowsBytes of rows, sums (20 KB), three stages of weights, and what the pipeline has.
inline constexpr std::uint64_t kLeastRelayRowsMemory = 220 * 1024;
/// Bytes of several rows that a step has in scratch whole, in the place of stages of weights: where it is the only one of a list that multiplies them, and where others follow that do.
/// An H200, a step of a Llama of 1B: of two rows (32 KB) 706 to 723 us whole and 716 by pieces, of four 803 and 799 to 807, of eight 1,133 and 986 to 1,149.
inline constexpr std::uint32_t kMostWholeRowsBytes = 48 * 1024, kMostKeptRowsBytes = 64 * 1024;
/// Workers that have no part of a relay, for what lies between two of them: as many, at most, as leave every one of its products no longer than it is with all.
inline constexpr std::uint32_t kMostBeside = 4;
/// Tiles of an op that each of those gets, at most; otherwise the op goes to all others.
inline constexpr std::uint32_t kMostTilesBeside = 4;
/// Of plans with more ops there are no relays: who has written last what an op reads is looked for op by op.
inline constexpr std::size_t kMostRelayedOps = 4096;

/// What a task loses by starting on another worker than its producer, in the units of tile costs: a signal through L2 takes
/// 0.6 us on an H200, one between cores 0.1 to 0.2 us.
inline constexpr std::uint64_t kHopCost = 500;

/// Slots of an inbox: the credit a worker grants, twice the lookahead window. All inboxes, outboxes and what was sent of a
/// GPU's 132 workers should stay in the scheduler's L2.
inline constexpr std::uint32_t kInboxSlots = 128;

/// Slots of an outbox: every inbox task may bring one record and its ops a report each; lists bring more reports, for which
/// their workers wait if the scheduler is late.
inline constexpr std::uint32_t kOutboxSlots = 256;

/// Decisions of one publication. Larger batches keep other runs and done records waiting. One for each worker of a GPU: an op that all of them
/// share is drafted in one publication or not at all.
inline constexpr std::uint32_t kBatchDecisions = 160;

/// Tiles a worker, at most, of an op whose number only a report says, for them to go out as lists without it. To find that there is no such tile takes an H200's worker
/// a microsecond or two, the report's way and the tasks' 10 to 15 and, in a run of one token's experts, 26 us of 118; with more tiles lists were never slower either.
inline constexpr std::uint32_t kFoundTiles = 16;

/// Tiles that one worker may skip before it takes much longer than a signal to an event, which is a message of its own: 252 skipped tiles took one
/// worker of an H200 270 us while all others waited. Signals go to different workers, so that many take as long as one.
inline constexpr std::uint32_t kFewSkipped = 8;

/// Drafts of one run without a verdict: some ops of a task a worker each.
inline constexpr std::uint32_t kRunDrafts = 512;

/// Workers that ask for guessed experts' weights where they have the lists of a whole run behind that, which wait so long: the last ones, which have least of the
/// small ops in front. With all of them asking for 32 MiB `moe_layer` took 107 us on an H200 instead of 89, with 16 for 16 MiB 88.7, with 4 105 (ccks-run --speculate).
inline constexpr std::uint32_t kAskers = 16;

/// Decisions for one run before the next run has its turn.
inline constexpr std::uint32_t kRunTurn = 32;

/// Tasks sent in one step before records and new runs have their turn: about 3 us of sending.
inline constexpr std::uint32_t kStepTasks = 256;

/// A step looks at the outboxes of workers that owe an answer; one in so many steps looks at all.
inline constexpr std::uint32_t kStepsPerFullLook = 64;

/// How many workers ahead the next outbox slot is prefetched: a miss takes 50 to 100 ns, looking at one outbox 2 to 5.
inline constexpr std::uint32_t kPrefetchWorkers = 16;

/// How many decisions ahead of sending the inbox is prefetched.
inline constexpr std::uint32_t kSendsAhead = 8;
/// Tasks of a batch whose lists wait for its drafts (HeldLists): 32 lists took 0.5 to 1.0 us to store (bench/README.md, micro), so no run begins later by more.
inline constexpr std::uint32_t kHeldTasks = 24;
/// Lists of a worker that a run may have and still be primed: with more, what the way to the device takes does not matter.
inline constexpr std::uint32_t kPrimedLists = 8;

/// Records taken from one outbox in one step.
inline constexpr std::uint32_t kRecordsPerTurn = 64;

/// Answers that are booked late (Copilot), booked in a step that finds no news: some 0.2 us, which is what news then wait.
inline constexpr std::size_t kBookedAtOnce = 8;

/// Runs taken from the submission queue in one step.
inline constexpr std::uint32_t kIntakePerStep = 16;

/// How often the heartbeat is written and health, deadlines of waiting runs and worker lines are looked at.
inline constexpr std::uint64_t kTickNs = 1'000'000;
inline constexpr std::uint32_t kWorkersPerTick = 8;  // and step

/// A GPU is left to others when its workers have had nothing to do for so long: far above the gaps between requests of
/// a busy server, and coming back costs tens of microseconds.
inline constexpr std::uint64_t kCudaIdleLimitNs = 1'000'000'000;

/// How often somebody who waits for workers to leave looks whether he still should.
inline constexpr std::uint64_t kKeeperPatienceNs = 100'000'000;

/// How long whoever hands over code keeps its core awake before the workers are asked to leave.
inline constexpr std::uint64_t kAwakeNs = 1'000'000;

/// Of the time between two ticks no more than this counts as time that workers had: a process that was stopped must
/// not believe that they stood still.
inline constexpr std::uint64_t kLongestTickNs = 50'000'000;

/// How often a worker that stands still is looked into.
inline constexpr std::uint64_t kStandstillLookNs = 100'000'000;

/// What workers may take to leave an engine that has failed: one of them may be in an op that never ends.
// What a supervisor gives workers to leave after their scheduler was lost: more than any tile takes.
inline constexpr std::uint64_t kRestartPatienceNs = 10'000'000'000;
inline constexpr std::uint64_t kFailedPatienceNs = 1'000'000'000;

/// Empty steps before the scheduler thread sleeps where workers sleep too (few cores), and where they never do.
inline constexpr std::uint32_t kSpinsBeforeSleep = 64;
inline constexpr std::uint32_t kSpinsBeforeYield = 20'000;

/// Longest sleep of an idle scheduler thread: the heartbeat must go on.
inline constexpr std::uint64_t kIdleSleepNs = 20'000'000;

/// Longest look at a run's launches before the launcher looks for new runs.
inline constexpr std::uint64_t kLauncherRestNs = 50'000;

/// Plans of more launches than this keep edges that follow from others: finding them takes memory in the square.
inline constexpr std::size_t kMaxReducedSteps = 8192;

/// Tiles of a list that a worker runs as one, without a gate between them, take no longer than this by estimate: one that is asked to leave
/// ends what it has let through, up to two of these. Some 0.3 us a tile are all that a strand gains.
inline constexpr std::uint64_t kStrandNs = 8'000;

/// Changed parts of a frame that lie closer than this are written in one go: a copy to a GPU costs as much as sending so many
/// bytes (5 us at 13 GB/s).
inline constexpr std::uint32_t kFrameGapBytes = 65'536;

/// Runs without a task on its way for so long are stuck: no policy waits for a clock.
inline constexpr std::uint64_t kStallNs = 10'000'000'000;

/// submit() gives up when every slot has been held this long by runs that have ended but whose handles live.
inline constexpr std::uint64_t kHeldSlotsPatienceNs = 5'000'000'000;

}  // namespace ccks::scheduler
