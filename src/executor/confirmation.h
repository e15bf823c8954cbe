// The confirmation of a collective with a root: messages without elements, which say nothing but that their senders make the
// same call. No rank ends the call before it knows that all ranks have begun it alike.
//
// Reason: in a broadcast, a reduce, a gather or a scatter, some ranks only send, and some receive from few ranks. If ranks
// named different roots, such a rank would end with ok, and the next calls would fail. All other collectives need a value of
// every rank anyway. A message of data confirms, too: each frame shows the call of its sender.
//
// There are two forms. Both are done while the data travels, and none begins when the data has arrived.
//
// The exchange serves broadcast and reduce, whose arguments all ranks know. Each rank sends its confirmation to every rank to
// which it sends no data. In large worlds it takes log2(world) rounds, in which ranks pass on that they and those before them
// have begun the call.
//
// The confirmation by the root serves gather and scatter, where only two ranks know the size of a block. Each rank tells its
// root, by data or by a confirmation, and the root then tells all. These messages show the size of the block that the sender
// and the receiver share, so the root has compared all sizes when it tells the others. A root other than rank 0 also tells
// rank 0 at once. Two ranks need only one message each way, because no third rank waits.
//
// Proof that differing roots are found. A rank ends only if its root has heard all others name this root, so no rank ends.
// Let R be the ranks that take themselves for the root. If a rank s names a root outside of R, that rank names another root,
// and sees the difference in the message of s. Otherwise R has two ranks or more, and at least one of them is neither rank 0
// nor named by rank 0. It tells rank 0, which sees the difference. The rank that sees it tells all (operation_dispute.cc).
#pragma once

#include "executor/plan.h"

namespace unisono {

// In worlds of at most this many ranks, every rank sends its confirmation to every other rank, in one round.
inline constexpr uint32_t confirmation_exchange_max = 32;
// The round of the messages by which the root tells all ranks. It is greater than all rounds of the schedules with a root, so
// that a rank that is waited for in an earlier round is blamed first.
inline constexpr uint32_t last_confirmation_round = 256;

// The root confirms for all ranks only if there is a third rank.
constexpr bool has_last_confirmation(uint32_t world) { return world > 2; }
// Returns the rank that the root tells at once. Returns the root itself if there is no such rank.
constexpr Rank first_confirmed(uint32_t world, Rank root) { return world == 2 ? 1 - root : 0; }

// Appends the exchange to the compiled plan of a broadcast or a reduce.
void append_confirmation(Plan& plan, Rank self, uint32_t world);
// Appends the confirmation by the root to the compiled plan of a gather or a scatter. Its second part, in Plan::
// last_confirmation, begins on the root when messages of all other ranks have arrived.
void append_confirmation_by_root(Plan& plan, Rank self, uint32_t world, Rank root);

}  // namespace unisono
