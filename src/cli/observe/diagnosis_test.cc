// Tests which rank the diagnosis names as the cause. The records are those that ranks would leave.
#include "cli/observe/diagnosis.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

constexpr Nanos start = 1'000 * second;

// A group of ranks that have all ended operation 16. Their records are read 5 seconds later.
class Scene {
 public:
  explicit Scene(uint32_t world) {
    for (uint32_t rank = 0; rank < world; ++rank) {
      record::Snapshot record;
      record.run = 7;
      record.group = record.epoch = 1;
      record.world = world;
      record.rank = rank;
      record.host = "h";
      record.pid = static_cast<int32_t>(100 + rank);
      record.links.resize(world);
      for (auto& link : record.links) link.place = "host other";
      record.operations.push_back(ended(16, start));
      record.begun = record.ended = 17;
      scan_entries_.push_back({.record = record, .source = "here", .life = Life::runs, .seen = start + 5 * second});
    }
  }
  static record::CallName call(uint64_t number, unisono::Collective collective = unisono::Collective::all_reduce) {
    return {.number = number, .numbering = record::Numbering::by_order, .kind = {.collective = collective}, .bytes = 4000};
  }
  static record::EndedOperation ended(uint64_t number, Nanos at, Code code = Code::ok, int32_t pending = -1) {
    return {.name = call(number), .started = at - millisecond, .ended = at, .code = code, .pending = pending};
  }
  void waits(uint32_t rank, std::vector<Rank> pending, record::Phase phase = record::Phase::contributions,
             unisono::Collective collective = unisono::Collective::all_reduce) {
    auto& record = scan_entries_[rank].record;
    record.begun = 18;
    record.running.push_back({.name = call(17, collective),
                              .started = start + second,
                              .progress = start + second,
                              .phase = phase,
                              .pending = pending,
                              .pending_count = static_cast<uint32_t>(pending.size())});
  }
  ScanEntry& operator[](uint32_t rank) { return scan_entries_[rank]; }
  void forget(uint32_t rank) { scan_entries_.erase(scan_entries_.begin() + rank); }
  GroupDiagnosis diagnosis() {
    auto diagnoses = diagnose(scan_entries_);
    EXPECT_EQ(diagnoses.size(), 1u);
    return diagnoses.at(0);
  }
  void expect_cause(Cause cause, const std::vector<uint32_t>& ranks, const std::vector<std::string>& words) {
    const auto found = diagnosis();
    ASSERT_FALSE(found.findings.empty());
    const auto& first = found.findings.front();
    EXPECT_EQ(name(first.cause), std::string(name(cause))) << first.text;
    EXPECT_EQ(first.ranks, ranks) << first.text;
    for (const auto& word : words) EXPECT_NE(first.text.find(word), std::string::npos) << first.text << " should say " << word;
  }

 private:
  std::vector<ScanEntry> scan_entries_;
};

TEST(Diagnosis, computing_ranks_give_no_findings) { EXPECT_TRUE(Scene(4).diagnosis().findings.empty()); }

TEST(Diagnosis, a_wait_that_has_just_begun_is_no_finding) {
  Scene scene(2);
  scene.waits(0, {1});
  for (uint32_t rank : {0u, 1u}) scene[rank].seen = start + second + waiting_threshold / 2;
  EXPECT_TRUE(scene.diagnosis().findings.empty());
}

TEST(Diagnosis, a_rank_that_has_not_called_is_named_with_its_activity_and_the_waiting_ranks) {
  Scene scene(4);
  for (uint32_t rank : {0u, 1u, 3u}) scene.waits(rank, {2});
  scene.expect_cause(Cause::not_called, {2},
                     {"rank 2 (host h, pid 102)", "has not called all_reduce 17", "after all_reduce 16, which ended 5 s ago",
                      "ranks 0, 1, 3 have waited for it for 4 s"});
  EXPECT_EQ(scene.diagnosis().findings.size(), 1u);
}

TEST(Diagnosis, in_a_ring_only_the_rank_that_did_not_call_is_blamed) {
  Scene scene(4);
  scene.waits(3, {2});
  scene.waits(0, {3});
  scene.waits(1, {0});
  scene.expect_cause(Cause::not_called, {2}, {"rank 3 has waited for it"});
  EXPECT_EQ(scene.diagnosis().findings.size(), 1u);
}

TEST(Diagnosis, a_killed_rank_is_named_with_its_last_activity) {
  Scene scene(3);
  scene.waits(0, {2});
  scene.waits(1, {2});
  scene.waits(2, {0}, record::Phase::results);
  scene[2].life = Life::gone;
  scene.expect_cause(
      Cause::gone, {2},
      {"rank 2", "gone without having left", "in all_reduce 17: waits for results, round 0", "ranks 0, 1 have waited for it"});
}

TEST(Diagnosis, a_stopped_rank_is_named) {
  Scene scene(3);
  scene.waits(0, {2});
  scene[2].life = Life::stopped;
  scene.expect_cause(Cause::stopped, {2}, {"is stopped", "rank 0 has waited for it"});
}

TEST(Diagnosis, the_records_of_a_killed_job_name_the_rank_that_was_late) {
  Scene scene(3);
  scene.waits(0, {1});
  scene.waits(2, {1});
  for (uint32_t rank = 0; rank < 3; ++rank) scene[rank].life = Life::gone;
  // Rank 0's last sign of life is 3 s after the start, later than the time at which the ranks began to wait.
  scene[0].record.running[0].progress = start + 3 * second;
  const auto diagnosis = scene.diagnosis();
  ASSERT_EQ(diagnosis.findings.size(), 2u);
  EXPECT_NE(diagnosis.findings[0].text.find("All ranks seen here (ranks 0-2) are gone"), std::string::npos)
      << diagnosis.findings[0].text;
  EXPECT_EQ(diagnosis.findings[1].cause, Cause::not_called);
  EXPECT_EQ(diagnosis.findings[1].ranks, (std::vector<uint32_t>{1}));
}

TEST(Diagnosis, calls_that_differ_are_named_with_the_fewer_ranks_to_blame) {
  Scene scene(3);
  scene.waits(0, {1});
  scene.waits(1, {0}, record::Phase::results, unisono::Collective::all_gather);
  scene.waits(2, {1});
  scene.expect_cause(Cause::differs, {1},
                     {"Operation 17 was not the same", "rank 1 called all_gather(f32, 4000 bytes)",
                      "ranks 0, 2 called all_reduce(f32 sum, 4000 bytes)"});
}

TEST(Diagnosis, a_pending_rank_without_a_record_is_named) {
  Scene scene(3);
  scene.waits(0, {2});
  scene.waits(1, {2});
  scene.forget(2);
  scene.expect_cause(Cause::not_seen, {2}, {"rank 2 (host other)", "no record of it was found here"});
}

TEST(Diagnosis, the_last_failure_is_reported_once_for_all_ranks) {
  Scene scene(3);
  for (uint32_t rank : {0u, 1u}) scene[rank].record.operations.push_back(Scene::ended(17, start + second, Code::late, 2));
  scene.expect_cause(Cause::failed, {2}, {"all_reduce 17 ended as late at ranks 0, 1, 4 s ago", "waited for: rank 2"});
  EXPECT_EQ(scene.diagnosis().findings.size(), 1u);
}

TEST(Diagnosis, a_failure_names_the_rank_that_most_ranks_waited_for) {
  Scene scene(4);
  for (uint32_t rank : {0u, 1u, 3u})
    scene[rank].record.operations.push_back(Scene::ended(17, start + second, Code::peer_lost, rank == 1 ? 0 : 2));
  scene.expect_cause(Cause::failed, {2}, {"ended as peer_lost at ranks 0, 1, 3", "waited for: rank 2."});
}

TEST(Diagnosis, if_all_ranks_have_called_the_rank_that_waits_for_no_message_is_named) {
  Scene scene(3);
  scene.waits(0, {1});
  scene.waits(2, {1});
  scene.waits(1, {}, record::Phase::working);
  scene.expect_cause(Cause::slow, {1}, {"at work"});
}

TEST(Diagnosis, a_lost_link_between_living_ranks_is_reported) {
  Scene scene(2);
  scene[0].record.links[1].lost_at = start + second;
  scene.expect_cause(Cause::link_lost, {1}, {"rank 0 lost the link to rank 1", "4 s ago"});
}

TEST(Diagnosis, groups_and_epochs_are_diagnosed_separately) {
  Scene one(2), two(2);
  std::vector<ScanEntry> all{one[0], one[1], two[0], two[1]};
  all[2].record.epoch = all[3].record.epoch = 2;
  const auto diagnoses = diagnose(all);
  ASSERT_EQ(diagnoses.size(), 2u);
  EXPECT_EQ(title_of(diagnoses[1]), "group of run 00000000, epoch 2: 2 ranks");
}

TEST(Diagnosis, records_that_disagree_on_the_size_of_the_group_are_not_put_together) {
  Scene two(2), three(3);
  std::vector<ScanEntry> all{two[0], three[2]};
  all[1].record.links[0].lost_at = start;
  const auto diagnoses = diagnose(all);
  ASSERT_EQ(diagnoses.size(), 2u);
  EXPECT_EQ(diagnoses[0].world, 2u);
  EXPECT_EQ(diagnoses[1].world, 3u);
}

TEST(Diagnosis, the_later_of_two_records_of_a_rank_counts) {
  Scene scene(2);
  scene.waits(0, {1});
  std::vector<ScanEntry> all{scene[0], scene[1], scene[1]};
  all[1].record.operations.push_back(Scene::ended(17, start + 2 * second));
  const auto diagnoses = diagnose(all);
  EXPECT_EQ(diagnoses.at(0).ranks[1]->record.operations.size(), 2u);
}

}  // namespace
}  // namespace unisono::cli
